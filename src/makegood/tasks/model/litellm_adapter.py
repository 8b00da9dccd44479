"""The model adapter on LiteLLM (CONTRACT B)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from typing import Any

import httpx

from makegood.tasks.model import litellm_setup, rehearsal
from makegood.tasks.model.clocks import CallClocks
from makegood.tasks.model.exchange import Exchange, Turn
from makegood.tasks.model.litellm_call import LiteLLMCall
from makegood.tasks.model.types import Chunk, Clocks, ModelRequest

KEEPALIVE_S = 30.0
"""How long an idle connection is kept; providers close theirs after a minute or so, and a closed one costs a
failed call.
"""

PREPARING = 2
"""How many requests are prepared at the same time; the rest wait their turn."""


class LiteLLMAdapter:
    """Calls any provider that LiteLLM knows; see `ModelAdapter` for what is promised.

    One instance serves one event loop. Connections are shared by all its calls and kept alive between them.
    """

    def __init__(self) -> None:
        self._litellm: Any = None
        self._connection: httpx.AsyncClient | None = None
        self._turns = asyncio.Semaphore(PREPARING)

    async def stream(self, request: ModelRequest, clocks: Clocks) -> AsyncGenerator[Chunk, None]:
        """One call: see `ModelAdapter.stream`."""
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(litellm_setup.load)
        if self._connection is None:
            self._connection = _connection()
        timer = CallClocks(clocks, streamed=request.stream, loop=asyncio.get_running_loop())
        turn = Turn(self._turns)
        exchange = Exchange(self._connection, timer, turn)
        call = LiteLLMCall(self._litellm, request, exchange, timer)
        await turn.begin()
        try:
            async with aclosing(call.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            turn.end()
            await call.close()

    async def warm_up(self) -> None:
        """Import LiteLLM and play one call per wire format against canned replies; no network (CONTRACT
        B13).
        """
        self._litellm = await asyncio.to_thread(litellm_setup.load)
        if self._connection is None:
            self._connection = await asyncio.to_thread(_connection)
        rehearsing = LiteLLMAdapter()
        rehearsing._litellm, rehearsing._connection = self._litellm, rehearsal.canned_connection()
        for request in rehearsal.requests():
            async with aclosing(rehearsing.stream(request, Clocks())) as chunks:
                async for _ in chunks:
                    pass
        await rehearsing._connection.aclose()

    async def aclose(self) -> None:
        """Close all connections, ours and those LiteLLM cached."""
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None
        await litellm_setup.close_clients()


def _connection() -> httpx.AsyncClient:
    """The client behind all calls. It obeys `HTTPS_PROXY`, `NO_PROXY` and `SSL_CERT_FILE`; limits are the
    clocks'.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_S)
    return httpx.AsyncClient(verify=_certificates(), timeout=None, limits=limits, follow_redirects=False)


@cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()

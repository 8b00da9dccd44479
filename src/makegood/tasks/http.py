"""`ctx.http`: requests that carry the deadline and the idempotency key downstream (CONTRACT A3, D1).

One connection pool per attempt, closed with it, so that after L3 no connection of the attempt is open (A2).
A sync tool's client hands its requests to the event loop: when the call is cut, the request is cancelled
there, the socket closes at once and the tool's thread gets an exception instead of waiting on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx

from makegood.tasks.rules.deadline import Deadline

SLACK_S = 0.05
"""A request may outlast its call by this much, so that the call's own limit is what is reported."""


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


class AttemptHttp:
    """The connections of one attempt; made when first used."""

    def __init__(self) -> None:
        self._transport: httpx.AsyncHTTPTransport | None = None

    @property
    def transport(self) -> httpx.AsyncHTTPTransport:
        """The pool; no retries of its own (CONTRACT C: one layer)."""
        if self._transport is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30)
            self._transport = httpx.AsyncHTTPTransport(verify=_tls(), limits=limits, retries=0)
        return self._transport

    async def aclose(self) -> None:
        """Close every connection of the attempt."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.aclose()


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What travels with each request of a call, and whether it may still send anything (invariants 3, 4)."""

    run_id: str
    idempotency_key: str
    deadline: Deadline
    may_send: Callable[[], bool] = lambda: True
    monotonic: Callable[[], float] = field(default=time.monotonic)


class CallTransport(httpx.AsyncBaseTransport):
    """Adds the headers and bounds every phase of a request by what is left of the call."""

    def __init__(self, pool: AttemptHttp, facts: CallFacts) -> None:
        self._pool, self._facts = pool, facts

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        facts = self._facts
        left_s = facts.deadline.left_s(facts.monotonic())
        if left_s <= 0:
            raise httpx.ConnectTimeout("The limit of the call is reached; nothing was sent.", request=request)
        if not facts.may_send():
            raise httpx.ConnectError(
                "The call was stopped, or its worker's lease is over; nothing was sent.", request=request
            )
        request.headers.setdefault("Idempotency-Key", facts.idempotency_key)
        request.headers.setdefault("X-Run-Id", facts.run_id)
        if left_s < math.inf:
            request.headers["X-Deadline-Ms"] = str(max(1, int(left_s * 1000)))
            given = request.extensions.get("timeout", {})
            request.extensions["timeout"] = {
                phase: min(given.get(phase) or left_s + SLACK_S, left_s + SLACK_S)
                for phase in ("connect", "read", "write", "pool")
            }
        return await self._pool.transport.handle_async_request(request)


def async_client(pool: AttemptHttp, facts: CallFacts) -> httpx.AsyncClient:
    """The client of an async tool."""
    return httpx.AsyncClient(transport=CallTransport(pool, facts), timeout=None)


class Bridge(httpx.BaseTransport):
    """The transport of a sync tool's client: the loop does the work, `abort()` takes it back."""

    def __init__(self, pool: AttemptHttp, facts: CallFacts, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = CallTransport(pool, facts), loop
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._aborted = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        content = request.read()
        if self._aborted:
            raise httpx.ConnectTimeout("The limit of the call is reached; nothing was sent.", request=request)
        waiting = asyncio.run_coroutine_threadsafe(self._exchange(request, content), self._loop)
        self._open.add(waiting)
        try:
            self._check(waiting)
            return waiting.result()
        except concurrent.futures.CancelledError:
            raise httpx.ReadTimeout("The limit of the call is reached.", request=request) from None
        finally:
            self._open.discard(waiting)

    async def _exchange(self, request: httpx.Request, content: bytes) -> httpx.Response:
        copy = httpx.Request(
            request.method,
            request.url,
            headers=request.headers,
            content=content,
            extensions=request.extensions,
        )
        response = await self._inner.handle_async_request(copy)
        try:
            raw = [part async for part in response.aiter_raw()]
        finally:
            await response.aclose()
        return httpx.Response(
            response.status_code, headers=response.headers, stream=httpx.ByteStream(b"".join(raw))
        )

    def _check(self, waiting: concurrent.futures.Future[Any]) -> None:
        """An abort between the first look and the registration is not missed."""
        if self._aborted:
            waiting.cancel()

    def abort(self) -> None:
        """Cancel what is open and refuse what would follow. Called on the loop's thread."""
        self._aborted = True
        for waiting in list(self._open):
            waiting.cancel()


def sync_client(bridge: Bridge) -> httpx.Client:
    """The client of a sync tool."""
    return httpx.Client(transport=bridge, timeout=None)

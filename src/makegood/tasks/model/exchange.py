"""One HTTP exchange of one model call: it lets a single request out and sees everything that comes back.

LiteLLM gets this object as the transport of a client made for the call. So the facts (status, headers, body,
what the stream said) come from the innermost response, whatever LiteLLM makes of it (CONTRACT B8); a second
request within the call is refused before it leaves (CONTRACT B5); and closing the connection does not depend
on LiteLLM (CONTRACT B7).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx

from makegood.tasks.model.clocks import CallClocks
from makegood.tasks.model.wire import WireFacts

REST_S = 0.25
"""How long to wait for the end of a body whose last event was seen; it usually comes in the same packet."""

TURN_S = 0.1
"""How long a call may keep others from being prepared; four times what LiteLLM needs."""

_SENT_EVENTS = (".send_request_body.complete",)
_CONNECTED_EVENTS = (".send_request_headers.started",)


class Turn:
    """A call's turn to be prepared; it ends when the request leaves.

    LiteLLM prepares a request in a thread, with 10 to 25 ms of work in Python. Many at once would take the
    interpreter from the event loop for seconds, which then looks like providers that do not answer.
    """

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns = turns
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Wait for the turn. It lasts `TURN_S` at most: not every request of LiteLLM's is seen leaving."""
        await self._turns.acquire()
        self._timer = asyncio.get_running_loop().call_later(TURN_S, self.end)

    def end(self) -> None:
        """Let the next call prepare; calling it again changes nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._turns.release()


class SecondRequest(httpx.RequestError):
    """A library wanted to repeat the request; one adapter call sends one request."""


class Exchange(httpx.AsyncBaseTransport):
    """Transport of one call. `connection` is shared by all calls and outlives them."""

    def __init__(self, connection: httpx.AsyncClient, clocks: CallClocks, turn: Turn) -> None:
        self._connection = connection
        self._clocks = clocks
        self._turn = turn
        self._response: httpx.Response | None = None
        self.facts = WireFacts()
        self.begun = False
        self.status: int | None = None
        self.headers: httpx.Headers = httpx.Headers()
        self.complete = False
        self.error: BaseException | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the one request of this call."""
        if self.begun:
            raise SecondRequest("one model call sends one request", request=request)
        self.begun = True
        self._turn.end()
        self._clocks.leaving()
        request.extensions = {**request.extensions, "timeout": {}, "trace": self._trace}
        try:
            response = await self._connection.send(request, stream=True, follow_redirects=False)
        except BaseException as error:
            self.error = error
            raise
        self._response = response
        self.status, self.headers = response.status_code, response.headers
        self.facts = WireFacts(response.headers.get("content-type", ""))
        headers = [
            (name, value)
            for name, value in response.headers.multi_items()
            if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
        ]
        return httpx.Response(
            response.status_code, headers=headers, stream=_Body(self, response), request=request
        )

    async def aclose(self) -> None:
        """LiteLLM closes clients as it sees fit; the shared connection is not its to close."""

    async def close(self) -> None:
        """Close the exchange: a connection whose reply was not read to its end is closed with it."""
        if self._response is not None:
            await self._response.aclose()

    def seen(self, data: bytes) -> None:
        """Bytes of the body passed by."""
        if self.facts.feed(data) > 0:
            self._clocks.event()

    def ended(self) -> None:
        """The body was received whole."""
        self.complete = True
        self.facts.end()

    async def _trace(self, name: str, _info: dict[str, Any]) -> None:
        if name.endswith(_CONNECTED_EVENTS):
            self._clocks.connected()
        elif name.endswith(_SENT_EVENTS):
            self._clocks.sent()


class _Body(httpx.AsyncByteStream):
    """The body on its way to LiteLLM, already decoded."""

    def __init__(self, exchange: Exchange, response: httpx.Response) -> None:
        self._exchange = exchange
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._response.aiter_bytes()
        try:
            async for data in chunks:
                self._exchange.seen(data)
                yield data if not self._exchange.facts.done else data + await self._rest(chunks)
        except Exception as error:
            self._exchange.error = error
            raise
        self._exchange.ended()

    async def _rest(self, chunks: AsyncIterator[bytes]) -> bytes:
        """What follows the last event: read before it is handed on, because nobody reads on after that.

        Only a body read to its end leaves its connection open for the next call.
        """
        rest = bytearray()
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_S):
                async for data in chunks:
                    rest += data
        return bytes(rest)

    async def aclose(self) -> None:
        await self._response.aclose()

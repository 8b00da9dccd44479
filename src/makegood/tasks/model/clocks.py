"""The four clocks of a model call (CONTRACT B6).

They are ours and not LiteLLM's, whose `timeout` limits a single read. A clock that runs out cancels what
waits on the connection, and the caller then closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from makegood.tasks.model.types import Clocks, Failure, FailureCode, ModelFailure

T = TypeVar("T")

PREPARE_S = 10.0
"""What a call may take longer for LiteLLM's own work before the request leaves (normally 10 to 25 ms)."""

LEAVE_S = 1.0
"""What a call may take longer for connecting and sending: a limit of 20 ms is one on the provider's answer."""


class CallClocks:
    """Which limit is due when, as the call moves from preparing to connecting, waiting, and streaming.

    Time is the event loop's. Only the code that awaits through `limit` is ever cancelled.
    """

    def __init__(self, clocks: Clocks, *, streamed: bool, loop: asyncio.AbstractEventLoop) -> None:
        self._clocks = clocks
        self._streamed = streamed
        self._loop = loop
        self._call_at = loop.time() + clocks.call_s + PREPARE_S
        self._phase_at = 0.0
        self._phase_code: FailureCode | None = None
        self._scope: asyncio.Timeout | None = None

    def leaving(self) -> None:
        """The request is handed to the connection: the connect clock starts."""
        now_s = self._loop.time()
        self._call_at = now_s + self._clocks.call_s + LEAVE_S
        self._phase(FailureCode.TIMEOUT_CONNECT, now_s + self._clocks.connect_s)

    def connected(self) -> None:
        """There is a connection: the connect clock stops."""
        self._phase(None)

    def sent(self) -> None:
        """The whole request is on its way: the clock of the call starts, and where it is streamed the
        first-token clock.
        """
        now_s = self._loop.time()
        self._call_at = min(self._call_at, now_s + self._clocks.call_s)
        if self._streamed and self._clocks.first_token_s > 0:
            self._phase(FailureCode.TIMEOUT_FIRST_TOKEN, now_s + self._clocks.first_token_s)
        else:
            self._phase(None)

    def event(self) -> None:
        """Something arrived that is no comment: the first-token clock stops, the idle clock starts again."""
        if self._streamed and self._clocks.idle_s > 0:
            self._phase(FailureCode.TIMEOUT_IDLE, self._loop.time() + self._clocks.idle_s)
        else:
            self._phase(None)

    async def limit(self, awaitable: Awaitable[T]) -> T:
        """Await under whatever clock is due first. Raises `ModelFailure` with that clock's code and text."""
        if self._phase_code is FailureCode.TIMEOUT_IDLE:
            self.event()  # time the consumer spent on the last chunk is not the provider's silence
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout_at(self._due()) as scope:
                self._scope = scope
                return await awaitable
        except BaseException as error:
            if (
                task is not None
                and task.cancelling() > cancels
                and not isinstance(error, asyncio.CancelledError)
            ):
                raise asyncio.CancelledError from None  # a library must not turn a cancel into something else
            if not scope.expired() or (task is not None and task.cancelling() > cancels):
                raise
        finally:
            self._scope = None
        raise ModelFailure(self._failure())

    def _phase(self, code: FailureCode | None, at_s: float = 0.0) -> None:
        self._phase_code, self._phase_at = code, at_s
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(self._due())

    def _due(self) -> float:
        return self._call_at if self._phase_code is None else min(self._phase_at, self._call_at)

    def _failure(self) -> Failure:
        code = FailureCode.TIMEOUT_CALL
        if self._phase_code is not None and self._phase_at < self._call_at:
            code = self._phase_code
        return Failure(_sentence(code, self._clocks), code)


def _sentence(code: FailureCode, clocks: Clocks) -> str:
    match code:
        case FailureCode.TIMEOUT_CONNECT:
            return f"No connection to the provider within {clocks.connect_s:g} s."
        case FailureCode.TIMEOUT_FIRST_TOKEN:
            return f"The provider accepted the request but sent nothing within {clocks.first_token_s:g} s."
        case FailureCode.TIMEOUT_IDLE:
            return f"The provider's stream fell silent for {clocks.idle_s:g} s."
        case _:
            return f"The model call was not finished within {clocks.call_s:g} s."

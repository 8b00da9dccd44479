"""What a `Provider` remembers: every request, and for every connection when its peer closed it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


class Signal:
    """Something that happens once, seen from threads (`wait`) and from event loops (`await`)."""

    def __init__(self) -> None:
        self._future: Future[float] = Future()

    def set(self) -> None:
        """It has happened. Setting it again changes nothing."""
        with suppress(InvalidStateError):
            self._future.set_result(time.monotonic())

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._future.done()

    @property
    def at_s(self) -> float:
        """When it happened, on the monotonic clock. Raises `TimeoutError` if it has not."""
        return self._future.result(0)

    def wait(self, timeout_s: float = 10.0) -> bool:
        """Block this thread until it happens; False after `timeout_s`."""
        try:
            self._future.result(timeout_s)
        except TimeoutError:
            return False
        return True

    async def happened(self, timeout_s: float = 10.0) -> bool:
        """The same for a coroutine."""
        try:
            async with asyncio.timeout(timeout_s):
                await self
        except TimeoutError:
            return False
        return True

    def __await__(self) -> Generator[Any, None, float]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()


@dataclass(frozen=True, slots=True, eq=False)
class ConnectionRecord:
    """One accepted connection. `peer_closed` is set when the client ends it, `closed` when it is gone."""

    number: int
    peer_closed: Signal = field(default_factory=Signal)
    closed: Signal = field(default_factory=Signal)


@dataclass(frozen=True, slots=True, eq=False)
class RequestRecord:
    """One request as it arrived. Header names are lower-case; `body` is the parsed JSON, or None.

    `at_s` is monotonic time. `answering` is set when the first byte of the answer was sent, `reached` when
    the behaviour arrived at the place where it stalls, `done` when its answer was sent whole or given up.
    """

    number: int
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    at_s: float
    connection: ConnectionRecord
    answering: Signal = field(default_factory=Signal)
    reached: Signal = field(default_factory=Signal)
    done: Signal = field(default_factory=Signal)

    @property
    def streamed(self) -> bool:
        """Whether a stream was asked for, in whichever way the provider's interface says so."""
        if "streamGenerateContent" in self.path:
            return True
        return bool(isinstance(self.body, dict) and self.body.get("stream"))

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The messages of the request, in the provider's own shape."""
        if not isinstance(self.body, dict):
            return ()
        found = self.body.get("messages") or self.body.get("contents") or ()
        return tuple(found)

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools offered to the model, in the provider's own shape."""
        return tuple(self.body.get("tools") or ()) if isinstance(self.body, dict) else ()

    @property
    def results(self) -> dict[str, str]:
        """Results of tool calls in the request (OpenAI's shape), by call id."""
        return {
            str(message.get("tool_call_id")): str(message.get("content"))
            for message in self.messages
            if message.get("role") == "tool"
        }

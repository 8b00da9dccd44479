"""One cancel holder per attempt, handed on explicitly (CONTRACT F1); the next attempt gets a fresh one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Literal

from makegood.spawn import first_of

Cause = Literal["user", "parent", "hook", "disposed"]
"""Who stopped an attempt (CONTRACT F2)."""


class Cancel:
    """Says once, and for good, that an attempt must stop. Belongs to one event loop."""

    def __init__(self) -> None:
        self._followers: list[Callable[[], None]] = []
        self.cause: Cause | None = None
        self.detail = ""

    @property
    def asked(self) -> bool:
        """Whether the attempt was asked to stop."""
        return self.cause is not None

    def ask(self, cause: Cause, detail: str = "") -> None:
        """Stop the attempt; the first cause stays."""
        if self.cause is not None:
            return
        self.cause, self.detail = cause, detail
        for follower in list(self._followers):
            follower()

    async def wait(self) -> None:
        """Return when the attempt was asked to stop."""
        await first_of(self.follow, timeout_s=None)

    def follow(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call `follower` when asked (at once when that was earlier); returns how to let go of it."""
        if self.asked:
            follower()
            return lambda: None
        self._followers.append(follower)
        return lambda: self._followers.remove(follower) if follower in self._followers else None


class CancelView:
    """What a tool sees as `ctx.cancelled`: set when its attempt stops or its own limit is reached.

    `is_set()` works in any thread; `await wait()` in an async tool; `wait_sync(timeout)` in a sync one.
    """

    __slots__ = ("_told", "_waiting")

    def __init__(self) -> None:
        self._told = False
        self._waiting: list[
            threading.Event | asyncio.Event
        ] = []  # made only by those who wait: most never do

    def is_set(self) -> bool:
        """Whether the tool should stop."""
        return self._told

    async def wait(self) -> None:
        """Return when the tool should stop."""
        event = asyncio.Event()
        self._waiting.append(event)
        if not self._told:
            await event.wait()

    def wait_sync(self, timeout: float | None = None) -> bool:
        """Block a sync tool until it should stop or `timeout` seconds passed; True when it should stop."""
        event = threading.Event()
        self._waiting.append(event)  # before the look: whoever tells comes to know of it, or was earlier
        return self._told or event.wait(timeout)

    def set(self) -> None:
        """Tell the tool. Only the loop's thread calls this."""
        self._told = True
        for event in self._waiting:
            event.set()

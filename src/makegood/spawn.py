"""The one place where tasks are made, so that every task has an owner that awaits it (CONTRACT E6, F1).

A lint test refuses `create_task` and `ensure_future` in any other module of the four rooms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def spawn(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start work as a task of the running loop; the caller keeps it and awaits it."""
    return asyncio.get_running_loop().create_task(work, name=f"makegood-{name}")


class Ending:
    """How a piece of work ended: (True, value) or (False, exception). Belongs to one event loop.

    Followers are called at once where a future would call them a turn of the loop later; a step waits for two of these.
    """

    __slots__ = ("_followers", "outcome")

    def __init__(self) -> None:
        self._followers: list[Callable[[], None]] = []
        self.outcome: tuple[bool, Any] | None = None

    def done(self) -> bool:
        """Whether the work has ended."""
        return self.outcome is not None

    def set(self, outcome: tuple[bool, Any]) -> None:
        """Say how; once."""
        self.outcome = outcome
        followers, self._followers = self._followers, []
        for follower in followers:
            follower()

    def follow(self, follower: Callable[[], None]) -> Callable[[], None]:
        """Call `follower` at the end (now when that was earlier); returns how to let go of it."""
        if self.outcome is not None:
            follower()
            return lambda: None
        self._followers.append(follower)
        return lambda: self._followers.remove(follower) if follower in self._followers else None


async def first_of(
    *signals: Callable[[Callable[[], None]], Callable[[], None]], timeout_s: float | None
) -> None:
    """Wait until one of the signals came or the time is up; nothing of the wait remains when this returns.

    A signal is a function that takes what to call and returns how to let go of it (`Ending.follow`, `Cancel.follow`).
    """
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    let_go = [signal(wake) for signal in signals]
    timer = None if timeout_s is None else loop.call_later(timeout_s, wake)
    try:
        await woken
    finally:
        if timer is not None:
            timer.cancel()
        for leave in let_go:
            leave()

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


async def first_of(
    work: asyncio.Future[Any], *signals: Callable[[Callable[[], None]], Callable[[], None]], timeout_s: float | None
) -> bool:
    """Wait until the work is done, a signal came, or the time is up; True when the work is done.

    A signal is a function that takes what to call and returns how to let go of it (`Cancel.follow`). The work is
    left as it is; nothing of the wait remains when this returns.
    """
    if work.done():
        return True
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake(*_: object) -> None:
        if not woken.done():
            woken.set_result(None)

    work.add_done_callback(wake)
    let_go = [signal(wake) for signal in signals]
    timer = None if timeout_s is None else loop.call_later(timeout_s, wake)
    try:
        await woken
    finally:
        work.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()
        for leave in let_go:
            leave()
    return work.done()

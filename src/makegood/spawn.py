"""The one place where tasks are made, so that every task has an owner that awaits it (CONTRACT E6, F1).

A lint test refuses `create_task` and `ensure_future` in any other module of the four rooms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def spawn(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start work as a task of the running loop; the caller keeps it and awaits it."""
    return asyncio.get_running_loop().create_task(work, name=f"makegood-{name}")


async def first_of(work: asyncio.Future[Any], *signals: Awaitable[Any], timeout_s: float | None) -> bool:
    """Wait until the work is done, a signal came, or the time is up; True when the work is done.

    The work is left as it is; what waited for the signals is gone when this returns.
    """
    watchers = [asyncio.ensure_future(signal) for signal in signals]
    try:
        await asyncio.wait({work, *watchers}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    return work.done()

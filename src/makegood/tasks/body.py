"""One start of a tool body, bounded by its deadline and its attempt's cancel; nothing detaches (CONTRACT A2, E6, F8).

When the limit is reached or the run is cancelled the body is told, its connections are closed, its task is
cancelled (again and again if it swallows that) and its end is awaited. A body that does not end is reported
through `on_hang` for as long as it hangs; only the end of the worker's process gives up on it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from makegood.errors import MakegoodError
from makegood.spawn import Ending, first_of
from makegood.tasks.cancel import Cancel, Cause
from makegood.tasks.rules.deadline import Deadline, Level

GRACE_S = 0.5
"""How long a stopped body may take to end before its run is shown as stopping."""

PATIENCE_S = 1.0
"""Between two further requests to stop, and between two reports that it still hangs."""


class Running(Protocol):
    """A started body: `ending` says when and how it ended; `stop()` asks it to end, repeatedly."""

    ending: Ending

    def stop(self) -> None:
        """Ask the body to end."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The body returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The body raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Cut:
    """The body was stopped: by a limit (`level`) or by cancel (`cause`). `hung_s` > 0: it took that long to end.

    `abandoned`: it never ended, and its process is about to.
    """

    level: Level | None
    cause: Cause | None
    hung_s: float = 0.0
    abandoned: bool = False


BodyResult = Returned | Raised | Cut
OnHang = Callable[[float], Awaitable[None]]


async def supervise(
    running: Running, *, deadline: Deadline, cancel: Cancel, abandon: Cancel, on_hang: OnHang
) -> BodyResult:
    """Wait for a started body. Cancel wins over a limit that is reached at the same moment (CONTRACT F7)."""
    left_s = deadline.left_s(time.monotonic())
    timeout_s = None if left_s == float("inf") else left_s
    await first_of(running.ending.follow, cancel.follow, timeout_s=timeout_s)
    if running.ending.outcome is not None:
        succeeded, value = running.ending.outcome
        return Returned(value) if succeeded else Raised(value)
    cause = cancel.cause
    level = None if cause is not None else deadline.level
    hung_s = await _stop(running, abandon, on_hang)
    return Cut(level, cause, hung_s=hung_s, abandoned=not running.ending.done())


async def _stop(running: Running, abandon: Cancel, on_hang: OnHang) -> float:
    began_s = time.monotonic()
    running.stop()
    await first_of(running.ending.follow, abandon.follow, timeout_s=GRACE_S)
    if running.ending.done():
        return 0.0
    unheard: MakegoodError | None = None
    while not running.ending.done() and not abandon.asked:
        if unheard is None:
            try:
                await on_hang(time.monotonic() - began_s)
            except (
                MakegoodError
            ) as error:  # the run is someone else's, or the store is away: the body still has to end
                unheard = error
        running.stop()
        await first_of(running.ending.follow, abandon.follow, timeout_s=PATIENCE_S)
    if unheard is not None:
        raise unheard
    return time.monotonic() - began_s

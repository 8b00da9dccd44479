"""How an attempt leaves its loop. Not failures: BaseException, so that an agent's own `except Exception` lets them pass."""

from __future__ import annotations

from dataclasses import dataclass

from makegood.tasks.rules.deadline import Level


class Signal(BaseException):
    """Base of what ends or pauses an attempt."""


@dataclass(eq=False)
class EndRun(Signal):
    """The run ends as failed."""

    code: str
    message: str


@dataclass(eq=False)
class Cancelled(Signal):
    """The run was cancelled and its work has stopped."""


@dataclass(eq=False)
class LimitReached(Signal):
    """L2, L3 or the run's total is used up; the attempt is over."""

    level: Level
    where: str = ""


@dataclass(eq=False)
class HandOver(Signal):
    """The worker shuts down; another one goes on at this step boundary."""


@dataclass(eq=False)
class ParkRun(Signal):
    """The run waits without a slot, then the same step goes on."""

    delay_s: float
    reason: str

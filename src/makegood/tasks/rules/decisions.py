"""What a retry rule may answer, and how a cost is compared with what is left (CONTRACT C7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makegood.tasks.rules.deadline import Level

#: A wait up to here sleeps in the worker and is charged to L2 and L3; a longer one parks.
SLEEP_MAX_S = 16.0

StopReason = Literal["not_retryable", "exhausted", "does_not_fit", "unknown_outcome"]


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds that are left of the step (L2), the attempt (L3) and the run's total; a total of None is no limit."""

    step_s: float
    run_s: float
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """No further try. For "does_not_fit" the two numbers of the event and the level that is too short."""

    reason: StopReason
    needed_s: float | None = None
    left_s: float | None = None
    level: Level | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Sleep `delay_s` in the worker, then try again."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Park:
    """Give up the worker slot for `delay_s`, then try again; the wait is not charged to L2 and L3."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Fallback:
    """Send the same request to the next fallback model at once (CONTRACT C12).

    `skipped` is set when a retry of the model itself was due and did not fit: its event is still owed (C7).
    """

    skipped: Stop | None = None


def check_fit(left: Left, *, step_s: float, run_s: float, total_s: float) -> Stop | None:
    """Returns None when each need, in seconds, fits what is left of its level; else the level that lacks most."""
    needs: list[tuple[Level, float, float]] = [("step", step_s, left.step_s), ("run", run_s, left.run_s)]
    if left.total_s is not None:
        needs.append(("total", total_s, left.total_s))
    level, needed_s, left_s = max(needs, key=lambda need: need[1] - need[2])
    if needed_s <= left_s:
        return None
    return Stop("does_not_fit", needed_s=needed_s, left_s=max(0.0, left_s), level=level)


def check_sleep(left: Left, delay_s: float, cost_s: float) -> Stop | None:
    """Returns None when a charged wait and one full try fit every level (CONTRACT C7, J21)."""
    needed_s = delay_s + cost_s
    return check_fit(left, step_s=needed_s, run_s=needed_s, total_s=needed_s)

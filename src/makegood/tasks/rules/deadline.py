"""A deadline is a value that is handed down; a child never outlives its parent (CONTRACT A1, A2)."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

Level = Literal["call", "step", "run", "total"]

#: From the innermost to the outermost: L1, L2, L3 and the bound over all attempts.
LEVELS: tuple[Level, ...] = ("call", "step", "run", "total")


@dataclass(frozen=True, slots=True)
class Deadline:
    """The monotonic instant `at_s` at which work must have ended, and the `level` whose limit that is.

    `at_s` is infinite where nothing limits. The level names the limit that really binds: a call that is cut
    by what is left of its step has level "step".
    """

    at_s: float
    level: Level

    @classmethod
    def after(cls, limit_s: float | None, now_s: float, level: Level) -> Deadline:
        """Returns the deadline `limit_s` seconds from `now_s` on; None is no limit."""
        return cls(math.inf if limit_s is None else now_s + max(0.0, limit_s), level)

    def left_s(self, now_s: float) -> float:
        """Returns the seconds that are left, never negative."""
        return max(0.0, self.at_s - now_s)

    def expired(self, now_s: float) -> bool:
        """Returns True from the instant `at_s` on."""
        return now_s >= self.at_s

    def min(self, other: Deadline) -> Deadline:
        """Returns the earlier of the two; at the same instant the outer level, as it ends more."""
        if self.at_s != other.at_s:
            return self if self.at_s < other.at_s else other
        return self if LEVELS.index(self.level) >= LEVELS.index(other.level) else other

    def child(self, limit_s: float | None, now_s: float, level: Level) -> Deadline:
        """Returns the minimum of the child's own limit and of this deadline (CONTRACT A2); None is no own limit."""
        return self.min(Deadline.after(limit_s, now_s, level))


def outermost(levels: AbstractSet[Level | None]) -> Level | None:
    """Returns the widest of the limits that were reached: it says what ends (CONTRACT F7). None for none of them."""
    return next((level for level in reversed(LEVELS) if level in levels), None)

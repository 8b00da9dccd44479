"""Which reason ends work when several fire at the same moment (CONTRACT F7)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

from makegood.tasks.rules.deadline import Level

StopLabel = Literal["cancelled", "TOTAL_TIMEOUT", "RUN_TIMEOUT", "STEP_TIMEOUT", "TOOL_TIMEOUT"]

# Outermost first: the widest limit that was reached says what ends.
_BY_LEVEL: tuple[tuple[Level, StopLabel], ...] = (
    ("total", "TOTAL_TIMEOUT"),
    ("run", "RUN_TIMEOUT"),
    ("step", "STEP_TIMEOUT"),
    ("call", "TOOL_TIMEOUT"),
)


def stop_label(cancelled: bool, expired: AbstractSet[Level]) -> StopLabel | None:
    """Returns why the work stops: cancel before any timer, then the outermost expired level; None for nothing."""
    if cancelled:
        return "cancelled"
    return next((label for level, label in _BY_LEVEL if level in expired), None)

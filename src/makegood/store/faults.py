"""Named points at which a test may end or stop the process; no-ops unless `makegood.testing` has armed them.

A production process calls an empty function. The points are where a crash is interesting: between an effect and
its record, between a decision and its calls.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = frozenset(
    {
        "before_claim",
        "after_claim",
        "after_intent",
        "mid_tool",
        "before_outcome",
        "after_outcome",
        "before_end",
        "after_end",
    }
)
"""Every point there is."""


def _nothing(name: str) -> None:
    return None


_hook: Callable[[str], None] = _nothing


def point(name: str) -> None:
    """Pass a point."""
    _hook(name)


def arm(hook: Callable[[str], None]) -> None:
    """Call `hook` with the name of each point that is passed."""
    global _hook
    _hook = hook


def disarm() -> None:
    """Back to the no-op."""
    arm(_nothing)

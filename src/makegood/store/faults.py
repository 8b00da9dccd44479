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
        "before_cleanup_claim",
        "after_cleanup_claim",
        "before_verify",
        "before_verdict",
        "after_verdict",
        "before_probe",
        "before_repeat",
        "before_settled",
        "after_settled",
        "before_rollback",
        "before_rolled_back",
        "after_rolled_back",
        "before_undo",
        "after_undo_intent",
        "mid_compensation",
        "before_undo_outcome",
        "after_undo_outcome",
        "before_release",
        "after_release",
        "before_cleanup_release",
        "before_cleanup_end",
        "after_cleanup_end",
    }
)
"""Every point there is."""


_hooks: list[Callable[[str], None]] = []


def point(name: str) -> None:
    """Pass a point."""
    for hook in _hooks:
        hook(name)


def arm(hook: Callable[[str], None]) -> None:
    """Call `hook` with the name of each point that is passed, in place of any hook before it."""
    _hooks[:] = [hook]


def disarm() -> None:
    """Back to the no-op."""
    _hooks.clear()

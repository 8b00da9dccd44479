"""Upper bounds of the histograms, and how long an hour is kept: for the scripts (rendered from here) and the readers."""

from __future__ import annotations

CALL_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""L1, one try of a call."""

STEP_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""L2, one step; also waits in a queue, recoveries and cleanups."""

RUN_S = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
"""L3."""

COUNTS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
"""Steps and calls of a run."""

INFINITE = "inf"
"""The bucket of whatever is above the highest bound."""


HOURS_KEPT = 360
"""How many hours the store keeps what was counted in each: 15 days, one more than a window may reach."""


def bound_text(bound: float) -> str:
    """A bound as the fields of the store name it."""
    return f"{bound:g}"


def lua_buckets() -> str:
    """As Lua source: a local `BUCKETS`, durations in ms, each as {bound, name}, and a local `HOURS_KEPT_S`."""
    tables = {"call": (CALL_S, 1000), "step": (STEP_S, 1000), "run": (RUN_S, 1000), "count": (COUNTS, 1)}
    lines = [
        f"{name}={{{','.join(f'{{{round(bound * unit)},{bound_text(bound)!r}}}' for bound in bounds)}}}"
        for name, (bounds, unit) in tables.items()
    ]
    return f"local BUCKETS = {{{','.join(lines)}}}\nlocal HOURS_KEPT_S = {HOURS_KEPT * 3600}\n"

"""The states of a run and the closed table of transitions.

This is the one place where the table stands: the Lua scripts get it rendered from here, docs/ shows the
chart, and a test walks every pair through both.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """State of a run, as stored and shown."""

    QUEUED = "queued"
    PARKED = "parked"
    RUNNING = "running"
    STOPPING = "stopping"
    CLEANING = "cleaning"
    REVIEW = "requires_manual_review"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    RESOLVED = "resolved"


S = State

TRANSITIONS: dict[State, frozenset[State]] = {
    S.QUEUED: frozenset({S.RUNNING, S.PARKED, S.CLEANING, S.FAILED, S.TIMED_OUT, S.CANCELLED, S.EXPIRED}),
    S.PARKED: frozenset({S.QUEUED, S.CLEANING, S.FAILED, S.TIMED_OUT, S.CANCELLED, S.EXPIRED}),
    S.RUNNING: frozenset(
        {S.QUEUED, S.PARKED, S.STOPPING, S.CLEANING, S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELLED}
    ),
    S.STOPPING: frozenset({S.QUEUED, S.CLEANING, S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELLED}),
    S.CLEANING: frozenset({S.CLEANING, S.QUEUED, S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELLED, S.REVIEW}),
    S.REVIEW: frozenset({S.CLEANING, S.QUEUED, S.RESOLVED}),
    S.SUCCEEDED: frozenset({S.CLEANING}),
    S.FAILED: frozenset({S.CLEANING}),
    S.TIMED_OUT: frozenset({S.CLEANING}),
    S.CANCELLED: frozenset({S.CLEANING}),
    S.EXPIRED: frozenset({S.CLEANING}),
    S.RESOLVED: frozenset(),
}

TERMINAL = frozenset({S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELLED, S.EXPIRED, S.RESOLVED})
"""States in which a run has ended."""

SETTLED = TERMINAL | {S.REVIEW}
"""States in which `wait()` returns: terminal, or waiting for a person."""


def may_go(source: State, target: State) -> bool:
    """Whether the table lets a run go from one state to another."""
    return target in TRANSITIONS[source]


def lua_table() -> str:
    """The table as Lua source: a local `ALLOWED` keyed by `from>to`, and `TERMINAL` keyed by state."""
    pairs = [f"['{a}>{b}']=1" for a, targets in TRANSITIONS.items() for b in sorted(targets)]
    ends = [f"['{state}']=1" for state in sorted(TERMINAL)]
    return f"local ALLOWED = {{{','.join(pairs)}}}\nlocal TERMINAL = {{{','.join(ends)}}}\n"

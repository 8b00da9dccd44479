"""The journal row as the rules see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["planned", "started", "succeeded", "failed", "aborted_before_dispatch", "unknown"]
Effect = Literal["read", "idempotent", "write", "irreversible"]
Undo = Literal["started", "succeeded", "failed", "unknown", "kept"]
"""Status of a compensation; "kept": a person has accepted the effect as it stands."""


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a call did not succeed: a code of the closed set or the tool's own, and one short sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """One call of a run in the journal, keyed by (`call_key`, `generation`) (CONTRACT D2, invariant 9).

    `identity_digest` covers the arguments that identify the effect, `request_digest` all of them. `sent_again_ms`
    is when cleanup last sent the call again, or closed that; it did so `repeats` times in `repeats_round`. `undo` is the status of the compensation of this
    generation, None while none was begun; its `undo_tries` belong to the `undo_round` of the cleanup. Times are wall clock milliseconds.
    """

    call_key: str
    tool: str
    attempt: int
    step: int
    index: int
    status: Status
    effect: Effect
    identity_digest: str
    request_digest: str
    args: Mapping[str, Any]
    response: Any = None
    error: RowError | None = None
    tries: int = 0
    generation: int = 1
    idempotency_key: str = ""
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    sent_again_ms: int | None = None
    repeats: int = 0
    repeats_round: int = 0
    undo: Undo | None = None
    undo_tries: int = 0
    undo_round: int = 0
    undo_error: RowError | None = None

    @property
    def rolled_back(self) -> bool:
        """True once the effect of this generation was undone: the call stands as never made."""
        return self.undo == "succeeded"

    @property
    def open(self) -> bool:
        """True while the effect may or may not have happened (a read has none to doubt)."""
        return self.effect != "read" and not self.rolled_back and self.status in ("started", "unknown")

    @property
    def has_effect(self) -> bool:
        """True when an effect stands or may stand."""
        return self.open or (self.effect != "read" and not self.rolled_back and self.status == "succeeded")

    @property
    def position(self) -> tuple[int, int, int]:
        """Where the call stands in its run: (attempt, step, index); the smaller, the older."""
        return (self.attempt, self.step, self.index)


def newest_generations(rows: Iterable[Row]) -> list[Row]:
    """Returns one row per call key, the one of its highest generation, oldest position first."""
    newest: dict[str, Row] = {}
    for row in rows:
        known = newest.get(row.call_key)
        if known is None or row.generation > known.generation:
            newest[row.call_key] = row
    return sorted(newest.values(), key=lambda row: row.position)

"""Was this call made before? (CONTRACT D3, D4, J29; invariant 8)

A call of a later attempt is matched with the rows that earlier attempts left. Within one attempt identical calls
are meant: they get ordinals of their own. One exception, for D6: while the outcome of an identical call is
unknown, a later step that asks for it again means that call, so it is repeated under its key, never made twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from makegood.tasks.rules.callkeys import ordinal_of
from makegood.tasks.rules.rows import Effect, Row, newest_generations


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model asks for: digests of its identifying and of all its arguments."""

    tool: str
    identity_digest: str
    request_digest: str
    effect: Effect
    reuse: bool = False

    @property
    def identity(self) -> tuple[str, str]:
        """(tool, identity digest): what makes two calls the same effect."""
        return (self.tool, self.identity_digest)


@dataclass(frozen=True, slots=True)
class Fresh:
    """Run it as a new call with this ordinal."""

    ordinal: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Do not run it: answer with the recorded response. `same_args` False: tell the recorded arguments too."""

    row: Row
    same_args: bool


@dataclass(frozen=True, slots=True)
class RepeatUnknown:
    """It may have happened: only a repeat under its key with the recorded arguments is allowed (C8)."""

    row: Row
    same_args: bool


@dataclass(frozen=True, slots=True)
class Rerun:
    """No effect of it stands: run it under the row's call key; the generation is one higher after an undo."""

    row: Row
    generation: int


@dataclass(frozen=True, slots=True)
class PossibleRepeat:
    """Do not run it: show the model these calls of the tool from earlier attempts once; asked again, it runs."""

    rows: tuple[Row, ...]


Match = Fresh | Replay | RepeatUnknown | Rerun | PossibleRepeat


@dataclass(frozen=True, slots=True)
class StepMatches:
    """The decisions for the calls of a step, by position, and what the next step has to know.

    `claimed` are the call keys this attempt has claimed, `asked` the identities answered with POSSIBLE_REPEAT.
    """

    decisions: tuple[Match, ...]
    claimed: frozenset[str]
    asked: frozenset[tuple[str, str]]


def match_step(
    calls: Sequence[Call],
    rows: Sequence[Row],
    claimed: AbstractSet[str],
    asked_before: AbstractSet[tuple[str, str]],
    *,
    attempt: int,
) -> StepMatches:
    """Returns the decision for every call of one step of `attempt`, before any of them starts.

    `rows` are the journal of the run without this step (all generations). Exact matches are claimed first, then
    the rest by position, so that the order of parallel calls does not matter where their arguments tell them apart.
    POSSIBLE_REPEAT looks at what no call of the step claimed, and at what was asked before the step: two identical
    calls in it are both answered, since the model has not seen the warning yet.
    """
    known = newest_generations(rows)
    same = _by_identity(calls, known)
    taken: set[str] = set(claimed)
    found: dict[int, Row] = {}
    this_step: set[str] = set()
    for exact in (True, False):
        for position, call in enumerate(calls):
            if position in found:
                continue
            row = _candidate(call, same[call.identity], taken, this_step, attempt, exact)
            if row is not None:
                found[position] = row
                this_step.add(row.call_key)
    taken |= this_step
    highest = {
        identity: max((ordinal_of(each.call_key) for each in alike), default=0)
        for identity, alike in same.items()
    }
    asked: set[tuple[str, str]] = set(asked_before)
    decisions: list[Match] = []
    for position, call in enumerate(calls):
        if position in found:
            decisions.append(_decide(call, found[position]))
            continue
        doubtful = () if same[call.identity] else _doubtful(call, known, taken, asked_before, attempt)
        if doubtful:
            asked.add(call.identity)
            decisions.append(PossibleRepeat(doubtful))
            continue
        highest[call.identity] += 1
        decisions.append(Fresh(highest[call.identity]))
    return StepMatches(tuple(decisions), frozenset(taken), frozenset(asked))


def _by_identity(calls: Sequence[Call], known: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Returns the rows of each identity that the step asks for, oldest first: few of what a long run has."""
    same: dict[tuple[str, str], list[Row]] = {call.identity: [] for call in calls}
    for row in known:
        rows = same.get((row.tool, row.identity_digest))
        if rows is not None:
            rows.append(row)
    return same


def _candidate(
    call: Call,
    same: Sequence[Row],
    taken: AbstractSet[str],
    this_step: AbstractSet[str],
    attempt: int,
    exact: bool,
) -> Row | None:
    """Returns the row this call means: an exact one when asked for, else one with an effect, else the oldest."""
    if not same or (call.effect == "read" and not call.reuse):
        return None
    candidates = [
        row
        for row in same
        if row.call_key not in this_step
        and (_claimable(row, taken, attempt) or _in_doubt(row, attempt))
        and (not exact or row.request_digest == call.request_digest)
    ]
    # Of equals one whose effect stands goes first: a failed row beside it must not make the effect happen twice.
    return min(candidates, key=lambda row: (not _stands(row), row.position), default=None)


def _in_doubt(row: Row, attempt: int) -> bool:
    """Its outcome is not known; a call of this attempt that is still under way is no such row (J29)."""
    return row.open and not (row.attempt == attempt and row.status == "started")


def _claimable(row: Row, taken: AbstractSet[str], attempt: int) -> bool:
    return row.attempt < attempt and row.call_key not in taken


def _stands(row: Row) -> bool:
    return row.has_effect or (row.effect == "read" and row.status == "succeeded")


def _decide(call: Call, row: Row) -> Match:
    same_args = row.request_digest == call.request_digest
    if row.rolled_back:
        return Rerun(row, row.generation + 1)
    if row.status == "succeeded":
        return Replay(row, same_args)
    if row.open:
        return RepeatUnknown(row, same_args)
    return Rerun(row, row.generation)


def _doubtful(
    call: Call,
    known: Sequence[Row],
    taken: AbstractSet[str],
    asked_before: AbstractSet[tuple[str, str]],
    attempt: int,
) -> tuple[Row, ...]:
    """Returns the rows that a call under a new identity may be repeating, oldest first."""
    if attempt == 1 or call.effect == "read" or call.identity in asked_before:
        return ()
    return tuple(
        row for row in known if row.tool == call.tool and row.has_effect and _claimable(row, taken, attempt)
    )

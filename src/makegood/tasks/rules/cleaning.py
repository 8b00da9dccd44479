"""What a run leaves behind and what cleanup does about it (CONTRACT E, C8, D6; invariants 4, 8, 9). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from makegood.tasks.rules.rows import Row, newest_generations

Policy = Literal["keep", "rollback"]
Undoing = Literal["none", "policy", "all"]

PASSES = 3
"""Passes of a cleanup before a person is asked (CONTRACT E8)."""

TRIES = 3
WAITS_S = (1.0, 2.0)
"""Tries of a probe, a repeat, a roll-back or a compensation, and the waits between them (CONTRACT E8)."""


@dataclass(frozen=True, slots=True)
class Means:
    """What the declaration of a tool gives cleanup to work with; `declared` False: the agent has no such tool any more.

    `repeatable`: the recorded arguments are whole and still valid, so the call can be sent again under its key.
    """

    policy: Policy = "keep"
    declared: bool = True
    probes: bool = False
    compensates: bool = False
    handles_unknown: bool = False
    undo_repeatable: bool = True
    settle_after_s: float = 0.0
    key_ttl_s: float = float("inf")
    repeatable: bool = True


UNDECLARED = Means(declared=False, repeatable=False)

MeansOf = Callable[[Row], Means]


@dataclass(frozen=True, slots=True)
class Resource:
    """A declared resource: rolled back by `kind`; `done` once it is."""

    key: str
    kind: str
    id: str
    seq: int
    call_key: str
    generation: int
    done: bool = False


# --- what is left -----------------------------------------------------------------------------------------------------


def open_rows(rows: Iterable[Row]) -> list[Row]:
    """Returns the calls whose outcome is unknown, oldest first."""
    return [row for row in newest_generations(rows) if row.open]


def has_to_undo(rows: Sequence[Row], means: MeansOf, undoing: Undoing, *, final: bool) -> bool:
    """Returns whether effects stand that cleanup has to undo or a person to decide about, before the run ends.

    `final` False: another attempt follows. Unknown outcomes, resources and locks are cleaned up in any case; the store
    knows of them itself.
    """
    if undoing == "none":
        return False
    return any(plan.kind != "leave" for plan in plan_undo(rows, means, undoing, final=final))


# --- settling ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settle:
    """The next move about a call of unknown outcome.

    "probe": ask. "repeat": send it again under its key. "wait": until `at_ms`, without a slot. "not_done": it is settled, no
    effect. "undo": leave it open, its compensation handles that. "ask": a person has to say.
    """

    move: Literal["probe", "repeat", "wait", "not_done", "undo", "ask"]
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """What was found out in this pass: the probe's last answer, and what must not be tried any more."""

    probe: Literal["not_done", "unknown"] | None = None
    repeated: bool = False


def settle_at_ms(row: Row, means: Means, lost_ms: int, repeat_lost_ms: int = 0) -> int:
    """Returns the moment from which on nothing of the call can land any more (invariant 4).

    The last moment at which its request could have left is our close, else (no end is recorded) `lost_ms`: when the
    death of its worker was reported, or its lease had ended. If cleanup has sent it again, that was later, and ended
    at `repeat_lost_ms` if its worker was lost.
    """
    left_ms = row.ended_at_ms if row.ended_at_ms is not None else lost_ms
    if row.sent_again_ms is not None:
        left_ms = max(left_ms, row.sent_again_ms, repeat_lost_ms)
    return left_ms + round(means.settle_after_s * 1000)


def decide_settle(
    row: Row,
    means: Means,
    tried: Tried,
    *,
    now_ms: int,
    lost_ms: int,
    repeat_lost_ms: int = 0,
    poison: bool = False,
) -> Settle:
    """Returns what to do next about an open row. Nothing is guessed: what cannot be found out goes to a person.

    A repeat under the same key need not wait; a probe's NOT_DONE counts, and an unknown call is undone, only when
    nothing of it can land any more. `poison`: the run killed its processes, so its calls are not sent again.
    """
    settled_ms = settle_at_ms(row, means, lost_ms, repeat_lost_ms)
    if row.undo is not None and means.compensates and means.handles_unknown:
        # Its undo was begun: whether it happened says nothing any more, and it is not sent again.
        return Settle("undo") if now_ms >= settled_ms else Settle("wait", settled_ms)
    if means.probes and tried.probe is None:
        return Settle("probe")
    if tried.probe == "not_done":
        return Settle("not_done") if now_ms >= settled_ms else Settle("wait", settled_ms)
    if not tried.repeated and not poison and _may_send_again(row, means, now_ms):
        return Settle("repeat")
    if means.compensates and means.handles_unknown:
        return Settle("undo") if now_ms >= settled_ms else Settle("wait", settled_ms)
    if means.probes and now_ms < settled_ms:
        return Settle("wait", settled_ms)  # the probe may know more then
    return Settle("ask")


def _may_send_again(row: Row, means: Means, now_ms: int) -> bool:
    age_s = (now_ms - (row.started_at_ms or now_ms)) / 1000
    return row.effect == "idempotent" and means.repeatable and age_s <= means.key_ttl_s


# --- undoing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Undo:
    """What becomes of one effect: it is undone, stays, or a person has to say (`why`)."""

    row: Row
    kind: Literal["undo", "leave", "ask"]
    why: Literal["", "irreversible", "no_compensation", "unknown"] = ""


def plan_undo(rows: Sequence[Row], means: MeansOf, undoing: Undoing, *, final: bool) -> list[Undo]:
    """Returns the plan for every effect that stands, newest first (CONTRACT E3).

    An unknown one is undone only by a compensation that handles that, whatever the policy. A succeeded irreversible call
    without compensation is a person's (CONTRACT E10) when the run ends; before another attempt it stays and is replayed.
    """
    newest = sorted(newest_generations(rows), key=lambda row: (row.position, row.generation), reverse=True)
    standing = [row for row in newest if row.has_effect and row.undo != "kept"]
    return [_undo_of(row, means(row), undoing, final) for row in standing]


def _undo_of(row: Row, means: Means, undoing: Undoing, final: bool) -> Undo:
    if row.open:
        able = means.compensates and means.handles_unknown
        return Undo(row, "undo") if able else Undo(row, "ask", "unknown")
    wanted = undoing != "none" and (means.policy == "rollback" or (undoing == "all" and means.compensates))
    if not wanted:
        return Undo(row, "leave")
    if means.compensates:
        return Undo(row, "undo")
    if row.effect == "irreversible" and not final:
        return Undo(row, "leave")
    return Undo(row, "ask", "irreversible" if row.effect == "irreversible" else "no_compensation")


def plan_rollback(
    resources: Sequence[Resource], rows: Sequence[Row], means: MeansOf, agent_policy: Policy, undoing: Undoing
) -> list[Resource]:
    """Returns the resources to roll back, newest first.

    Under rollback all of them; under keep those whose call did not succeed, since nobody finished what they are part
    of. What a run declared before its first step follows the agent's policy. What a person has accepted stays. None goes
    that a finished call has declared again and whose effect stays: what is there now is that call's work.
    """
    if undoing == "none":
        return []
    by_call = {(row.call_key, row.generation): row for row in rows}

    def goes(resource: Resource) -> bool:
        row = by_call.get((resource.call_key, resource.generation))
        if row is None:
            return undoing == "all" or agent_policy == "rollback"
        if row.undo == "kept":
            return False
        return undoing == "all" or means(row).policy == "rollback" or row.status != "succeeded"

    going = {resource.key for resource in resources if goes(resource)}
    finished: dict[tuple[str, str], int] = {}
    for resource in resources:
        if (
            not resource.done
            and resource.key not in going
            and (resource.call_key, resource.generation) in by_call
        ):
            name = (resource.kind, resource.id)
            finished[name] = max(resource.seq, finished.get(name, resource.seq))

    def is_finished_since(resource: Resource) -> bool:
        return finished.get((resource.kind, resource.id), resource.seq) > resource.seq

    waiting = [
        each for each in resources if not each.done and each.key in going and not is_finished_since(each)
    ]
    return sorted(waiting, key=lambda resource: resource.seq, reverse=True)


# --- the end of a pass ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a pass ends: the run is made good ("done"), waits until `at_ms`, gets another pass, or goes to a person."""

    kind: Literal["done", "wait", "again", "review"]
    at_ms: int = 0


def decide_pass(
    *, unresolved: int, waits_until_ms: int | None, out_of_time: bool, passes_used: int, for_person: bool
) -> Verdict:
    """Returns what follows a pass (CONTRACT E8). It never loops: passes have a limit, and waiting is bounded by settling.

    `unresolved` counts what was tried to the end without success; `out_of_time` says that something was not tried.
    `for_person`: the run goes to a person in any case.
    """
    if out_of_time:
        return Verdict("again") if passes_used + 1 < PASSES else Verdict("review")
    if waits_until_ms is not None:
        return Verdict("wait", waits_until_ms)
    return Verdict("review") if unresolved or for_person else Verdict("done")

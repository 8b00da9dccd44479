"""What operators do, as flows: decide about a run in review, mark its calls, ask for the cleanup of runs that have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from makegood.errors import Conflict, InvalidInput, MakegoodError, NotAllowed, RunNotFound, StoreUnreachable
from makegood.store.ops import breakers, catalog, reads, review
from makegood.store.states import TERMINAL, State
from makegood.tasks.flows import Flow, resolved
from makegood.tasks.journal import Entry, closed, entries_from, load_journal, outcome_json
from makegood.tasks.queries import check_run_id, load_state, newest_records, states_of
from makegood.tasks.review import resources_left

CLEANUPS_PER_S = 50
"""Requests for cleanup that one client sends in a second. Each one undoes effects in systems of others, which were not
built for a burst, and takes a slot of a cleanup worker; so many keep some hundred slots busy with calls of seconds."""

SELECTED = (State.FAILED, State.TIMED_OUT, State.CANCELLED)
"""States that a filter without a state looks at; succeeded ones only when they are to be undone."""

PAGE = 200
"""Records that one step of a selection by age reads."""


# --- decisions --------------------------------------------------------------------------------------------------------


def decide(
    run_id: str, action: review.Action, actor: str, reason: str, expected_version: int | None
) -> Flow[dict[str, Any]]:
    """Retry, resume or resolve; gives run_id, state and version. Raises RunNotFound, Conflict."""
    check_run_id(run_id)
    (decided,) = yield [
        review.decide_review(
            run_id=run_id, action=action, actor=actor, reason=reason, expected_version=expected_version
        )
    ]
    return {"run_id": run_id, "state": str(decided.state), "version": decided.version}


def mark(
    run_id: str,
    call_key: str,
    outcome: review.Mark,
    generation: int | None,
    actor: str,
    reason: str,
    expected_version: int | None,
) -> Flow[dict[str, Any]]:
    """Say what became of a call; gives run_id, call_key, generation, what it became and the version.

    Raises RunNotFound (also when the journal has no such call), Conflict, InvalidInput.
    """
    if outcome not in get_args(review.Mark):
        raise InvalidInput(f'A call is marked "done" or "undone", not {outcome!r}.')
    yield from load_state(run_id)
    entry = _named(run_id, call_key, generation, (yield from load_journal(run_id)))
    if entry.row.effect == "read":
        raise Conflict(f"Call {call_key} of run {run_id} only reads; there is no effect to mark.")
    (marked,) = yield [
        review.mark_call(
            run_id=run_id,
            row_id=entry.row_id,
            call_key=entry.row.call_key,
            tool=entry.row.tool,
            mark=outcome,
            body=outcome_json(closed(entry)),  # its code stays, a response there is none
            actor=actor,
            reason=reason,
            expected_version=expected_version,
        )
    ]
    named = {"run_id": run_id, "call_key": entry.row.call_key, "generation": entry.row.generation}
    return {**named, "became": marked.became, "version": marked.version}


def _named(run_id: str, call_key: str, generation: int | None, entries: Sequence[Entry]) -> Entry:
    found = [each for each in entries if each.row.call_key == call_key]
    if generation is not None:
        found = [each for each in found if each.row.generation == generation]
    if not found:
        which = (
            str(call_key)[:200] if generation is None else f"{str(call_key)[:200]} of generation {generation}"
        )
        raise RunNotFound(
            f"Run {run_id} has no call {which}; `makegood runs journal {run_id}` lists its calls."
        )
    return max(found, key=lambda each: each.row.generation)


# --- cleanup of runs that have ended ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CleanupRequest:
    """A checked request: the runs, or what picks them, and how."""

    ids: tuple[str, ...] | None
    state: str | None = None
    agent: str | None = None
    older_than_s: float | None = None
    limit: int = 100
    dry_run: bool = False
    undo_succeeded: bool = False
    actor: str = ""
    reason: str = ""


def checked_cleanup(
    ids: Any, state: Any, agent: Any, older_than: Any, limit: Any, **how: Any
) -> CleanupRequest:
    """The request, or one sentence about what is wrong with it. Raises InvalidInput."""
    filtered = (state, agent, older_than) != (None, None, None)
    if (ids is not None) == filtered:
        raise InvalidInput("Name the runs to clean up, or pick them by state, agent or older_than; not both.")
    if isinstance(ids, str):
        ids = (ids,)
    if older_than is not None and (
        isinstance(older_than, bool) or not isinstance(older_than, (int, float)) or not 0 <= older_than < 1e9
    ):
        raise InvalidInput("older_than must be a number of seconds since the end of the runs.")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidInput("limit must be a number of runs, at least 1.")
    states_of(state)
    unique = None if ids is None else tuple(dict.fromkeys(ids))
    return CleanupRequest(unique, state, agent, older_than, limit, **how)


def plan(request: CleanupRequest) -> Flow[tuple[Sequence[str], Mapping[str, Any]]]:
    """The runs that were named, or the newest that the filter picks; and what workers have published, by agent name."""
    chosen = yield from _choose(request)
    (known,) = yield [catalog.read_catalog()]
    return chosen, known


def _choose(request: CleanupRequest) -> Flow[Sequence[str]]:
    if request.ids is not None:
        return request.ids
    states = states_of(request.state) if request.state else list(SELECTED)
    if request.state is None and request.undo_succeeded:
        states.append(State.SUCCEEDED)
    if request.older_than_s is None:
        records = yield from newest_records(states, request.agent, request.limit, without=("input", "output"))
        return [each["id"] for each in records]
    return (yield from _old(states, request))


def _old(states: Sequence[State], request: CleanupRequest) -> Flow[list[str]]:
    """Runs that ended so long ago. The index knows when they were enqueued; the record says when they ended."""
    (now_ms,) = yield [breakers.server_time()]
    ended_until_ms = now_ms - round((request.older_than_s or 0) * 1000)
    seen: dict[str, bool] = {}
    until_ms = ended_until_ms
    while sum(seen.values()) < request.limit:
        page = yield from newest_records(
            states, request.agent, PAGE, without=("input", "output"), until_ms=until_ms
        )
        fresh = [each for each in page if each["id"] not in seen]
        if not fresh:
            break
        for each in fresh:
            seen[each["id"]] = 0 < int(each.get("ended_at") or 0) <= ended_until_ms
        until_ms = min(int(each["enqueued_at"]) for each in page)
    return [run_id for run_id, old in seen.items() if old][: request.limit]


def clean_one(request: CleanupRequest, run_id: str, known: Mapping[str, Any]) -> Flow[dict[str, Any]]:
    """Ask for the cleanup of one run, or say what that would do: `run_id, result, detail, undo, unknown`.

    `known` is what workers have published. An error that concerns this run alone is a result.
    Raises StoreUnreachable, NotAllowed.
    """
    try:
        return (yield from _clean_one(request, run_id, known))
    except RunNotFound as error:
        return _result(run_id, "not_found", str(error))
    except (StoreUnreachable, NotAllowed):
        raise
    except MakegoodError as error:
        return _result(run_id, "failed", str(error))


def _clean_one(request: CleanupRequest, run_id: str, known: Mapping[str, Any]) -> Flow[dict[str, Any]]:
    check_run_id(run_id)
    stored, rows = yield [reads.read_record(run_id), reads.read_journal(run_id)]
    if not stored:
        raise RunNotFound(f"There is no run {run_id} in this store; check the id and the store's URL.")
    record = {name: value.decode(errors="replace") for name, value in stored.items()}
    if request.dry_run:
        state = State(record["state"])
        result = foresee(state, is_dirty(record), undo_succeeded=request.undo_succeeded)
    else:
        (answer,) = yield [
            review.request_cleanup(
                run_id=run_id,
                undo_succeeded=request.undo_succeeded,
                actor=request.actor,
                reason=request.reason,
            )
        ]
        result, state = answer.result, answer.state
    detail = why(result, state, run_id)
    if request.dry_run and result == "requested":
        result = "would_request"
    if result not in ("requested", "would_request"):
        return _result(run_id, result, detail)
    entries = entries_from((yield from resolved(run_id, rows)))
    left = yield from resources_left(run_id)
    return _result(
        run_id,
        result,
        detail,
        undo=[
            *_undo_of(entries, known.get(record["agent"])),
            *({**_NOTHING, "resource": each} for each in left),
        ],
        unknown=[_call(each) for each in _newest_first(entries) if each.row.open],
    )


def foresee(state: State, dirty: bool, *, undo_succeeded: bool) -> str:
    """What the store would answer to a request for cleanup; the same table as in request_cleanup.lua."""
    if state == State.CLEANING:
        return "already_cleaning"
    refused = state not in TERMINAL or state == State.RESOLVED
    if refused or (state == State.SUCCEEDED and not undo_succeeded):
        return "refused"
    return "requested" if dirty else "nothing_to_do"


def is_dirty(record: Mapping[str, str]) -> bool:
    """Whether something of the run may have to be settled, undone or released; the twin of the prelude's."""
    names = ("fx_open", "fx_unknown", "fx_committed", "resources", "locks")
    return any(int(record.get(name) or 0) > 0 for name in names)


def why(result: str, state: State, run_id: str) -> str:
    """A result in one sentence."""
    if result == "requested":
        return f"It ended {state} and keeps that end; a cleanup worker does the rest."
    if result == "nothing_to_do":
        return f"It ended {state}; no effect of it stands, and nothing is unknown."
    if result == "already_cleaning":
        return "It is being cleaned up."
    if state == State.SUCCEEDED:
        return "It succeeded; what it did is undone only with undo_succeeded (--undo-succeeded)."
    if state == State.RESOLVED:
        return "A person has resolved it, and that is final."
    if state == State.REVIEW:
        return f"It waits for a person; see `makegood review show {run_id}`, then `makegood review retry {run_id}`."
    return f"It is {state}; cancel it first: `makegood runs cancel {run_id}`."


def not_tried(ids: Sequence[str], error: MakegoodError) -> list[dict[str, Any]]:
    """Results of the runs that are left when the store fails; the first may have been asked for."""
    first, *rest = ids
    later = [_result(each, "failed", f"Not tried: {error}") for each in rest]
    return [_result(first, "failed", str(error)), *later]


def _result(run_id: Any, result: str, detail: str, **plan: Any) -> dict[str, Any]:
    return {"run_id": run_id, "result": result, "detail": detail, "undo": [], "unknown": [], **plan}


def _undo_of(entries: Sequence[Entry], declared: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Calls whose effect stands and has a compensation, as far as the published declaration says; newest first."""
    bare = {each["name"] for each in (declared or {}).get("tools", ()) if each.get("compensates") is False}
    return [
        _call(each)
        for each in _newest_first(entries)
        if each.row.status == "succeeded"
        and each.row.has_effect
        and each.row.undo != "kept"
        and each.row.tool not in bare
    ]


_NOTHING: Mapping[str, Any] = dict.fromkeys(("call_key", "generation", "tool", "args", "resource"))


def _call(entry: Entry) -> dict[str, Any]:
    row = entry.row
    named = {"call_key": row.call_key, "generation": row.generation, "tool": row.tool, "args": dict(row.args)}
    return {**_NOTHING, **named}


def _newest_first(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda each: (each.row.position, each.row.generation), reverse=True)

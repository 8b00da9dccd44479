"""Declared resources are brought back to what they were, newest first; doing it twice is harmless (CONTRACT E2)."""

from __future__ import annotations

import orjson

from makegood.cleanup.bodies import Helper, Place, failure_of, guarded, pause, report_bug, reserve, run_helper
from makegood.cleanup.case import Case, Item
from makegood.errors import DeclarationError
from makegood.store import faults
from makegood.store.ops.args import NewEvent
from makegood.store.ops.resources import settle_resource
from makegood.tasks.body import Raised, Returned
from makegood.tasks.journal import undo_json
from makegood.tasks.rollbacks import Declared, rollback_of
from makegood.tasks.rules.cleaning import TRIES, WAITS_S, Resource, plan_rollback
from makegood.tasks.rules.rows import RowError


async def roll_back(case: Case) -> None:
    """Roll back what the policy wants rolled back; one that fails does not stop the others."""
    by_key = {each.key: each for each in case.resources}
    known = [
        Resource(each.key, each.kind, each.id, each.seq, each.call_key, each.generation, done=not each.open)
        for each in case.resources
    ]
    for plan in plan_rollback(known, case.rows, case.means, case.agent.on_failure, case.undoing):
        if case.stops:
            return
        declared = by_key[plan.key]
        named = {"kind": declared.kind, "id": declared.shown}
        item = Item("resource", "BUG", "", declared.call_key, declared.generation, resource=named)
        async with guarded(case, item):
            await _roll_back(case, declared)


async def _roll_back(case: Case, declared: Declared) -> None:
    try:
        fn, is_async = rollback_of(declared.kind, declared.id, declared.prior, case.env.store.url)
    except DeclarationError as unknown:
        _ask(case, declared, RowError("UNKNOWN_KIND", str(unknown)))
        return
    helper = Helper(f"roll-back of {declared.kind}", fn, is_async)
    tries = declared.tries if declared.round_ == case.round else 0
    error = RowError(**declared.error) if declared.error else RowError("ROLLBACK_FAILED", "no try succeeded")
    while tries < TRIES and not case.stops:
        result = await _try(case, declared, helper)
        if result is None:
            return
        tries, error = result
        if tries >= TRIES:
            break
        wait_s = WAITS_S[tries - 1]
        if not case.has_time_for(wait_s, case.agent.timeouts.compensation):
            return
        await pause(case, wait_s)
    if tries >= TRIES:
        _ask(case, declared, error)


async def _try(case: Case, declared: Declared, helper: Helper) -> tuple[int, RowError] | None:
    """One try; None when the resource is back, or the worker shuts down, else how many tries failed and why."""
    limit_s = case.agent.timeouts.compensation
    key = f"{case.run_id}:{declared.call_key}:{declared.generation}:{declared.key}:undo"
    place = Place(declared.call_key, declared.attempt, declared.step, key, helper.name)
    shown = {"activity": "rolling_back", "kind": declared.kind, "id": declared.shown}
    if not await reserve(case, helper, place):
        return None
    await case.note(orjson.dumps(shown))
    faults.point("before_rollback")
    result = await run_helper(case, helper, place, limit_s)
    error: RowError | None = None
    if not isinstance(result, Returned):
        if not isinstance(result, Raised) and result.cause is not None:
            case.out_of_time = True
            return None
        failure = failure_of(result, helper.name, limit_s)
        error = RowError(failure.code, failure.message)
        if isinstance(result, Raised) and failure.kind == "bug":
            report_bug(case, result.error)
    data = {"what": "resource", "kind": declared.kind, "id": declared.shown}
    ended = (
        NewEvent("cleanup.rolled_back", data)
        if error is None
        else NewEvent("cleanup.failed", {**data, "code": error.code})
    )
    op = settle_resource(
        **case.fresh(),
        key=declared.key,
        status="rolled_back" if error is None else "failed",
        round_=case.round,
        detail=b"" if error is None else undo_json(error),
        new_events=[ended],
    )
    faults.point("before_rolled_back")
    settled = await case.env.store.do(op)
    faults.point("after_rolled_back")
    return None if error is None else (settled.tries, error)


def _ask(case: Case, declared: Declared, error: RowError) -> None:
    message = f"{declared.kind} {declared.shown!r} could not be rolled back: {error.code}: {error.message}"
    where = {"kind": declared.kind, "id": declared.shown}
    case.ask(Item("resource", error.code, message, declared.call_key, declared.generation, resource=where))

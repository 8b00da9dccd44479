"""Effects that stand are undone, newest first, each under a key of its own and never again after it succeeded (CONTRACT E9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import orjson

from makegood.cleanup.bodies import Helper, Place, failure_of, guarded, pause, report_bug, reserve, run_helper
from makegood.cleanup.case import Case, Item
from makegood.cleanup.repeat import recorded
from makegood.store import faults
from makegood.store.codes import OutOfOrder
from makegood.store.ops.args import NewEvent
from makegood.store.ops.cleanup import end_undo, start_undo
from makegood.store.states import State
from makegood.tasks.body import Raised, Returned
from makegood.tasks.journal import row_id, undo_json
from makegood.tasks.rules.cleaning import TRIES, WAITS_S, plan_undo
from makegood.tasks.rules.failures import status_after
from makegood.tasks.rules.rows import Row, RowError

Ending = Literal["succeeded", "failed", "unknown"]


async def compensate(case: Case) -> None:
    """Undo what the policy wants undone; one that fails does not stop the others (CONTRACT E8)."""
    final = case.target != State.QUEUED
    for plan in plan_undo(case.rows, case.means, case.undoing, final=final):
        if case.stops:
            return
        row = plan.row
        if row.open and row_id(row.call_key, row.generation) not in case.may_undo:
            continue  # a person is asked, or it may still land
        if plan.kind == "undo":
            async with guarded(case, Item("compensation", "BUG", "", row.call_key, row.generation, row.tool)):
                await _undo(case, row)
        elif plan.why == "irreversible":
            message = f"{row.tool} succeeded, cannot be undone, and its run did not succeed."
            _ask(case, row, "IRREVERSIBLE", message, kind="irreversible")
        elif plan.why == "no_compensation":
            message = f"{row.tool} has no compensation any more, so its effect cannot be undone."
            _ask(case, row, "NO_COMPENSATION", message)


async def _undo(case: Case, row: Row) -> None:
    repeatable = case.means(row).undo_repeatable
    if row.undo in ("started", "unknown") and not repeatable:
        doubt = row.undo_error or RowError("UNDO_OUTCOME_UNKNOWN", "It is not known whether it was undone.")
        _ask(case, row, doubt.code, f"The compensation of {row.tool} may not be repeated: {doubt.message}")
        return
    helper, place = _body_of(case, row)
    while not case.stops:
        if not await reserve(case, helper, place):
            return
        number = await _begin(case, row)
        if number is None:
            if not helper.is_async:
                case.env.threads.release()
            return
        status, error = await _try(case, row, helper, place)
        if status == "succeeded" or error is None:
            return
        if (status == "unknown" and not repeatable) or number >= TRIES:
            times = "once" if number == 1 else f"{number} times"
            message = f"The compensation of {row.tool} failed {times}; the last error: {error.code}: {error.message}"
            _ask(case, row, error.code, message)
            return
        wait_s = WAITS_S[number - 1]
        if not case.has_time_for(wait_s, case.agent.timeouts.compensation):
            return
        await pause(case, wait_s)


async def _begin(case: Case, row: Row) -> int | None:
    """Number of the try whose intent is durable now; None when there is nothing to do."""
    shown = orjson.dumps({"activity": "compensating", "call_key": row.call_key, "tool": row.tool})
    op = start_undo(
        **case.fresh(),
        row_id=row_id(row.call_key, row.generation),
        round_=case.round,
        tries=TRIES,
        activity=shown,
    )
    faults.point("before_undo")
    begun = await case.env.store.do(op)
    faults.point("after_undo_intent")
    if begun.number is None and begun.done is None:
        error = row.undo_error or RowError("UNDO_FAILED", "no try succeeded")
        message = f"The compensation of {row.tool} has used up its tries: {error.code}: {error.message}"
        _ask(case, row, error.code, message)
    return begun.number


def _body_of(case: Case, row: Row) -> tuple[Helper, Place]:
    undo = case.agent.tools[row.tool].compensation
    assert undo is not None
    fn = undo.fn
    helper = Helper(f"{row.tool}.compensate", lambda ctx: fn(ctx, recorded(row)), undo.is_async)
    key = f"{row.idempotency_key}:undo"
    return helper, Place(row.call_key, row.attempt, row.step, key, f"the compensation of {row.tool}")


async def _try(case: Case, row: Row, helper: Helper, place: Place) -> tuple[Ending, RowError | None]:
    """One try of a compensation that is `started`; its end is recorded before this returns.

    A worker that shuts down leaves it open: the next one repeats it under its key, and it counts as the same try.
    """
    op, limit_s, repeatable = case.op(), case.agent.timeouts.compensation, case.means(row).undo_repeatable

    async def give_up(hung_s: float) -> None:
        hung = RowError(
            "TIMEOUT", f"It did not end within its limit, nor {hung_s:.0f} s after it was told to."
        )
        await _end(case, row, op, "failed" if repeatable else "unknown", hung)

    result = await run_helper(case, helper, place, limit_s, give_up)
    if isinstance(result, Returned):
        await _end(case, row, op, "succeeded", None)
        return "succeeded", None
    if not isinstance(result, Raised) and result.cause is not None:
        case.out_of_time = True
        return "unknown", None
    failure = failure_of(result, helper.name, limit_s)
    if isinstance(result, Raised) and failure.kind == "bug":
        report_bug(case, result.error, row.tool)
    error = RowError(failure.code, failure.message)
    doubtful = not repeatable and status_after(failure, "write") == "unknown"
    status: Ending = "unknown" if doubtful else "failed"
    await _end(case, row, op, status, error)
    return status, error


async def _end(case: Case, row: Row, op: str, status: Ending, error: RowError | None) -> None:
    kind = "cleanup.compensated" if status == "succeeded" else "cleanup.failed"
    data = {"tool": row.tool, "what": "compensation", "code": None if error is None else error.code}
    end = end_undo(
        run_id=case.run_id,
        fence=case.claim.fence,
        op=op,
        row_id=row_id(row.call_key, row.generation),
        tool=row.tool,
        status=status,
        detail=undo_json(error),
        new_events=[NewEvent(kind, data, row.step, row.call_key)],
    )
    faults.point("before_undo_outcome")
    try:
        await case.env.store.do(end)
    except OutOfOrder:  # a hang was recorded as a failure before it ended after all
        return
    faults.point("after_undo_outcome")
    entry = case.entries[row_id(row.call_key, row.generation)]
    case.entries[entry.row_id] = replace(entry, row=replace(entry.row, undo=status, undo_error=error))


def _ask(
    case: Case,
    row: Row,
    code: str,
    message: str,
    kind: Literal["compensation", "irreversible"] = "compensation",
) -> None:
    case.ask(Item(kind, code, message, row.call_key, row.generation, row.tool))

"""Unknown outcomes are settled first: by asking, by a repeat under the same key, or by time (invariants 4, 8, 16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import orjson

from makegood.cleanup.bodies import Helper, Place, failure_of, guarded, pause, report_bug, reserve, run_helper
from makegood.cleanup.case import Case, Item
from makegood.cleanup.repeat import recorded, repeat, returned
from makegood.store import faults
from makegood.store.ops.args import NewEvent
from makegood.store.ops.blobs import spill
from makegood.store.ops.cleanup import settle_call
from makegood.tasks.body import Raised, Returned
from makegood.tasks.journal import Entry, outcome_json, row_id
from makegood.tasks.records import NOT_DONE, UNKNOWN
from makegood.tasks.rules.cleaning import TRIES, WAITS_S, Tried, decide_settle, open_rows
from makegood.tasks.rules.rows import Row, RowError

How = Literal["probe", "repeat"]


async def settle(case: Case) -> None:
    """Settle every call whose outcome is unknown, oldest first; what cannot be settled waits or goes to a person."""
    for row in open_rows(case.rows):
        if case.stops:
            return
        async with guarded(case, Item("unknown", "BUG", "", row.call_key, row.generation, row.tool)):
            await _settle(case, row)


async def _settle(case: Case, row: Row) -> None:
    means, tried = case.means(row), Tried(repeated=case.repeats_of(row) >= TRIES)
    while not case.stops:
        step = decide_settle(
            row,
            means,
            tried,
            now_ms=case.now_ms(),
            lost_ms=case.lost_ms,
            repeat_lost_ms=case.repeat_lost_ms,
            poison=case.run_was_poison,
        )
        if step.move == "probe":
            known = await _probed(case, row)
            if known is None:
                return
            tried = replace(tried, probe=known)
        elif step.move == "repeat":
            answer = await repeat(case, row)
            if answer.entry is not None:
                await _record(case, answer.entry, "repeat")
            if answer.over:
                return
            tried = replace(tried, repeated=True)
            row = replace(row, sent_again_ms=case.now_ms())
        elif step.move == "not_done":
            await _record(case, Entry(replace(row, status="failed")), "probe")
            return
        else:
            if step.move == "wait":
                case.wait_until(step.at_ms)
            elif step.move == "undo":
                case.may_undo.add(row_id(row.call_key, row.generation))
            elif step.move == "ask":
                case.ask(_question(row))
            return


def _question(row: Row) -> Item:
    code = "TOOL_OUTCOME_UNKNOWN" if row.error is None else row.error.code
    message = f"It is not known whether {row.tool} had its effect ({code}), and nothing can tell but a look downstream."
    return Item("unknown", code, message, row.call_key, row.generation, row.tool)


# --- asking -----------------------------------------------------------------------------------------------------------


async def _probed(case: Case, row: Row) -> Literal["not_done", "unknown"] | None:
    """What the probe knows; None when the call is settled by it, or the case has no time for more."""
    for number in range(TRIES):
        answer = await _ask_probe(case, row)
        if answer is NOT_DONE:
            return "not_done"
        if answer is not UNKNOWN:
            await _record(case, returned(case, row, answer), "probe")
            return None
        if number + 1 < TRIES:
            if not case.has_time_for(WAITS_S[number], case.agent.timeouts.compensation):
                return None
            await pause(case, WAITS_S[number])
    return "unknown"


async def _ask_probe(case: Case, row: Row) -> Any:
    """The probe's answer; whatever it raises counts as UNKNOWN."""
    probe = case.agent.tools[row.tool].probe_with
    assert probe is not None
    call = recorded(row)
    helper = Helper(f"{row.tool}.probe", lambda ctx: probe.fn(ctx, call), probe.is_async)
    place = Place(
        row.call_key, row.attempt, row.step, f"{row.idempotency_key}:probe", f"the probe of {row.tool}"
    )
    if not await reserve(case, helper, place):
        return UNKNOWN
    await case.note(orjson.dumps({"activity": "probing", "call_key": row.call_key, "tool": row.tool}))
    faults.point("before_probe")
    result = await run_helper(case, helper, place, case.agent.timeouts.compensation)
    if isinstance(result, Returned):
        return result.value
    failure = failure_of(result, helper.name, case.agent.timeouts.compensation)
    if failure.kind == "bug" and isinstance(result, Raised):
        report_bug(case, result.error, row.tool)
    return UNKNOWN


# --- recording --------------------------------------------------------------------------------------------------------


async def _record(case: Case, entry: Entry, how: How) -> None:
    """The outcome is known; the code that told of the doubt stays in the row."""
    row = entry.row
    lost = RowError("TOOL_OUTCOME_UNKNOWN", "The worker was lost during the call.")
    row = replace(row, error=row.error or lost, tries=row.tries + (how == "repeat"))
    entry = replace(entry, row=row)
    status: Literal["succeeded", "failed"] = "succeeded" if row.status == "succeeded" else "failed"
    body, digests, ahead = spill(case.run_id, outcome_json(entry))
    if ahead:
        await case.env.store.do_all(ahead)
    outcome = "happened" if status == "succeeded" else "not_happened"
    event = NewEvent(
        "cleanup.settled", {"tool": row.tool, "outcome": outcome, "how": how}, row.step, row.call_key
    )
    op = settle_call(
        **case.fresh(),
        row_id=row_id(row.call_key, row.generation),
        tool=row.tool,
        status=status,
        body=body,
        tries=row.tries,
        blob_digests=digests,
        new_events=[event],
    )
    faults.point("before_settled")
    await case.env.store.do(op)
    faults.point("after_settled")
    case.entries[entry.row_id] = entry

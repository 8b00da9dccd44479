"""A call of unknown outcome is sent again under its key, with its recorded arguments: the same key does it at most once."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from makegood.cleanup.bodies import Helper, Place, hang_reporter, pause, report_bug, reserve, wait_for_lease
from makegood.cleanup.case import Case
from makegood.store import faults
from makegood.store.ops.args import NewEvent, Sample
from makegood.store.ops.cleanup import SentAgain
from makegood.tasks.body import Cut, Raised, Returned, supervise
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.bodies import classify, needs_slot, start_body
from makegood.tasks.engine.call import GATEWAY
from makegood.tasks.engine.plan import ToRun
from makegood.tasks.engine.response import Unusable, usable
from makegood.tasks.journal import Entry, row_id
from makegood.tasks.latencies import CallResult, sample
from makegood.tasks.records import RecordedCall
from makegood.tasks.rules import counting
from makegood.tasks.rules.breaker import Rejected
from makegood.tasks.rules.cleaning import PASSES, TRIES, WAITS_S
from makegood.tasks.rules.deadline import Deadline, Level
from makegood.tasks.rules.rows import Row

BREAKER_PAUSE_S = 30.0
"""How long a cleanup waits for a breaker that an operator holds open."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """`entry`: what is known now; `over`: nothing more is to be done about the call in this pass."""

    entry: Entry | None = None
    over: bool = True


async def repeat(case: Case, row: Row) -> Repeated:
    """Up to three tries, as far as the tool's breaker lets them pass: while it is open the cleanup waits, without a slot."""
    tool = case.agent.tools[row.tool]
    for number in range(case.repeats_of(row), TRIES):
        owner = case.op()
        limit_s = case.env.limits.call_s(case.agent, tool)
        leave = await case.env.breakers.admit(tool.breaker, owner, limit_s)
        if isinstance(leave, Rejected):
            await case.note(b"", None, (), [_rejected(row, tool.breaker, leave)])
            return _held_up(case, leave)
        entry = await _repeat_once(case, row, owner, number + 1)
        if entry is not None:
            return Repeated(entry)
        if number + 1 < TRIES:
            if not case.has_time_for(WAITS_S[number], limit_s):
                return Repeated()
            await pause(case, WAITS_S[number])
    return Repeated(over=False)


def _rejected(row: Row, breaker: str, leave: Rejected) -> NewEvent:
    data = {"name": breaker, "until_ms": leave.until_ms}
    counts = counting.rejected(breaker, row.tool)
    return NewEvent("breaker.rejected", data, row.step, row.call_key, counts)


def _held_up(case: Case, leave: Rejected) -> Repeated:
    """A wait for a breaker uses up a pass, so that it has an end."""
    if case.passes_used + 1 >= PASSES:
        return Repeated(over=False)
    case.uses_pass = True
    pause_ms = round(BREAKER_PAUSE_S * 1000)
    case.wait_until(case.now_ms() + pause_ms if leave.until_ms is None else leave.until_ms)
    return Repeated()


async def _repeat_once(case: Case, row: Row, owner: str, number: int) -> Entry | None:
    tool = case.agent.tools[row.tool]
    run = ToRun(row, tool, tool.bind_recorded(row.args, {}), repeat=True)
    deadline = case.deadline.child(case.env.limits.call_s(case.agent, tool), time.monotonic(), "call")
    again = SentAgain(row_id(row.call_key, row.generation), number, case.round)
    shown = orjson.dumps({"activity": "repeating", "call_key": row.call_key, "tool": row.tool})
    if needs_slot(run) and not await reserve(case, Helper(row.tool, run.tool.fn, False), _place(row)):
        return None
    await case.note(shown, again)
    faults.point("before_repeat")
    began_s = time.monotonic()
    result = await _run(case, run, deadline)
    taken = sample(f"tool:{row.tool}", time.monotonic() - began_s, _result_of(result))
    # Closed now: from here on nothing more of it leaves.
    level = result.level if isinstance(result, Cut) and result.cause is None else None
    await case.note(b"", again, [taken], [_sent_again(case, row, number, taken, level)])
    await case.env.breakers.report(tool.breaker, case.agent.breaker, owner, _heard(result))
    if isinstance(result, Returned):
        return returned(case, row, result.value)
    if isinstance(result, Raised):
        failure = classify(result.error, repeat=True)
        if failure.kind == "bug":
            report_bug(case, result.error, row.tool)
        if failure.kind == "business" and not failure.outcome_unknown and failure.code not in GATEWAY:
            return Entry(replace(row, status="failed"))
    return None


def _sent_again(case: Case, row: Row, number: int, taken: Sample, level: Level | None) -> NewEvent:
    data = {"tool": row.tool, "retry": number, "delay_s": 0, "cause": "UNKNOWN_OUTCOME", "message": ""}
    counts = (counting.retried("tool", "UNKNOWN_OUTCOME"), *counting.call_limit(case.agent.name, level))
    told = {**data, "result": taken.result, "level": level}
    return NewEvent("tool.retry", told, row.step, row.call_key, counts)


def _result_of(result: Returned | Raised | Cut) -> CallResult:
    """How the try ended, as it is counted."""
    if isinstance(result, Cut):
        return "timeout" if result.cause is None else "aborted"
    return "ok" if isinstance(result, Returned) else "error"


def _heard(result: Returned | Raised | Cut) -> Literal["failure", "success", "neutral"]:
    """What the breaker is told."""
    if isinstance(result, Returned):
        return "success"
    if isinstance(result, Cut):
        return "failure" if result.cause is None else "neutral"
    return "failure" if classify(result.error, repeat=True).kind == "infrastructure" else "neutral"


async def _run(case: Case, run: ToRun, deadline: Deadline) -> Returned | Raised | Cut:
    """The tool's body as the engine runs it, under the case's limits and cancel."""
    row = run.row
    attempt = Attempt(case.env, case.agent, case.claim, row.attempt, case.deadline, case.deadline.at_s, None)
    attempt.cancel, attempt.http = case.cancel, case.http
    lost = await wait_for_lease(case)
    if lost is not None:
        if needs_slot(run):
            case.env.threads.release()
        return lost
    return await supervise(
        start_body(attempt, run, deadline, repeat=True),
        deadline=deadline,
        cancel=case.cancel,
        abandon=case.env.abandon,
        on_hang=hang_reporter(case, _place(row)),
    )


def _place(row: Row) -> Place:
    return Place(row.call_key, row.attempt, row.step, row.idempotency_key, f"the repeat of {row.tool}")


def returned(case: Case, row: Row, value: Any) -> Entry:
    """The call has happened, and this is its response; one that is no JSON is left out."""
    try:
        response, whole = usable(value, case.env.secret_fields)
    except Unusable as error:
        report_bug(case, error, row.tool)
        return Entry(replace(row, status="succeeded"))
    return Entry(replace(row, status="succeeded", response=response), whole)


def recorded(row: Row) -> RecordedCall:
    """The call as its probe or compensation sees it."""
    return RecordedCall(
        tool=row.tool,
        args=copy.deepcopy(dict(row.args)),  # what it does to them must not change what is sent again
        response=row.response,
        outcome="succeeded" if row.status == "succeeded" else "unknown",
        idempotency_key=row.idempotency_key,
        call_key=row.call_key,
        attempt=row.attempt,
        step=row.step,
    )

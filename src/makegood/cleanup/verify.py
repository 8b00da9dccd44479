"""Had the run that timed out in fact finished? Its agent's `verify` is asked before anything is undone (CONTRACT A8)."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from makegood.cleanup.bodies import Helper, Place, report_bug, reserve, run_helper
from makegood.cleanup.case import Case
from makegood.errors import Conflict
from makegood.store import faults
from makegood.store.ops.limits import judge_timeout
from makegood.store.ops.reads import iso
from makegood.store.states import State
from makegood.tasks.body import Raised, Returned
from makegood.tasks.checks import is_async
from makegood.tasks.queries import result_of
from makegood.tasks.records import Result
from makegood.tasks.rules.limits import Verdict

log = logging.getLogger("makegood.cleanup")

REASON = "What the agent's verify said."


async def verify(case: Case) -> None:
    """Ask once per run, and record the answer; it changes nothing of what is undone.

    A process that dies before the answer is recorded makes the next one ask again.
    """
    ask = case.agent.verify
    if ask is None or not _is_asked(case):
        return
    run = ending_of(case)
    helper = Helper(f"{case.agent.name}.verify", lambda ctx: ask(ctx, run), is_async(ask))
    place = Place("verify", run.attempts, 0, f"{case.run_id}:verify", f"verify of {case.agent.name}")
    if not await reserve(case, helper, place):
        return
    await case.note(orjson.dumps({"activity": "verifying"}))
    op = case.op()

    async def give_up(_: float) -> None:
        await _judge(case, op, "unknown", "It did not end within its limit, nor when it was told to.")

    faults.point("before_verify")
    result = await run_helper(case, helper, place, case.agent.timeouts.compensation, give_up)
    if isinstance(result, Returned):
        await _judge(case, op, _verdict(case, result.value), REASON)
    elif isinstance(result, Raised):
        report_bug(case, result.error)
        await _judge(case, op, "unknown", f"It raised {type(result.error).__name__}: {result.error}"[:500])
    elif result.cause is None:
        await _judge(case, op, "unknown", "It did not end within its limit.")
    else:  # this worker stops; the next one asks again
        case.out_of_time = True


def _is_asked(case: Case) -> bool:
    """Only of a run that ends because of its limits, and that has no verdict yet."""
    record = case.claim.record
    return (
        case.target == State.TIMED_OUT
        and record.get("cl_cause") == "timeout"
        and not record.get("to_verdict")
        and not case.stops
    )


def ending_of(case: Case) -> Result:
    """The run as it will end, as far as that is known before its cleanup."""
    record = case.claim.record
    run = result_of({**record, "state": record["cl_end"]}).to_dict()
    return Result.from_dict({**run, "ended_at": iso(int(record["cl_at"]))})


def _verdict(case: Case, answer: Any) -> Verdict:
    if answer is True:
        return "false_kill"
    if answer is False:
        return "true_kill"
    if answer is not None:
        said = type(answer).__name__
        report_bug(case, TypeError(f"verify returned {said}; return True, False, or None for unknown."))
    return "unknown"


async def _judge(case: Case, op: str, verdict: Verdict, reason: str) -> None:
    judging = judge_timeout(
        run_id=case.run_id, verdict=verdict, actor="verify", reason=reason, fence=case.claim.fence, op=op
    )
    faults.point("before_verdict")
    try:
        judged = await case.env.store.do(judging)
    except (
        Conflict
    ) as error:  # a person has judged it meanwhile, or it was cancelled and does not time out any more
        log.info("%s", error)
        await case.note(b"")
        return
    faults.point("after_verdict")
    case.claim.record["to_verdict"] = judged.verdict

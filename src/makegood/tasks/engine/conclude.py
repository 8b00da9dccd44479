"""How an attempt is left: handed over, parked, begun anew, ended, or given to cleanup first."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from makegood.errors import MakegoodError, StaleFence, StoreUnreachable
from makegood.store import faults
from makegood.store.codes import TooManyContinuations, Unsettled
from makegood.store.ops import runs
from makegood.store.ops.args import NewEvent, Sample
from makegood.store.ops.leases import MAX_CONTINUATIONS
from makegood.store.ops.runs import Cleaning
from makegood.store.states import State
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.salvage import salvage
from makegood.tasks.engine.signals import Cancelled, EndRun, HandOver, LimitReached, ParkRun, Signal
from makegood.tasks.latencies import sample
from makegood.tasks.means import means_of
from makegood.tasks.rules import counting
from makegood.tasks.rules.attempts import NextAttempt, attempt_cost_s, decide_next_attempt
from makegood.tasks.rules.cleaning import Undoing, has_to_undo

log = logging.getLogger("makegood.run")

CODES = {"step": "STEP_TIMEOUT", "run": "RUN_TIMEOUT", "total": "TOTAL_TIMEOUT", "call": "STEP_TIMEOUT"}


@dataclass(frozen=True, slots=True)
class Ended:
    """The run's end as it is written."""

    state: State
    code: str | None = None
    message: str = ""
    output: Any = None


def crashed(message: str) -> Ended:
    """The attempt was continued as often as one may be."""
    return Ended(State.FAILED, "CRASHED", message)


class Distrusted(EndRun):
    """A failover has lost what this run had written: its record is not to be trusted, so it ends."""


def distrusted(error: MakegoodError) -> Distrusted:
    """That end, for what the store said."""
    return Distrusted("CRASHED", f"The store has lost acknowledged writes of this run: {error}"[:500])


async def conclude(attempt: Attempt, outcome: Ended | Signal) -> None:
    """Write how the attempt is left, after everything that is on its way."""
    try:
        await attempt.drain_pending()
    except (StaleFence, StoreUnreachable):
        raise
    except MakegoodError as error:
        outcome = distrusted(error)
    if isinstance(outcome, Distrusted):
        await salvage(attempt)  # first, so that the end finds what has to be settled
    if isinstance(outcome, HandOver):
        await _hand_over(attempt)
    elif isinstance(outcome, ParkRun):
        await _park(attempt, outcome)
    elif isinstance(outcome, LimitReached):
        await _after_limit(attempt, outcome)
    elif isinstance(outcome, EndRun):
        await _end(attempt, Ended(State.FAILED, outcome.code, outcome.message))
    elif isinstance(outcome, Cancelled):
        await _end(attempt, Ended(State.CANCELLED, "CANCELLED", "The run was cancelled."))
    elif isinstance(outcome, Ended) and outcome.code == "CRASHED":
        await _anew_or_end(attempt, outcome)
    elif isinstance(outcome, Ended):
        await _end(attempt, outcome)


async def _hand_over(attempt: Attempt) -> None:
    event = NewEvent("run.handed_over", {"worker": attempt.env.worker})
    limit = None if attempt.env.quarantine else MAX_CONTINUATIONS
    try:
        await _release(attempt, "queued", [event], continued=True, max_continuations=limit)
    except TooManyContinuations as error:
        await _anew_or_end(attempt, crashed(str(error)))
        return
    await attempt.env.publish(attempt.run_id)


async def _park(attempt: Attempt, park: ParkRun) -> None:
    event = NewEvent("run.parked", {"for_s": round(park.delay_s, 3), "reason": park.reason})
    await _release(attempt, "parked", [event], continued=True, due_in_ms=math.ceil(park.delay_s * 1000))


async def _after_limit(attempt: Attempt, reached: LimitReached) -> None:
    """L2, L3 or total is used up: another attempt, or the end as timed out."""
    await _anew_or_end(attempt, Ended(State.TIMED_OUT, CODES[reached.level], _limit_text(attempt, reached)))


async def _anew_or_end(attempt: Attempt, ended: Ended) -> None:
    """Another attempt while attempts and total last and nothing needs cleaning, else this end (CONTRACT C11)."""
    seen = attempt.env.latencies.get(f"run:{attempt.agent.name}")
    total_s = attempt.left(attempt.run).total_s
    cost_s = attempt_cost_s(seen.p50_s, seen.samples, attempt.env.limits.run_s(attempt.agent))
    clean_first = _has_to_undo(attempt, "policy", final=False)
    decision = decide_next_attempt(
        str(ended.code), attempt.number, attempt.agent.max_attempts, total_s, cost_s, clean_first
    )
    if isinstance(decision, NextAttempt):
        await _next_attempt(attempt, ended, clean_first=decision.clean_first)
        return
    if decision.reason == "does_not_fit":
        data = {
            "what": "attempt",
            "reason": "deadline",
            "needed_s": decision.needed_s,
            "left_s": decision.left_s,
        }
        attempt.events.append(NewEvent("llm.retry_skipped", data, counts=counting.skipped("deadline")))
    await _end(attempt, ended)


def _has_to_undo(attempt: Attempt, undoing: Undoing, *, final: bool) -> bool:
    means = means_of(attempt.agent, attempt.env.limits, repeats=False)
    return has_to_undo(attempt.rows, means, undoing, final=final)


async def _next_attempt(attempt: Attempt, ended: Ended, *, clean_first: bool) -> None:
    if not clean_first:
        event = _attempt_ended(attempt, ended, State.QUEUED)
        try:
            await _release(attempt, "queued", [event], continued=False)
        except Unsettled:  # an unknown outcome, a lock or a declared resource: cleanup comes first
            pass
        else:
            attempt.left_as = (str(State.QUEUED), str(ended.code))
            await attempt.env.publish(attempt.run_id)
            return
    await _end(attempt, ended, Cleaning(cause_of(ended), State.QUEUED, "policy"))


def cause_of(ended: Ended) -> Literal["timeout", "failure", "cancel", "crash", "unknown"]:
    """Why a run that ended so has to be cleaned up."""
    if ended.state == State.SUCCEEDED:
        return "unknown"
    if ended.state == State.TIMED_OUT:
        return "timeout"
    if ended.state == State.CANCELLED:
        return "cancel"
    return "crash" if ended.code == "CRASHED" else "failure"


async def _release(attempt: Attempt, target: Any, events: list[NewEvent], **how: Any) -> None:
    """Raises Unsettled and TooManyContinuations; then what waits to be told is told by what is done instead."""
    waiting = attempt.take_events()
    op = runs.release_run(
        **attempt.fresh(),
        target=target,
        sends=attempt.sends.stored(),
        l2_used_ms=round(attempt.l2_spent_s() * 1000),
        latencies=[] if how["continued"] else [_run_sample(attempt)],
        new_events=[*waiting, *events],
        **how,
    )
    try:
        await attempt.env.store.do(op)
    except (Unsettled, TooManyContinuations):
        attempt.events[:0] = waiting
        raise
    attempt.left_as = (str(target), "")


def _attempt_ended(attempt: Attempt, ended: Ended, then: State | None) -> NewEvent:
    """`then`: what follows at once; None when it depends on what there is to clean up."""
    data = {"code": ended.code, "message": ended.message, "then": then}
    counts = counting.attempt_ended(attempt.agent.name, ended.code, again=then == State.QUEUED)
    return NewEvent("attempt.ended", data, counts=counts)


async def _end(attempt: Attempt, ended: Ended, cleaning: Cleaning | None = None) -> None:
    """The run's end, or what cleanup needs to know to bring it there; what has to be cleaned up goes there first."""
    output, digests = await attempt.spilled(orjson.dumps(ended.output))
    if cleaning is None:
        undoing: Undoing = "none" if ended.state == State.SUCCEEDED else "policy"
        # The cleanup asks `verify`, before anything is undone (CONTRACT A8).
        asks = ended.state == State.TIMED_OUT and attempt.agent.verify is not None
        needed = asks or _has_to_undo(attempt, undoing, final=True)
        cleaning = Cleaning(cause_of(ended), ended.state, undoing, needed)
    op = runs.end_run(
        **attempt.fresh(),
        state=ended.state,
        code=ended.code,
        message=ended.message,
        output=output,
        cleaning=cleaning,
        latencies=[_run_sample(attempt)],
        blob_digests=digests,
        new_events=[*attempt.take_events(), _attempt_ended(attempt, ended, None)],
    )
    faults.point("before_end")
    state = await attempt.env.store.do(op)
    attempt.left_as = (str(state), ended.code or "")
    faults.point("after_end")
    why = f" ({ended.code}: {ended.message})" if ended.code else ""
    log.info("run %s of agent %s is %s%s", attempt.run_id, attempt.agent.name, state, why)
    if state == State.CLEANING:
        await attempt.env.publish_cleanup(attempt.run_id)


def _run_sample(attempt: Attempt) -> Sample:
    used_s = int(attempt.claim.record.get("l3_used_ms", 0)) / 1000 + time.monotonic() - attempt.began_s
    return sample(f"run:{attempt.agent.name}", used_s)


def _limit_text(attempt: Attempt, reached: LimitReached) -> str:
    limits = {"step": attempt.step_s, "run": attempt.run_s, "total": attempt.total_s}
    names = {"step": "A step", "run": "The attempt", "total": "The run"}
    level = reached.level if reached.level in names else "step"
    return f"{names[level]} did not end within its limit of {limits[level]:g} s ({reached.where or 'between steps'})."

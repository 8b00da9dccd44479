"""A claimed run: open its attempt, execute it, conclude. Every way out of an attempt ends here."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from typing import Any

import orjson

from makegood.errors import MakegoodError, RunNotFound, StaleFence, StoreUnreachable, ToolError
from makegood.store import faults
from makegood.store.codes import OutOfOrder, TooManyContinuations
from makegood.store.ops import runs
from makegood.store.ops.args import NewEvent, Sample
from makegood.store.ops.leases import MAX_CONTINUATIONS
from makegood.store.ops.reads import read_steps
from makegood.store.states import State
from makegood.tasks.engine.attempt import Attempt, Sends
from makegood.tasks.engine.bodies import is_bug
from makegood.tasks.engine.code import run_code
from makegood.tasks.engine.env import Env
from makegood.tasks.engine.loop import run_loop
from makegood.tasks.engine.response import Unusable, usable
from makegood.tasks.engine.signals import Cancelled, EndRun, HandOver, LimitReached, ParkRun, Signal
from makegood.tasks.engine.step import observed
from makegood.tasks.flows import Flow, resolved, run_async
from makegood.tasks.history import Decision
from makegood.tasks.journal import load_journal
from makegood.tasks.latencies import sample
from makegood.tasks.rules.attempts import End, NextAttempt, attempt_cost_s, decide_next_attempt
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.facts import render_facts
from makegood.tasks.rules.repeated import observe_step

log = logging.getLogger("makegood.run")

GOALS = ("Answer the request above; no attempt has answered it yet.",)
"""What is open when an attempt begins anew."""

CODES = {"step": "STEP_TIMEOUT", "run": "RUN_TIMEOUT", "total": "TOTAL_TIMEOUT", "call": "STEP_TIMEOUT"}


@dataclass(frozen=True, slots=True)
class Ended:
    """The run's end as it is written."""

    state: State
    code: str | None = None
    message: str = ""
    output: Any = None


async def open_attempt(env: Env, claim: runs.Claim) -> Attempt:
    """The attempt that a claim stands for, with its journal and, when it is continued, its decisions."""
    record, agent = claim.record, env.agents[claim.record["agent"]]
    number = int(record["attempt"])
    now_s = time.monotonic()
    total_s = agent.total_s() - (claim.now_ms - int(record["started_at"])) / 1000
    total = Deadline.after(total_s, now_s, "total")
    used_ms = int(record.get("l3_used_ms", 0)) + claim.now_ms - int(record["claimed_at"])
    run = total.child(agent.timeouts.run - used_ms / 1000, now_s, "run")
    fields = {"input": record["input"].encode()}
    whole = await run_async(env.store, resolved(claim.run_id, fields))
    attempt = Attempt(env, agent, claim, number, run, total.at_s, orjson.loads(whole["input"]))
    attempt.sends = Sends.read(record.get("sends", ""))
    attempt.l2_used_s = int(record.get("l2_used_ms", 0)) / 1000
    attempt.ended_step = int(record.get("ended_step", 0))
    if number > 1 or int(record.get("step", 0)) > 0:
        await _load_past(attempt)
    if record.get("cancel"):
        attempt.cancel.ask("user")
    return attempt


async def _load_past(attempt: Attempt) -> None:
    entries = await run_async(attempt.env.store, load_journal(attempt.run_id))
    attempt.entries = {entry.row_id: entry for entry in entries}
    decisions = await run_async(attempt.env.store, _load_decisions(attempt.run_id, attempt.number))
    attempt.decisions = [decisions[number] for number in sorted(decisions)]
    attempt.positions = decisions
    made = [call for decision in attempt.decisions for call in decision.calls]
    attempt.claimed = frozenset(call.row_id.rpartition("#")[0] for call in made if call.row_id)
    attempt.asked = frozenset((call.name, call.questioned) for call in made if call.questioned)
    attempt.bugs = {row.tool for row in attempt.rows if row.attempt == attempt.number and is_bug(row)}
    for decision in attempt.decisions:
        attempt.repeats = observe_step(attempt.repeats, observed(decision.calls, attempt.entries))
    if attempt.decisions:
        attempt.facts = attempt.decisions[0].facts
    elif attempt.number > 1:
        attempt.facts = render_facts([entry.row for entry in entries], GOALS)


def _load_decisions(run_id: str, attempt: int) -> Flow[dict[int, Decision]]:
    (fields,) = yield [read_steps(run_id)]
    mine = {name: value for name, value in fields.items() if name.startswith(f"{attempt}:")}
    whole = yield from resolved(run_id, mine)
    return {int(name.partition(":")[2]): Decision.from_json(value) for name, value in whole.items()}


async def execute(attempt: Attempt) -> None:
    """Execute an attempt to its end, its hand-over or its next attempt. Never raises for what a run does."""
    try:
        outcome = await _outcome(attempt)
        await attempt.http.aclose()
        await _conclude(attempt, outcome)
    except StaleFence as error:
        log.warning("%s", error)
    except MakegoodError as error:
        log.error("run %s: its end could not be recorded: %s", attempt.run_id, error)
        attempt.env.report_bug(error, {"agent": attempt.agent.name, "run_id": attempt.run_id})
    finally:
        await attempt.http.aclose()


async def _outcome(attempt: Attempt) -> Ended | Signal:
    try:
        attempt.check_cancel()
        if attempt.claim.record.get("cannot_continue"):
            return _crashed("The run lost its worker more often than one attempt may.")
        work = run_code if attempt.agent.code is not None else run_loop
        output, _ = usable(await work(attempt), attempt.env.secret_fields)
        await attempt.drain_pending()
        return _success(attempt, output)
    except Signal as signal:
        return signal
    except (StaleFence, StoreUnreachable):
        raise
    except Unusable as error:
        return EndRun("BUG", str(error))
    except ToolError as error:  # what an agent's code lets pass is its result, not a defect of the system
        return EndRun("BUG", f"The agent's code did not handle a failed call: {error.message}"[:500])
    except (OutOfOrder, RunNotFound) as error:
        return _distrusted(error)
    except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        # Nobody cancels this task: whatever arrives here came out of the agent's own code, and must not end the loop.
        attempt.env.report_bug(error, {"agent": attempt.agent.name, "run_id": attempt.run_id})
        return EndRun("BUG", f"{type(error).__name__}: {error}"[:500])


def _distrusted(error: MakegoodError) -> EndRun:
    """A failover has lost what this run had written: its record is not to be trusted, so it ends."""
    return EndRun("CRASHED", f"The store has lost acknowledged writes of this run: {error}"[:500])


def _crashed(message: str) -> Ended:
    """The attempt was continued as often as one may be."""
    return Ended(State.FAILED, "CRASHED", message)


def _success(attempt: Attempt, output: Any) -> Ended:
    """A run that would succeed with an open unknown is settled first; until it can be, it ends as failed."""
    unsettled = [row for row in attempt.rows if row.open]
    if not unsettled:
        return Ended(State.SUCCEEDED, output=output)
    names = ", ".join(sorted({row.tool for row in unsettled}))
    code = unsettled[0].error.code if unsettled[0].error is not None else "TOOL_OUTCOME_UNKNOWN"
    message = f"The run's work is done, but it is not known whether {names} had an effect ({code})."
    return Ended(State.FAILED, "BUG" if code == "BUG" else "TOOL_RETRIES", message, output)


async def _conclude(attempt: Attempt, outcome: Ended | Signal) -> None:
    try:
        await attempt.drain_pending()
    except (StaleFence, StoreUnreachable):
        raise
    except MakegoodError as error:
        outcome = _distrusted(error)
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
        await _anew_or_end(attempt, _crashed(str(error)))
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
    cost_s = attempt_cost_s(seen.p50_s, seen.samples, attempt.agent.timeouts.run)
    needs_cleaning = any(row.open for row in attempt.rows) or _has_to_undo(attempt)
    code = str(ended.code)
    decision = decide_next_attempt(
        code, attempt.number, attempt.agent.max_attempts, total_s, cost_s, needs_cleaning
    )
    if isinstance(decision, NextAttempt) and not decision.clean_first:
        await _next_attempt(attempt, ended)
        return
    if isinstance(decision, End) and decision.reason == "does_not_fit":
        data = {
            "what": "attempt",
            "reason": "deadline",
            "needed_s": decision.needed_s,
            "left_s": decision.left_s,
        }
        attempt.events.append(NewEvent("llm.retry_skipped", data))
    await _end(attempt, ended)


def _has_to_undo(attempt: Attempt) -> bool:
    """Under rollback, effects that stand are undone before the next attempt."""
    tools = attempt.agent.tools
    return any(
        row.has_effect and row.tool in tools and attempt.agent.tool_on_failure(tools[row.tool]) == "rollback"
        for row in attempt.rows
    )


async def _next_attempt(attempt: Attempt, ended: Ended) -> None:
    event = NewEvent("attempt.ended", {"code": ended.code, "message": ended.message})
    await _release(attempt, "queued", [event], continued=False)
    await attempt.env.publish(attempt.run_id)


async def _release(attempt: Attempt, target: Any, events: list[NewEvent], **how: Any) -> None:
    op = runs.release_run(
        **attempt.fresh(),
        target=target,
        sends=attempt.sends.stored(),
        l2_used_ms=round(attempt.l2_spent_s() * 1000),
        latencies=[] if how["continued"] else [_run_sample(attempt)],
        new_events=[*attempt.take_events(), *events],
        **how,
    )
    await attempt.env.store.do(op)


async def _end(attempt: Attempt, ended: Ended) -> None:
    output, digests = await attempt.spilled(orjson.dumps(ended.output))
    result = {"state": str(ended.state), "code": ended.code}
    events = [NewEvent("attempt.ended", {"code": ended.code}), NewEvent("run.ended", result)]
    op = runs.end_run(
        **attempt.fresh(),
        state=ended.state,
        code=ended.code,
        message=ended.message,
        output=output,
        left_to_undo=_has_to_undo(attempt),
        latencies=[_run_sample(attempt)],
        blob_digests=digests,
        new_events=[*attempt.take_events(), *events],
    )
    why = f" ({ended.code}: {ended.message})" if ended.code else ""
    log.info("run %s of agent %s ended %s%s", attempt.run_id, attempt.agent.name, ended.state, why)
    faults.point("before_end")
    await attempt.env.store.do(op)
    faults.point("after_end")


def _run_sample(attempt: Attempt) -> Sample:
    used_s = int(attempt.claim.record.get("l3_used_ms", 0)) / 1000 + time.monotonic() - attempt.began_s
    return sample(f"run:{attempt.agent.name}", used_s)


def _limit_text(attempt: Attempt, reached: LimitReached) -> str:
    limits = {
        "step": attempt.agent.timeouts.step,
        "run": attempt.agent.timeouts.run,
        "total": attempt.agent.total_s(),
    }
    names = {"step": "A step", "run": "The attempt", "total": "The run"}
    level = reached.level if reached.level in names else "step"
    return f"{names[level]} did not end within its limit of {limits[level]:g} s ({reached.where or 'between steps'})."

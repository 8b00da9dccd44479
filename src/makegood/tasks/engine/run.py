"""A claimed run: open its attempt and execute it; every way out of an attempt ends in `conclude`."""

from __future__ import annotations

import asyncio
import logging
import math
import time

import orjson

from makegood.errors import MakegoodError, RunNotFound, StaleFence, StoreUnreachable, ToolError
from makegood.spawn import spawn
from makegood.store.codes import OutOfOrder
from makegood.store.ops import runs
from makegood.store.ops.reads import read_steps
from makegood.store.states import State
from makegood.tasks.engine.attempt import Attempt, Sends
from makegood.tasks.engine.bodies import is_bug
from makegood.tasks.engine.code import run_code
from makegood.tasks.engine.conclude import Ended, conclude, crashed, distrusted
from makegood.tasks.engine.env import Env
from makegood.tasks.engine.loop import run_loop
from makegood.tasks.engine.response import Unusable, usable
from makegood.tasks.engine.salvage import salvage
from makegood.tasks.engine.signals import EndRun, Signal
from makegood.tasks.engine.step import observed
from makegood.tasks.engine.traces import end_attempt
from makegood.tasks.flows import Flow, resolved, run_async
from makegood.tasks.history import Decision
from makegood.tasks.journal import load_journal
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.facts import render_facts
from makegood.tasks.rules.repeated import observe_step
from makegood.tasks.spans import attempt_span

log = logging.getLogger("makegood.run")

GOALS = ("Answer the request above; no attempt has answered it yet.",)
"""What is open when an attempt begins anew."""


async def open_attempt(env: Env, claim: runs.Claim) -> Attempt:
    """The attempt that a claim stands for, with its journal and, when it is continued, its decisions."""
    record, agent = claim.record, env.agents[claim.record["agent"]]
    number = int(record["attempt"])
    now_s = time.monotonic()
    began_ms = int(record.get("resumed_at") or record["started_at"])
    used_ms = int(record.get("l3_used_ms", 0)) + claim.now_ms - int(record["claimed_at"])
    fields = {"input": record["input"].encode()}
    whole = await run_async(env.store, resolved(claim.run_id, fields))
    unlimited = Deadline(math.inf, "run")
    attempt = Attempt(env, agent, claim, number, unlimited, math.inf, orjson.loads(whole["input"]))
    attempt.run_from_s = now_s - used_ms / 1000
    attempt.total_from_s = now_s - (claim.now_ms - began_ms) / 1000
    attempt.renew_limits()
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
    attempt.written = {
        entry.row_id: entry.row.started_at_ms or 0
        for entry in entries
        if entry.row.status != "planned" and entry.row.undo is None  # what cleanup has touched is its own
    }
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
    at_once: list[asyncio.Task[None]] = []

    def stopped() -> None:
        """Before its bodies are quiet: until then, whoever claims a run whose claim was lost could make a call again."""
        if attempt.cancel.cause == "disposed" and not attempt.env.draining.is_set():
            at_once.append(spawn(salvage(attempt), name="salvage"))

    leave = attempt.cancel.follow(stopped)
    attempt.span = attempt_span(attempt.env.spans, attempt.run_id, attempt.agent.name, attempt.number)
    try:
        outcome = await _outcome(attempt)
        await attempt.http.aclose()
        await conclude(attempt, outcome)
    except StaleFence as error:
        log.warning("%s", error)
        attempt.left_as = ("lost", "STALE_FENCE")
        await salvage(attempt)  # once more, with what has become of its calls
    except MakegoodError as error:
        log.error("run %s: its end could not be recorded: %s", attempt.run_id, error)
        attempt.env.report_bug(error, {"agent": attempt.agent.name, "run_id": attempt.run_id})
    finally:
        leave()
        await attempt.http.aclose()
        for task in at_once:
            await task
        end_attempt(attempt)


async def _outcome(attempt: Attempt) -> Ended | Signal:
    try:
        attempt.check_cancel()
        if attempt.claim.record.get("cannot_continue"):
            return crashed("The run lost its worker more often than one attempt may.")
        work = run_code if attempt.agent.code is not None else run_loop
        output, _ = usable(await work(attempt), attempt.env.secret_fields)
        await attempt.drain_pending()
        return Ended(State.SUCCEEDED, output=output)  # an open unknown is settled first: the store sees to it
    except Signal as signal:
        return signal
    except (StaleFence, StoreUnreachable):
        raise
    except Unusable as error:
        return EndRun("BUG", str(error))
    except ToolError as error:  # what an agent's code lets pass is its result, not a defect of the system
        return EndRun("BUG", f"The agent's code did not handle a failed call: {error.message}"[:500])
    except (OutOfOrder, RunNotFound) as error:
        return distrusted(error)
    except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        # Nobody cancels this task: whatever arrives here came out of the agent's own code, and must not end the loop.
        attempt.env.report_bug(error, {"agent": attempt.agent.name, "run_id": attempt.run_id})
        return EndRun("BUG", f"{type(error).__name__}: {error}"[:500])

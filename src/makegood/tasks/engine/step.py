"""A decided step: its intent is durable first, then its calls run, then it ends (invariants 1 and 2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from makegood.spawn import spawn
from makegood.store import faults
from makegood.store.ops import steps
from makegood.store.ops.args import NewEvent, Sample
from makegood.tasks.engine.attempt import Attempt, Sends
from makegood.tasks.engine.bodies import needs_slot
from makegood.tasks.engine.call import Calling
from makegood.tasks.engine.outcome import Outcome
from makegood.tasks.engine.plan import StepPlan, ToRun
from makegood.tasks.engine.signals import EndRun, LimitReached
from makegood.tasks.history import DecidedCall, Decision
from makegood.tasks.journal import Entry, intent_json, outcome_json
from makegood.tasks.latencies import sample
from makegood.tasks.rules import counting
from makegood.tasks.rules.deadline import Deadline, outermost
from makegood.tasks.rules.repeated import Outcome as Observed
from makegood.tasks.rules.repeated import observe_step


@dataclass(frozen=True, slots=True)
class Decided:
    """A step whose decision is made: `number` is its place, `base` the step that must have ended before it."""

    number: int
    base: int
    step: int
    decision: Decision
    plan: StepPlan
    deadline: Deadline
    began_s: float
    samples: tuple[Sample, ...] = ()
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Started:
    """A call that is about to run: with a `reserved` slot, or still `planned` (it waits for leave or a slot)."""

    run: ToRun
    reserved: bool
    planned: bool


async def perform(attempt: Attempt, decided: Decided) -> list[Outcome]:
    """Write the intent, run the calls, send their outcomes and the step's end. Returns the outcomes in order.

    Raises StaleFence when the run is someone else's by now; then nothing was started.
    """
    started = [_prepare(attempt, run) for run in decided.plan.runs]
    # Before anything is awaited, so that calls that a coroutine agent makes at the same time see each other (J29).
    attempt.entries |= {run.row_id: Entry(run.row) for run in decided.plan.runs}
    attempt.claimed |= decided.plan.claimed
    attempt.asked |= decided.plan.asked
    try:
        await _write_intent(attempt, decided, started)
    except BaseException:
        for each in started:
            if each.reserved:
                attempt.env.threads.release()
        raise
    faults.point("after_intent")
    return await finish(attempt, decided, started)


async def finish(
    attempt: Attempt, decided: Decided, started: Sequence[Started], known: Sequence[Outcome] = ()
) -> list[Outcome]:
    """Run the calls of a step whose intent is durable, send the outcomes (also those `known`) and the step's end."""
    if len(started) == 1 and not known:  # nothing runs beside it: no task of its own
        outcomes = [await _call(attempt, started[0], decided.deadline)]
        await _send(attempt, outcomes, decided, ends=True)
    else:
        calls = [spawn(_call(attempt, each, decided.deadline), name="call") for each in started]
        calls += [spawn(_given(outcome), name="call-known") for outcome in known]
        outcomes = await _record(attempt, decided, calls)
    if not any(outcome.left_open for outcome in outcomes):
        attempt.ended_step = max(attempt.ended_step, decided.number)
        attempt.step_began_s = None
    return outcomes


def _prepare(attempt: Attempt, run: ToRun) -> Started:
    """Whether the call starts with its intent, or waits (for a breaker's leave or a slot) and is planned.

    A repeat is never planned: its row was started before, and an effect of it may be there.
    """
    if attempt.env.breakers.rejects(run.tool.breaker) is not None:
        return Started(run, reserved=False, planned=not run.repeat)
    if not needs_slot(run):
        return Started(run, reserved=False, planned=False)
    reserved = attempt.env.threads.try_reserve()
    return Started(run, reserved=reserved, planned=not reserved and not run.repeat)


async def _write_intent(attempt: Attempt, decided: Decided, started: Sequence[Started]) -> None:
    body, digests = await attempt.spilled(decided.decision.to_json())
    rows = []
    for each in started:
        raw, more = await attempt.spilled(intent_json(each.run.row))
        digests += more
        status = "planned" if each.planned else "started"
        rows.append(steps.RowIntent(each.run.row_id, raw, status, each.run.row.effect != "read"))
    op = steps.write_intent(
        **attempt.fresh(),
        step=decided.number,
        base=decided.base,
        counts=decided.counts,
        decision=body,
        rows=rows,
        blob_digests=digests,
        new_events=[*attempt.take_events(), *_opening(attempt, decided, started)],
    )
    # The end of the step before is on its way on the same connection; the intent names it and is refused without it.
    reply = attempt.env.store.send(op)
    attempt.pending.append(reply)
    await attempt.drain_pending()
    now_ms = reply.result().now_ms
    for each in started:
        if not each.planned:
            attempt.written[each.run.row_id] = now_ms - round(each.run.key_age_s * 1000)
    attempt.sends, attempt.l2_used_s = Sends(), 0.0


def _opening(attempt: Attempt, decided: Decided, started: Sequence[Started]) -> list[NewEvent]:
    events = [NewEvent("step.started", {}, decided.step)] if decided.counts else []
    for each in started:
        if not each.planned:
            row = each.run.row
            events.append(NewEvent("tool.started", {"tool": row.tool}, decided.step, row.call_key))
    for call in decided.plan.calls:
        if call.answer is not None:  # answered without a call: no row, but not without a trace
            data = {"tool": call.name[:80], "status": "not_called", "code": call.answer["error"]["code"]}
            events.append(NewEvent("tool.ended", data, decided.step))
        if call.kind == "replay":
            key = (call.row_id or "").rpartition("#")[0]
            entry = attempt.entries.get(call.row_id or "")
            counts = counting.replayed(call.name, has_effect=entry is not None and entry.row.effect != "read")
            events.append(NewEvent("tool.replayed", {"tool": call.name}, decided.step, key, counts))
    return events


async def _call(attempt: Attempt, each: Started, deadline: Deadline) -> Outcome:
    return await Calling(attempt, each.run, deadline, each.run.repeat, each.reserved, each.planned).perform()


async def _given(outcome: Outcome) -> Outcome:
    return outcome


async def _record(attempt: Attempt, decided: Decided, calls: list[asyncio.Task[Outcome]]) -> list[Outcome]:
    """Send each outcome when it is known; the last one travels with the step's end."""
    if not calls:
        await _send(attempt, [], decided, ends=True)
    waiting: set[asyncio.Task[Outcome]] = set(calls)
    left_open = False
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            known = [task.result() for task in done]
            left_open = left_open or any(outcome.left_open for outcome in known)
            await _send(attempt, known, decided, ends=not waiting and not left_open)
    finally:
        if waiting:  # the run is someone else's, or the store is gone: what still runs stops
            attempt.cancel.ask("disposed")
            await asyncio.wait(waiting)
        for (
            task
        ) in calls:  # the first error is raised; the others are heard, and so is what became of the calls
            if (
                task.done()
                and not task.cancelled()
                and task.exception() is None
                and not task.result().left_open
            ):
                entry = task.result().entry
                attempt.entries[entry.row_id] = entry
    return [task.result() for task in calls]


async def _send(attempt: Attempt, given: Sequence[Outcome], decided: Decided, *, ends: bool) -> None:
    """Send what is final; a call that is left open for the next worker keeps its row, and its step does not end."""
    outcomes = [outcome for outcome in given if not outcome.left_open]
    if len(outcomes) < len(given):
        ends = False
        if not outcomes:
            return
    stored, digests, samples = [], [], [] if not ends else list(decided.samples)
    for outcome in outcomes:
        body, more = await attempt.spilled(outcome_json(outcome.entry))
        digests += more
        stored.append(outcome.to_store(body))
        samples += outcome.samples
        attempt.entries[outcome.entry.row_id] = outcome.entry
    events = [*attempt.take_events(), *(outcome.event() for outcome in outcomes)]
    if ends and decided.counts:
        taken_s = time.monotonic() - decided.began_s
        events.append(NewEvent("step.ended", {"ms": round(taken_s * 1000)}, decided.step))
        samples.append(sample(f"step:{attempt.agent.name}", taken_s))
    op = steps.record_outcomes(
        **attempt.fresh(),
        ended_step=decided.number if ends else 0,
        outcomes=stored,
        latencies=samples,
        blob_digests=digests,
        new_events=events,
    )
    faults.point("before_outcome")
    attempt.pending.append(attempt.env.store.send(op))
    faults.point("after_outcome")


def judge(attempt: Attempt, decided: Decided, outcomes: Sequence[Outcome]) -> None:
    """Raise what the outcomes of a step mean for the attempt: cancel first, then limits, then failures."""
    attempt.check_cancel()
    level = outermost({outcome.level for outcome in outcomes})
    if level is not None and level != "call":
        raise LimitReached(level, "a tool call")
    attempt.check(decided.deadline, "step")
    for outcome in outcomes:
        if outcome.end_run is not None:
            raise outcome.end_run
    if attempt.stopping:
        raise EndRun("TOOL_RETRIES", "A tool did not stop when its limit was reached.")
    attempt.repeats = observe_step(attempt.repeats, observed(decided.plan.calls, attempt.entries))
    streak = attempt.repeats.tripped
    if streak is not None:
        raise EndRun(
            "REPEATED_FAILURE",
            f"{streak.tool} failed {streak.count} times in a row with: {streak.error}"[:500],
        )


def observed(calls: Sequence[DecidedCall], entries: Mapping[str, Entry]) -> list[Observed]:
    """The calls of a step as the detector of repeated failures sees them (CONTRACT A5)."""
    seen = []
    for call in calls:
        error: Mapping[str, Any] = (call.answer or {}).get("error", {})
        entry = entries.get(call.row_id or "") if call.kind == "run" else None
        if entry is not None:
            code, message = (entry.row.error.code, entry.row.error.message) if entry.row.error else (None, "")
        else:
            code, message = error.get("code"), error.get("message", "")
        seen.append(Observed(call.name, call.digest, code, message))
    return seen

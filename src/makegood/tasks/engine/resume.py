"""A step that was cut by the loss of its worker goes on from its stored decision (invariants 1, 8, 16).

The model is never asked again. Calls with an outcome keep it; calls that never started start; a call that was
under way is repeated under its key when that is safe, else its outcome is unknown and the run ends for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from makegood.errors import ArgumentsInvalid
from makegood.store.ops.args import NewEvent
from makegood.store.ops.steps import Pause
from makegood.tasks.engine import step as steps
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.outcome import Outcome
from makegood.tasks.engine.plan import StepPlan, ToRun
from makegood.tasks.engine.signals import EndRun
from makegood.tasks.history import DecidedCall, Decision
from makegood.tasks.journal import Entry
from makegood.tasks.rules import counting
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.rows import Row, RowError, Status
from makegood.tasks.rules.tool_retry import may_repeat


async def resume_step(
    attempt: Attempt,
    number: int,
    base: int,
    step: int,
    decision: Decision,
    deadline: Deadline,
    kwargs: Mapping[str, Any],
) -> None:
    """Finish a decided step. `kwargs` are the checked arguments by call id, where the caller has them."""
    plan = StepPlan(decision.calls, (), attempt.claimed, attempt.asked)
    began_s = time.monotonic() - attempt.l2_used_s  # with what the workers before have spent on it
    decided = steps.Decided(
        number, base, step, decision, plan, deadline, began_s, counts=decision.kind == "model"
    )
    started: list[steps.Started] = []
    known: list[Outcome] = []
    for call in decision.calls:
        entry = attempt.entries.get(call.row_id or "")
        if call.kind != "run" or entry is None or entry.row.status not in ("planned", "started"):
            continue
        made = _taken_up(attempt, call, entry, kwargs.get(call.id))
        if entry.waits and not isinstance(made, Outcome):
            await attempt.note(None, [], pause=Pause(entry.row_id, False))
        if isinstance(made, Outcome):
            known.append(made)
        else:
            started.append(made)
    outcomes = await steps.finish(attempt, decided, started, known)
    steps.judge(attempt, decided, outcomes)


def _taken_up(
    attempt: Attempt, call: DecidedCall, entry: Entry, kwargs: Mapping[str, Any] | None
) -> steps.Started | Outcome:
    row = entry.row
    tool = attempt.agent.tools.get(row.tool)
    if tool is None:
        return _unknown(entry, f"{row.tool} is no tool of this agent any more.")
    age_ms = attempt.env.breakers.now_ms() - (row.started_at_ms or 0)
    was_started = row.status == "started"
    ttl_s = float("inf") if tool.key_ttl is None else tool.key_ttl
    if was_started and not may_repeat(tool.effect, age_ms / 1000, ttl_s, nothing_left=False):
        return _unknown(
            entry, f"{row.tool} was under way when its worker was lost; it cannot be repeated safely."
        )
    try:
        checked = _kwargs(tool, call, row, kwargs)
    except ArgumentsInvalid as error:
        return _unknown(entry, f"The recorded call of {row.tool} can no longer be made: {error}")
    if was_started and not entry.waits:
        attempt.events.append(_taken_up_event(attempt, row))
    repeat = was_started and tool.effect != "read"
    run = ToRun(
        replace(row, status="planned"),
        tool,
        checked,
        repeat=repeat,
        key_age_s=max(0.0, age_ms / 1000),
        tries_before=row.tries + (was_started and not entry.waits),
    )
    return steps.Started(run, reserved=False, planned=not was_started)


def _taken_up_event(attempt: Attempt, row: Row) -> NewEvent:
    """The try that the worker before did not end, and that another one follows."""
    cause = "WORKER_LOST" if attempt.claim.record.get("released") == "lost" else "HANDED_OVER"
    data = {
        "tool": row.tool,
        "retry": row.tries + 1,
        "delay_s": 0,
        "cause": cause,
        "message": "",
        "result": "aborted",
    }
    counts = (counting.retried("tool", cause), counting.call_result(row.tool, "aborted"))
    return NewEvent("tool.retry", {**data, "level": None}, row.step, row.call_key, counts)


def _kwargs(tool: Any, call: DecidedCall, row: Row, kwargs: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if kwargs is not None and call.same_args:
        return kwargs
    bound: Mapping[str, Any] = tool.bind_recorded(row.args, kwargs or {})
    return bound


def _unknown(entry: Entry, message: str) -> Outcome:
    """No outcome was recorded: `TOOL_OUTCOME_UNKNOWN`, or for a call that never started `TOOL_NOT_STARTED` (F3)."""
    row = entry.row
    began = row.status == "started"
    error = RowError("TOOL_OUTCOME_UNKNOWN" if began else "TOOL_NOT_STARTED", message)
    status: Status = "aborted_before_dispatch"
    if began:
        status = "failed" if row.effect == "read" else "unknown"
    ended = replace(row, status=status, error=error, tries=row.tries + (began and not entry.waits))
    end_run = EndRun("CRASHED", message)
    if not began or entry.waits:
        return Outcome(Entry(ended), end_run=end_run)
    counts = (counting.call_result(row.tool, "aborted"),)
    return Outcome(Entry(ended), end_run=end_run, result="aborted", counts=counts)


def recorded_kwargs(attempt: Attempt, decision: Decision) -> dict[str, Mapping[str, Any]]:
    """Checked arguments by call id, parsed again from the stored message; what no longer parses is left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for part in decision.message.get("tool_calls") or ():
        tool = attempt.agent.tools.get(part["function"]["name"])
        if tool is None:
            continue
        try:
            found[part["id"]] = tool.parse(part["function"]["arguments"])
        except ArgumentsInvalid:
            continue
    return found

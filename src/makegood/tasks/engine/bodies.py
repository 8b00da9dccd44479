"""How a call's body is started, and what its exception means, wherever it ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from makegood.tasks.body import Running
from makegood.tasks.child import FATAL
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.plan import ToRun
from makegood.tasks.http import CallFacts
from makegood.tasks.isolate import ChildFailed, ProcessBody
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.failures import ToolFailure, classify_tool_error
from makegood.tasks.rules.rows import Row
from makegood.tasks.runners import TaskBody, ThreadBody


def needs_slot(run: ToRun) -> bool:
    """Whether the tool runs in a thread of the pool."""
    return not run.tool.is_async and run.tool.isolation == "thread"


def start_body(attempt: Attempt, run: ToRun, deadline: Deadline, *, repeat: bool) -> Running:
    """Start the tool's body in the way it asks for; `repeat`: an earlier try may have had its effect."""
    row = run.row
    facts = CallFacts(attempt.run_id, row.idempotency_key, deadline, attempt.env.may_act)
    where: Mapping[str, Any] = {
        "run_id": attempt.run_id,
        "attempt": attempt.number,
        "step": row.step,
        "call_key": row.call_key,
    }
    if run.tool.isolation == "process":
        return ProcessBody(run.tool, facts, where, run.tool.wire_args(run.kwargs), repeat=repeat)
    if run.tool.is_async:
        return TaskBody(run.tool, facts, where, attempt.http, run.kwargs)
    return ThreadBody(run.tool, facts, where, attempt.http, run.kwargs, attempt.env.threads)


def is_bug(row: Row) -> bool:
    """Whether the call failed with what is a bug of its tool."""
    return row.error is not None and row.error.code in ("BUG", "PROCESS_DIED")


def is_fatal(error: BaseException) -> bool:
    """Whether a tool raised what ends its run, wherever it ran."""
    return isinstance(error, FATAL) or (isinstance(error, ChildFailed) and error.fatal)


def classify(error: BaseException, *, repeat: bool) -> ToolFailure:
    """What a try's exception means, wherever it ran."""
    if isinstance(error, ChildFailed):
        return error.failure
    return classify_tool_error(error, repeat=repeat)

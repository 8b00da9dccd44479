"""How a call's body is started, and what its exception means, wherever it ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from makegood.tasks.body import Running
from makegood.tasks.child import FATAL
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.plan import ToRun
from makegood.tasks.http import CallFacts
from makegood.tasks.isolate import ChildFailed, ChildResidue, ProcessBody
from makegood.tasks.residue import Owner, Residue
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
    owner = Owner(attempt.run_id, attempt.claim.fence, attempt.number, row.step, row.call_key, row.generation)
    if run.tool.isolation == "process":
        args = run.tool.wire_args(run.kwargs)
        mine = ChildResidue(owner, attempt.env.store, attempt.run, attempt.env.secret_fields)
        return ProcessBody(run.tool, facts, where, args, attempt.env.lease, mine, repeat=repeat)

    def residue(is_stopped: Callable[[], bool]) -> Residue:
        return residue_of(attempt, owner, deadline, is_stopped)

    if run.tool.is_async:
        return TaskBody(run.tool, facts, where, attempt.http, run.kwargs, residue)
    return ThreadBody(run.tool, facts, where, attempt.http, run.kwargs, attempt.env.threads, residue)


def residue_of(attempt: Attempt, owner: Owner, deadline: Deadline, is_stopped: Callable[[], bool]) -> Residue:
    """What a call or hook declares and locks, under the fence of its attempt; one that is stale stops the attempt."""
    return Residue(
        owner,
        attempt.env.store,
        deadline,
        attempt.run,
        attempt.locks,
        attempt.op,
        lambda: attempt.cancel.ask("disposed"),
        is_stopped,
        attempt.env.secret_fields,
        in_thread=attempt.env.threads.call,
    )


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

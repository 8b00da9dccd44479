"""The loop of a declared agent: ask the model, run what it asks for, until it answers."""

from __future__ import annotations

import time
from typing import Any

from makegood.errors import DeclarationError, InvalidInput, OutputInvalid
from makegood.tasks import history
from makegood.tasks.engine import step as steps
from makegood.tasks.engine.ask import Answer, ask
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.hooks import run_hook, run_snapshot
from makegood.tasks.engine.plan import Place, StepPlan, plan_step
from makegood.tasks.engine.resume import recorded_kwargs, resume_step
from makegood.tasks.engine.signals import EndRun, HandOver
from makegood.tasks.history import Decision
from makegood.tasks.model.types import ModelReply
from makegood.tasks.rules.deadline import Deadline


async def run_loop(attempt: Attempt) -> Any:
    """Execute the attempt from where it stands; returns the run's output."""
    first = first_message(attempt)
    await _finish_cut_step(attempt)
    while True:
        if attempt.decisions and not attempt.decisions[-1].calls and not attempt.decisions[-1].notes:
            return attempt.agent.parse_output(text_of(attempt.decisions[-1]))
        await _one_step(attempt, first)


async def _finish_cut_step(attempt: Attempt) -> None:
    """A step whose worker was lost goes on from its stored decision."""
    number = len(attempt.decisions)
    if number <= attempt.ended_step:
        return
    decision = attempt.decisions[-1]
    if not decision.calls and not decision.notes:  # the answer itself; only the run's end is missing
        return
    kwargs = recorded_kwargs(attempt, decision)
    await resume_step(attempt, number, number - 1, number, decision, attempt.step_deadline(), kwargs)


async def _one_step(attempt: Attempt, first: str) -> None:
    number = len(attempt.decisions) + 1
    _check_boundary(attempt, number)
    began_s, deadline = time.monotonic() - attempt.l2_used_s, attempt.step_deadline()
    if number == 1:
        await run_snapshot(attempt, deadline)
    await run_hook(attempt, attempt.agent.before_step, number, deadline, "before_step")
    messages = history.build(
        attempt.agent.system, first, attempt.facts, attempt.decisions, attempt.entries, attempt.number
    )
    check_size(messages)
    tools = [tool.schema for tool in attempt.agent.tools.values()]
    answer = await ask(attempt, number, deadline, messages, tools)
    attempt.check(deadline, "model reply")
    plan = _plan(attempt, answer.reply, number)
    notes, output = _ending(attempt, answer.reply, plan)
    if not plan.calls and not notes:
        await run_hook(attempt, attempt.agent.before_end, number, deadline, "before_end", output)
    facts = attempt.facts if number == 1 else ""
    decision = Decision(assistant_message(answer.reply), plan.calls, notes, facts=facts)
    decided = _decided(number, decision, plan, deadline, began_s, answer)
    attempt.decisions.append(decision)
    outcomes = await steps.perform(attempt, decided)
    steps.judge(attempt, decided, outcomes)


def _check_boundary(attempt: Attempt, number: int) -> None:
    """A step may begin: not cancelled, not shutting down, within the step limit (CONTRACT G6)."""
    attempt.renew_limits()
    attempt.check(attempt.run, "step")
    if attempt.hands_over:
        raise HandOver
    limit = attempt.agent.budgets.steps
    if limit is not None and number > limit:
        raise EndRun("STEP_LIMIT", f"The attempt took {limit} steps without an answer, which is its limit.")


def _plan(attempt: Attempt, reply: ModelReply, number: int) -> StepPlan:
    place = Place(attempt.run_id, attempt.number, number, attempt.env.breakers.now_ms())
    return plan_step(
        attempt.agent,
        reply.tool_calls,
        attempt.rows,
        attempt.claimed,
        attempt.asked,
        place,
        attempt.env.secret_fields,
    )


def _ending(attempt: Attempt, reply: ModelReply, plan: StepPlan) -> tuple[tuple[str, ...], Any]:
    """An answer that is not of the declared form is sent back to the model; else the output."""
    if plan.calls:
        return (), None
    try:
        return (), attempt.agent.parse_output(reply.text)
    except OutputInvalid as error:
        return (f"{error} Answer again with that JSON object alone.",), None


def _decided(
    number: int, decision: Decision, plan: StepPlan, deadline: Deadline, began_s: float, answer: Answer
) -> steps.Decided:
    return steps.Decided(number, number - 1, number, decision, plan, deadline, began_s, (answer.latency,))


def assistant_message(reply: ModelReply) -> dict[str, Any]:
    """The reply as a message of the history, its tool arguments the provider's raw text (CONTRACT B3)."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}
            for part in reply.tool_calls
        ]
    return message


def text_of(decision: Decision) -> str:
    """The text of a stored decision."""
    return decision.message.get("content") or ""


def first_message(attempt: Attempt) -> str:
    """The first user message of the run; an input that the agent refuses ends the run."""
    try:
        return attempt.agent.first_message(attempt.input)
    except (InvalidInput, DeclarationError) as error:
        raise EndRun("INVALID_REQUEST", str(error)) from error
    except Exception as error:
        attempt.env.report_bug(
            error, {"agent": attempt.agent.name, "run_id": attempt.run_id, "hook": "prompt"}
        )
        raise EndRun("BUG", f"prompt failed: {type(error).__name__}: {error}"[:500]) from error


def check_size(messages: list[dict[str, Any]]) -> None:
    """Refuse a history beyond 8 MiB before it is sent."""
    size = sum(len(message.get("content") or "") for message in messages)
    if size > history.MAX_BYTES:
        raise EndRun(
            "CONTEXT_WINDOW_EXCEEDED", f"The history has {size} characters, more than {history.MAX_BYTES}."
        )

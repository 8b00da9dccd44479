"""What the engine says in its spans: one per model request, one per try of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.model.types import Failure, ModelReply
from makegood.tasks.rules.rows import Row
from makegood.tasks.spans import NO_SPAN, SafeSpan


def chat_span(
    attempt: Attempt, model: str, step: int, number: int, messages: Sequence[Mapping[str, Any]]
) -> SafeSpan:
    """A request to the model begins."""
    span = attempt.span.child("chat", model, model=model, step=step, number=number)
    span.attach(messages=messages)
    return span


def end_chat(span: SafeSpan, outcome: ModelReply | Failure) -> None:
    """The request was answered, or failed."""
    if isinstance(outcome, ModelReply):
        span.note(input_tokens=outcome.usage.prompt_tokens, output_tokens=outcome.usage.completion_tokens)
        span.attach(reply=outcome)
        span.end()
    else:
        span.end(str(outcome.code))


def call_span(attempt: Attempt, row: Row, number: int) -> SafeSpan:
    """A try of a call begins."""
    span = attempt.span.child(
        "tool", row.tool, tool=row.tool, call_key=row.call_key, step=row.step, number=number
    )
    span.attach(arguments=row.args)
    return span


def end_call(span: SafeSpan, row: Row) -> None:
    """The try returned; `row` is what became of it."""
    span.attach(result=row.response)
    span.end("" if row.error is None else row.error.code)


def end_attempt(attempt: Attempt) -> None:
    """The attempt has left this worker, in the state that `attempt.left_as` names."""
    if attempt.span is NO_SPAN:
        return
    calls = sum(row.attempt == attempt.number for row in attempt.rows)
    attempt.span.note(steps=attempt.ended_step, calls=calls)
    state, code = attempt.left_as or ("lost", "NOT_RECORDED")
    attempt.span.note(state=state)
    attempt.span.end(code)

"""What type checkers understand of declarations; read by mypy (test_typing.py), never run.

A line that must be refused carries a `type: ignore` with its code; an unused one is an error.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Literal, assert_type

from pydantic import BaseModel, SecretStr

from makegood import (
    ALL,
    NOT_DONE,
    UNKNOWN,
    Agent,
    BreakerPolicy,
    Budgets,
    RecordedCall,
    Result,
    RetryPolicy,
    Timeouts,
    ToolError,
    agent,
    resource,
    tool,
)
from makegood.tasks.tool import Tool


class Order(BaseModel):
    """An input."""

    sku: str


@tool(effect="idempotent", timeout=8, identity=("customer",), breaker="tickets")
async def create_ticket(ctx: object, customer: str, title: str = "") -> dict[str, str]:
    """Create a ticket."""
    return {customer: title}


@tool(effect="read")
def look_up(ctx: Any, id: int) -> str:  # noqa: A002
    """Look it up."""
    return str(id)


@create_ticket.compensate
async def close_ticket(ctx: Any, call: RecordedCall) -> None:
    """Undo it."""
    assert_type(call.outcome, Literal["succeeded", "unknown"])


@create_ticket.compensate(handles_unknown=True, effect="write")
def close_again(ctx: Any, call: RecordedCall) -> int:
    """Undo it."""
    return 1


@create_ticket.probe
async def find_ticket(ctx: Any, call: RecordedCall) -> object:
    """Find it."""
    return NOT_DONE if call.response is None else UNKNOWN


@resource("temp_table")
async def drop_table(ctx: Any, id: str, prior: object | None) -> None:  # noqa: A002
    """Drop it."""


@agent(name="nightly", model="openai/gpt-5-mini", tools=[create_ticket, look_up])
async def nightly(ctx: Any, input: Any) -> dict[str, int]:  # noqa: A002
    """Code instead of a prompt."""
    return {}


support = Agent(
    name="support",
    model="openai/gpt-5-mini",
    system="Help.",
    tools=[create_ticket, look_up],
    model_args={"api_key": SecretStr("x")},
    fallback_models=["a/b"],
    timeouts=Timeouts(call=5, total=None),
    budgets=Budgets(steps=5),
    retry=RetryPolicy(backoff=0),
    breaker=BreakerPolicy(failures=3),
    input=Order,
    prompt=lambda order: f"{order.sku}",
)


def declarations_keep_their_types(result: Result) -> None:
    """Signatures survive the decorators."""
    assert_type(look_up(None, 3), str)
    waiting = assert_type(create_ticket(None, "c", title="t"), Coroutine[Any, Any, dict[str, str]])
    waiting.close()
    assert_type(close_again(None, RecordedCall("t", {}, None, "unknown", "i", "c", 1, 1)), int)
    assert_type(nightly, Agent)
    assert_type(support.tools["look_up"].timeout, float | None)
    assert_type(result.state, str)
    assert_type(result.usage.cost_usd, float | None)
    assert_type(ToolError("no", code="NO").code, str | None)
    if result.error is not None:
        assert_type(result.error.code, str)
    anything: Tool = look_up
    assert_type(anything.name, str)


def mistakes_are_found() -> None:
    """Each of these is refused by the checker."""
    look_up(None, "three")  # type: ignore[arg-type]
    look_up(None)  # type: ignore[call-arg]
    tool(effect="delete", identity=ALL)  # type: ignore[arg-type]
    tool(effect="write", identity=NOT_DONE)  # type: ignore[arg-type]
    Timeouts(call=None)  # type: ignore[arg-type]
    Agent(name="a", model="m", tools=[print])  # type: ignore[list-item]
    Agent(name="a")  # type: ignore[call-arg]
    agent(name="a", model="m", retires=3)  # type: ignore[call-arg]
    create_ticket.compensate(effect="read")  # type: ignore[call-overload]

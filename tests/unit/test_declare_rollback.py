"""Under rollback every effect can be undone, or the agent is refused when it is declared (CONTRACT E10)."""

from __future__ import annotations

from typing import Any

import pytest

from makegood.errors import DeclarationError
from makegood.tasks.agent import Agent, agent
from makegood.tasks.records import ALL
from makegood.tasks.tool import Tool, tool

MODEL = "openai/any"


def declared(name: str = "charge", effect: Any = "write", *, undone: bool = False, **options: Any) -> Tool:
    """A fresh tool; `undone`: with a compensation."""

    async def body(ctx: Any) -> None: ...

    body.__name__ = name
    made: Tool = tool(effect=effect, identity=ALL, **options)(body)
    if undone:
        made.compensate(lambda ctx, call: None)
    return made


def refusal(*tools: Tool, **options: Any) -> str:
    """The sentence with which an agent of these tools is refused."""
    with pytest.raises(DeclarationError) as caught:
        Agent("seller", MODEL, tools=tools, **options)
    return str(caught.value)


@pytest.mark.contract("E10")
@pytest.mark.parametrize("effect", ["write", "idempotent"])
@pytest.mark.parametrize("policy", [{}, {"on_failure": "rollback"}, {"on_failure": "rollback_on_fail"}])
def test_an_effect_that_rollback_cannot_undo_is_refused(effect: str, policy: dict[str, str]) -> None:
    """By default, too; one sentence names the tool and the three ways out."""
    assert refusal(declared(effect=effect), **policy) == (
        "Agent 'seller': rollback cannot undo charge without a compensation; add @charge.compensate before the agent "
        'is made, or set on_failure="keep" on the tool or the agent.'
    )


@pytest.mark.contract("E10")
def test_all_tools_without_a_compensation_are_named_at_once() -> None:
    """And only they: not the one that can be undone, not the one that is kept."""
    tools = [
        declared("charge"),
        declared("book", undone=True),
        declared("ship"),
        declared("log", on_failure="keep"),
    ]
    assert refusal(*tools) == (
        "Agent 'seller': rollback cannot undo charge, ship without a compensation; add @charge.compensate, "
        '@ship.compensate before the agent is made, or set on_failure="keep" on these tools or the agent.'
    )


@pytest.mark.contract("E10")
def test_a_tool_with_its_own_rollback_is_refused_under_keep() -> None:
    """What the tool says goes before what the agent says, so only the tool can be changed."""
    said = refusal(declared(on_failure="rollback"), declared("ship"), on_failure="keep")
    assert "cannot undo charge without" in said
    assert said.endswith('set on_failure="keep" on the tool.')


@pytest.mark.contract("E10")
def test_the_code_of_an_agent_makes_no_difference() -> None:
    """`@agent(...)` is refused in the same way."""

    async def code(ctx: Any, value: Any) -> None: ...

    with pytest.raises(DeclarationError, match=r"add @charge\.compensate"):
        agent(name="nightly", model=MODEL, tools=[declared()])(code)
    assert agent(name="nightly", model=MODEL, tools=[declared(undone=True)])(code).on_failure == "rollback"


@pytest.mark.contract("E10")
@pytest.mark.parametrize(
    ("made", "policy"),
    [
        (declared(undone=True), "rollback"),
        (declared(effect="idempotent", undone=True), "rollback"),
        (declared(on_failure="keep"), "rollback"),
        (declared(on_failure="commit_on_complete"), "rollback"),
        (declared(effect="irreversible"), "rollback"),
        (declared(effect="read"), "rollback"),
        (declared(), "keep"),
        (declared(), "commit_on_complete"),
    ],
)
def test_what_can_be_undone_or_need_not_be_is_accepted(made: Tool, policy: str) -> None:
    """A compensation, keep, an irreversible effect (its failed run goes to review), or nothing to undo."""
    assert Agent("seller", MODEL, tools=[made], on_failure=policy).tools["charge"] is made

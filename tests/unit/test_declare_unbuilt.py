"""What is accepted though clean-up does not act upon it yet is said when a worker starts."""

from __future__ import annotations

from typing import Any

import pytest

from makegood import ALL, Agent, AsyncClient, Client, tool
from makegood.errors import NotBuilt
from makegood.tasks import unbuilt
from makegood.tasks.tool import Tool

URL = "redis://127.0.0.1:1/0"


@tool(effect="read")
async def look(ctx: Any) -> str:
    return ""


def charge(**options: Any) -> Tool:
    """A fresh tool with an effect."""

    @tool(effect="write", identity=ALL, **options)
    async def charge(ctx: Any) -> None: ...

    return charge


def said(*tools: Tool, on_failure: str = "keep") -> list[str]:
    return unbuilt.unbuilt_warnings(Agent("seller", "openai/any", tools=tools, on_failure=on_failure))


def test_an_agent_that_needs_no_cleanup_is_not_warned_of() -> None:
    """Under keep, and under rollback when it only reads."""
    assert said(look, charge()) == said(look, on_failure="rollback") == []


def test_what_waits_for_cleanup_is_named_in_one_sentence() -> None:
    """With the tools that use it."""
    made = charge(settle_after=5)
    made.compensate(lambda ctx, call: None)
    made.probe(lambda ctx, call: None)
    (sentence,) = said(look, made, on_failure="rollback")
    assert sentence == (
        "Agent 'seller': on_failure=\"rollback\" of charge; compensate of charge; probe of charge; settle_after of "
        "charge is accepted, but clean-up is not built yet: nothing is undone, probed or settled; see the README."
    )
    assert "rollback" in said(charge(on_failure="rollback"))[0]


def test_a_worker_says_it_of_every_agent_and_of_declared_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence each."""
    monkeypatch.setattr(unbuilt, "registered_resources", lambda: {"table": None, "file": None})
    agents = [Agent(name, "openai/any", tools=[charge()]) for name in ("a", "b")]
    assert [sentence.partition(" is accepted")[0] for sentence in unbuilt.startup_warnings(agents)] == [
        "Agent 'a': on_failure=\"rollback\" of charge",
        "Agent 'b': on_failure=\"rollback\" of charge",
        "@resource of file, table",
    ]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_server_for_live_output_is_refused(kind: type[Client] | type[AsyncClient]) -> None:
    """It would not be used."""
    with pytest.raises(
        NotBuilt, match=rf"{kind.__name__}\(live_url=…\) is not built yet; leave it at its default"
    ):
        kind(URL, live_url=URL)


def test_a_given_store_is_the_broker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAKEGOOD_BROKER_URL goes with MAKEGOOD_REDIS_URL, not with a URL of one's own."""
    monkeypatch.setenv("MAKEGOOD_REDIS_URL", "redis://from-env/1")
    monkeypatch.setenv("MAKEGOOD_BROKER_URL", "redis://from-env/2")
    made = [
        Client(),
        Client(URL),
        Client(URL, broker_url="redis://mine/3"),
        Client(broker_url="redis://mine/3"),
    ]
    assert [(client.url, client.broker_url) for client in made] == [
        ("redis://from-env/1", "redis://from-env/2"),
        (URL, URL),
        (URL, "redis://mine/3"),
        ("redis://from-env/1", "redis://mine/3"),
    ]
    for client in made:
        client.close()

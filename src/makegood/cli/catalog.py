"""`makegood agents` and `makegood messages`: what workers serve, and what they could not use."""

from __future__ import annotations

from typing import Any

import click

from makegood.cli.base import Group, State, limit_option, store_options
from makegood.cli.output import one_line, print_json, print_record, print_table


@click.group("agents", cls=Group)
def agents() -> None:
    """What workers have declared."""


@agents.command("list")
@limit_option
@store_options
@click.pass_obj
def list_agents(state: State, limit: int) -> None:
    """All agents that workers have published, by name."""
    with state.client() as client:
        found = [declared for _, declared in sorted(client.agents().items())][:limit]
    if state.json:
        print_json(found)
        return
    rows = [
        (a["name"], a["kind"], a["model"], ", ".join(tool["name"] for tool in a["tools"]), a["on_failure"])
        for a in found
    ]
    empty = "No worker has published an agent yet; start one with `makegood worker`."
    print_table(("AGENT", "KIND", "MODEL", "TOOLS", "ON FAILURE"), rows, empty)


@agents.command("show")
@click.argument("name")
@store_options
@click.pass_obj
def show_agent(state: State, name: str) -> None:
    """One agent's declaration: model, tools, limits, and the most model requests a step can send."""
    from makegood.errors import UnknownAgent

    with state.client() as client:
        found = client.agents()
    if name not in found:
        known = ", ".join(sorted(found)[:20]) or "none"
        raise UnknownAgent(
            f"No worker has published an agent named {name!r} (known: {known}); correct the name, or start its worker."
        )
    if state.json:
        print_json(found[name])
        return
    print_record({key: value for key, value in found[name].items() if key != "tools"})
    click.echo()
    rows = [
        (tool["name"], tool["effect"], one_line(tool["identity"]), f"{tool['timeout']:g} s", tool["breaker"], tool["isolation"])
        for tool in found[name]["tools"]
    ]  # fmt: skip
    print_table(("TOOL", "EFFECT", "IDENTITY", "LIMIT", "BREAKER", "ISOLATION"), rows, "It has no tools.")


@click.group("messages", cls=Group, later=("requeue", "drop"))
def messages() -> None:
    """Messages that workers could not use and set aside."""


@messages.command("list")
@limit_option
@store_options
@click.pass_obj
def list_messages(state: State, limit: int) -> None:
    """Messages that were set aside, newest first, each with the reason."""
    from makegood.store.ops import catalog
    from makegood.store.ops.reads import iso

    with state.client() as client:
        found: list[dict[str, Any]] = [
            {
                "id": each["id"],
                "at": iso(int(each["id"].partition("-")[0])),
                "reason": each["reason"],
                "raw": each["raw"],
            }
            for each in client.store.do(catalog.read_aside(limit))
        ]
    if state.json:
        print_json(found)
        return
    rows = [(each["id"], each["at"], each["reason"], one_line(each["raw"], 60)) for each in found]
    print_table(("MESSAGE", "AT", "REASON", "BEGINS WITH"), rows, "No message was set aside.")

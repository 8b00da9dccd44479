"""`makegood breakers`: which downstreams are cut off, and doing that by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from makegood.cli.base import Group, State, actor_options, actor_or_user, limit_option, store_options
from makegood.cli.output import print_json, print_record, print_table, warn

if TYPE_CHECKING:
    from makegood.tasks.client import Client


@click.group("breakers", cls=Group)
def breakers() -> None:
    """Circuit breakers: look at them, open and close them by hand."""


@breakers.command("list")
@limit_option
@store_options
@click.pass_obj
def list_(state: State, limit: int) -> None:
    """All breakers that ever saw a failure, those that opened last first."""
    with state.client() as client:
        found = all_breakers(client)[:limit]
    if state.json:
        print_json(found)
        return
    rows = [
        (
            b["name"],
            b["state"],
            b["failures"],
            b["opened_at"],
            "until it is closed" if b["held"] else b["open_until"],
        )
        for b in found
    ]
    print_table(
        ("BREAKER", "STATE", "FAILURES", "OPENED", "OPEN UNTIL"),
        rows,
        "No breaker has seen a failure: all are closed.",
    )


@breakers.command("open")
@click.argument("name")
@actor_options
@store_options
@click.pass_obj
def open_(state: State, name: str, actor: str | None, reason: str) -> None:
    """Open a breaker; it stays open until it is closed by hand."""
    _set(state, name, "open", actor, reason)


@breakers.command("close")
@click.argument("name")
@actor_options
@store_options
@click.pass_obj
def close(state: State, name: str, actor: str | None, reason: str) -> None:
    """Close a breaker and forget its failures."""
    _set(state, name, "close", actor, reason)


def all_breakers(client: Client) -> list[dict[str, Any]]:
    """Breakers as records, the one that opened last first, the rest by name."""
    from makegood.store.ops import breakers as ops

    fields, now_ms = client.store.do_all([ops.read_breakers(), ops.server_time()])
    found = [describe(name, flat, now_ms) for name, flat in sorted(fields.items())]
    return sorted(found, key=lambda breaker: breaker["opened_at"] or "", reverse=True)


def describe(name: str, fields: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    """One breaker: `state` as it is at this moment, `held` when an operator opened it."""
    from makegood.store.ops.reads import iso
    from makegood.tasks.rules.breaker import from_fields

    breaker = from_fields(fields)
    return {
        "name": name,
        "state": breaker.seen_at(now_ms),
        "failures": len(breaker.failures_ms),
        "opened_at": iso(breaker.opened_at_ms or None),
        "open_until": iso(breaker.open_until_ms or None),
        "held": breaker.held,
    }


def _set(state: State, name: str, action: Literal["open", "close"], actor: str | None, reason: str) -> None:
    from makegood.store.ops import breakers as ops

    with state.client() as client:
        _check_name(client, name)
        fields, now_ms = client.store.do_all(
            [ops.set_breaker(name, action, actor_or_user(actor), reason), ops.server_time()]
        )
    record = describe(name, fields, now_ms)
    if state.json:
        print_json(record)
    else:
        print_record({key: record[key] for key in ("name", "state", "opened_at")})


def _check_name(client: Client, name: str) -> None:
    """Warn about a name that neither an agent's tool nor a recorded breaker has: a typing mistake would go unnoticed."""
    known = {breaker["name"] for breaker in all_breakers(client)}
    known |= {tool["breaker"] for declared in client.agents().values() for tool in declared["tools"]}
    if name not in known:
        warn(
            f"No published tool uses a breaker named {name!r}; known are: {', '.join(sorted(known)) or 'none'}."
        )

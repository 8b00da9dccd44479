"""`makegood runs`: look at runs, cancel them; `runs cleanup` stands in cli/cleanup.py."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from makegood.cli.base import (
    Group,
    State,
    actor_options,
    actor_or_user,
    limit_option,
    store_options,
    timeout_option,
)
from makegood.cli.cleanup import cleanup
from makegood.cli.output import fail, one_line, print_json, print_line, print_record, print_table, say

LISTED = ("run_id", "agent", "state", "error", "attempts", "enqueued_at", "started_at", "ended_at")
"""Fields of one element of `runs list --json`."""

EVENT_DATA_CHARS = 160


@click.group("runs", cls=Group)
def runs() -> None:
    """Look at runs, cancel them, clean up what they left behind."""


runs.add_command(cleanup)


@runs.command("list")
@click.option("--state", "run_state", help="Only runs in this state.")
@click.option("--agent", help="Only runs of this agent.")
@limit_option
@store_options
@click.pass_obj
def list_(state: State, run_state: str | None, agent: str | None, limit: int) -> None:
    """The newest runs, newest first."""
    with state.client() as client:
        records = [result.to_dict() for result in client.runs(state=run_state, agent=agent, limit=limit)]
    listed = [{name: record[name] for name in LISTED} for record in records]
    if state.json:
        print_json(listed)
        return
    rows = [
        (
            r["run_id"],
            r["agent"],
            r["state"],
            (r["error"] or {}).get("code"),
            r["attempts"],
            r["enqueued_at"],
            took(r),
        )
        for r in listed
    ]
    print_table(
        ("RUN", "AGENT", "STATE", "ERROR", "ATTEMPTS", "ENQUEUED", "TOOK"), rows, "There are no such runs."
    )


@runs.command("show")
@click.argument("run_id", metavar="RUN")
@store_options
@click.pass_obj
def show(state: State, run_id: str) -> None:
    """The run's record: state, output, error, numbers, and what it does now."""
    with state.client() as client:
        info = client.get(run_id).info()
    if state.json:
        print_json(info)
    else:
        print_record(info)


@runs.command("events")
@click.argument("run_id", metavar="RUN")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the run has ended (with --json: one object per line)."
)
@click.option("--from", "from_", default="0", metavar="ID", help="Only events after this id.")
@store_options
@click.pass_obj
def events(state: State, run_id: str, follow: bool, from_: str) -> None:
    """What happened in the run, oldest first."""
    if not is_stream_id(from_):
        raise click.UsageError(f"--from {from_!r} is no id of an event, such as 1700000000000-0")
    with state.client() as client:
        found = client.get(run_id).events(from_, follow=follow)
        if state.json and not follow:
            print_json(list(found))
            return
        for event in found:
            print_event(state, event)


@runs.command("journal")
@click.argument("run_id", metavar="RUN")
@store_options
@click.pass_obj
def journal(state: State, run_id: str) -> None:
    """The run's tool calls: what was asked, what came of it, under which key."""
    with state.client() as client:
        rows = client.get(run_id).journal()
    if state.json:
        print_json(rows)
        return
    cells = [
        (r["call_key"], r["status"], r["effect"], r["attempt"], r["step"], r["tries"], (r["error"] or {}).get("code"),
         one_line(r["args"], 60), one_line(r["response"], 60))
        for r in rows
    ]  # fmt: skip
    columns = ("CALL", "STATUS", "EFFECT", "ATTEMPT", "STEP", "TRIES", "ERROR", "ARGUMENTS", "RESPONSE")
    print_table(columns, cells, "The run has made no calls.")


@runs.command("audit")
@click.argument("run_id", metavar="RUN")
@store_options
@click.pass_obj
def audit(state: State, run_id: str) -> None:
    """Who asked for what about the run, and why, oldest first."""
    with state.client() as client:
        entries = client.audit(run_id)
    if state.json:
        print_json(entries)
    else:
        print_audit(entries, "Nobody has asked for anything about the run.")


@runs.command("cancel")
@click.argument("run_id", metavar="RUN")
@click.option("--wait", is_flag=True, help="Return only once its work has stopped.")
@timeout_option("How long to wait; exit code 9 when the run has not stopped by then.")
@actor_options
@store_options
@click.pass_obj
def cancel(
    state: State, run_id: str, wait: bool, timeout: float | None, actor: str | None, reason: str
) -> int:
    """Cancel a run that waits or runs, and print its state."""
    from makegood.cli.exits import Exit
    from makegood.errors import StillStopping
    from makegood.store.states import TERMINAL

    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    with state.client() as client:
        run = client.get(run_id)
        try:
            reached = run.cancel(wait=wait, timeout=timeout, actor=actor_or_user(actor), reason=reason)
        except StillStopping as error:
            _print_state(state, run_id, run.status())
            fail(str(error))
            return Exit.WAITED_OUT
        _print_state(state, run_id, reached)
    if reached in TERMINAL and reached != "cancelled":
        say(f"Run {run_id} had ended ({reached}): there was nothing to cancel.")
    return Exit.FINE


def _print_state(state: State, run_id: str, reached: str) -> None:
    if state.json:
        print_json({"run_id": run_id, "state": reached})
    else:
        click.echo(reached)


def print_audit(entries: Sequence[dict[str, Any]], empty: str) -> None:
    """The audit log of a run."""
    rows = [
        (each["at"], each["action"], each["actor"], each["reason"], one_line(each["detail"]))
        for each in entries
    ]
    print_table(("AT", "ACTION", "ACTOR", "REASON", "DETAIL"), rows, empty)


def print_event(state: State, event: dict[str, Any]) -> None:
    """One event: a line of NDJSON, or a line for a person."""
    if state.json:
        print_line(event)
        return
    parts = [event["at"], event["type"]]
    parts += [f"step {event['step']}"] if event["step"] is not None else []
    parts += [event["call_key"]] if event["call_key"] else []
    parts += [one_line(event["data"], EVENT_DATA_CHARS)] if event["data"] else []
    click.echo("  ".join(parts))


def is_stream_id(text: str) -> bool:
    """Whether the text can be the id of an event: milliseconds, or milliseconds-number."""
    ms, _, number = text.partition("-")
    return ms.isascii() and ms.isdigit() and (number == "" or (number.isascii() and number.isdigit()))


def took(record: dict[str, Any]) -> str:
    """How long the run took from its first start to its end."""
    if not record["started_at"] or not record["ended_at"]:
        return ""
    began, ended = (datetime.fromisoformat(record[name]) for name in ("started_at", "ended_at"))
    return f"{(ended - began).total_seconds():.1f} s"

"""`makegood review`: runs that wait for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import click

from makegood.cli.base import Group, State, actor_or_user, decision_options, limit_option, store_options
from makegood.cli.output import clean, one_line, print_json, print_record, print_table, styled
from makegood.cli.runs import print_audit

RESPONSE_CHARS = 400

UNDO_ANSWERS = {"succeeded": "it is undone", "kept": "it may stay"}
CALL_ANSWERS = {"succeeded": "it took effect", "failed": "it did not take effect"}
"""How a question was answered: by the state of the undo, else by that of the call."""


@click.group("review", cls=Group)
def review() -> None:
    """Runs that wait for a person: look at them, decide."""


@review.command("list")
@click.option("--agent", help="Only runs of this agent.")
@limit_option
@store_options
@click.pass_obj
def list_(state: State, agent: str | None, limit: int) -> None:
    """The newest runs that wait for a person, the one that came last first."""
    with state.client() as client:
        found = client.reviews(agent=agent, limit=limit)
    if state.json:
        print_json(found)
        return
    rows = [
        (r["run_id"], r["agent"], r["opened_at"], r["code"], r["target"], one_line(_asked(r["items"]), 60))
        for r in found
    ]
    print_table(("RUN", "AGENT", "OPENED", "WHY", "THEN", "ABOUT"), rows, "No run waits for a person.")


@review.command("show")
@click.argument("run_id", metavar="RUN")
@store_options
@click.pass_obj
def show(state: State, run_id: str) -> None:
    """Every open question: what was intended, what is known, how to answer it."""
    with state.client() as client:
        found = client.review(run_id)
    if state.json:
        print_json(found)
    else:
        print_review(found)


@review.command("retry")
@click.argument("run_id", metavar="RUN")
@decision_options
@store_options
@click.pass_obj
def retry(state: State, run_id: str, actor: str | None, reason: str, expected_version: int | None) -> None:
    """Clean the run up once more, after the cause was repaired or its calls were marked."""
    _decide(state, "retry_cleanup", run_id, actor, reason, expected_version)


@review.command("resume")
@click.argument("run_id", metavar="RUN")
@decision_options
@store_options
@click.pass_obj
def resume(state: State, run_id: str, actor: str | None, reason: str, expected_version: int | None) -> None:
    """Give the run a new attempt; refused while an outcome is unknown or an undo is in doubt."""
    _decide(state, "resume", run_id, actor, reason, expected_version)


@review.command("resolve")
@click.argument("run_id", metavar="RUN")
@decision_options
@store_options
@click.pass_obj
def resolve(state: State, run_id: str, actor: str | None, reason: str, expected_version: int | None) -> None:
    """End the run as it stands. This is final: nothing cleans it up any more."""
    _decide(state, "resolve", run_id, actor, reason, expected_version)


@review.command("mark")
@click.argument("run_id", metavar="RUN")
@click.argument("call_key", metavar="CALL")
@click.argument("outcome", type=click.Choice(["done", "undone"]))
@click.option(
    "--generation", type=click.IntRange(1), metavar="N", help="Which row of the call; default: the newest."
)
@decision_options
@store_options
@click.pass_obj
def mark(
    state: State,
    run_id: str,
    call_key: str,
    outcome: Literal["done", "undone"],
    generation: int | None,
    actor: str | None,
    reason: str,
    expected_version: int | None,
) -> None:
    """Say what became of a call.

    One whose outcome is unknown took effect (done) or did not (undone). The effect of one that succeeded, or whose
    undo was begun, may stay (done) or was undone by hand (undone). A resource has no mark.
    """
    with state.client() as client:
        marked = client.mark(
            run_id,
            call_key,
            outcome,
            actor=actor_or_user(actor),
            reason=reason,
            expected_version=expected_version,
            generation=generation,
        )
    if state.json:
        print_json(marked)
    else:
        click.echo(marked["became"])


def _decide(
    state: State,
    how: Literal["retry_cleanup", "resume", "resolve"],
    run_id: str,
    actor: str | None,
    reason: str,
    expected_version: int | None,
) -> None:
    with state.client() as client:
        decided = getattr(client, how)(
            run_id, actor=actor_or_user(actor), reason=reason, expected_version=expected_version
        )
    if state.json:
        print_json(decided)
    else:
        click.echo(decided["state"])


def print_review(found: dict[str, Any]) -> None:
    """A review for the person on call."""
    error = found["error"] or {}
    print_record(
        {
            "run": found["run_id"],
            "agent": found["agent"],
            "state": found["state"],
            "version": found["version"],
            "opened": found["opened_at"],
            "why": f"{found['code']}: {found['message']}" if found["code"] else None,
            "failed with": f"{error['code']}: {error['message']}" if error else None,
            "then": found["target"],
        }
    )
    for number, item in enumerate(found["items"], 1):
        click.echo()
        click.echo(styled(f"{number}. {heading(item)}", bold=True))
        _indented(facts(item))
        _print_commands(item["answers"], "   ")
    if found["decisions"]:
        click.echo()
        click.echo(styled("When every question is answered, decide about the run:", bold=True))
        _print_commands(found["decisions"], "   ")
    if found["audit"]:
        click.echo()
        print_audit(found["audit"], "")


def heading(item: dict[str, Any]) -> str:
    """The question, or how it was answered."""
    if item["open"]:
        return clean(item["question"])
    undo = (item["compensation"] or {}).get("status")
    known = UNDO_ANSWERS.get(undo or "") or CALL_ANSWERS.get(item["status"] or "") or "decided"
    return clean(f"{item['tool'] or item['kind']}: {known}.")


def facts(item: dict[str, Any]) -> list[tuple[str, str]]:
    """What was intended and what is known of it."""
    undo, error, why = item["compensation"] or {}, item["error"] or {}, item["why"] or {}
    resource = item["resource"] or {}
    began = f"{item['started_at']} to {item['ended_at'] or '?'}" if item["started_at"] else ""
    known = [
        ("intent", f"{item['tool']} {one_line(item['args'] or {})}" if item["call_key"] else ""),
        ("resource", f"{resource.get('kind')} {resource.get('id')}" if resource else ""),
        ("call", f"{item['call_key']} (generation {item['generation']})" if item["call_key"] else ""),
        ("status", f"{item['status']} after {tries(item)}" if item["status"] else ""),
        ("when", began),
        ("error", f"{error.get('code')}: {error.get('message')}" if error else ""),
        ("response", one_line(item["response"], RESPONSE_CHARS)),
        ("undo", _undo(undo) if undo else ""),
        ("why", f"{why.get('code')}: {why.get('message')}" if why else ""),
        ("look for", f"idempotency key {item['idempotency_key']}" if item["idempotency_key"] else ""),
    ]
    return [(name, text) for name, text in known if text]


def _undo(undo: dict[str, Any]) -> str:
    error = undo["error"] or {}
    said = f": {error['code']}: {error['message']}" if error else ""
    return f"{undo['status']} after {tries(undo)}{said}"


def tries(of: dict[str, Any]) -> str:
    """How often something was tried."""
    return "1 try" if of["tries"] == 1 else f"{of['tries']} tries"


def _asked(items: Sequence[dict[str, Any]]) -> str:
    return ", ".join(
        f"{item['kind']} {item['tool'] or (item['resource'] or {}).get('kind') or ''}".strip()
        for item in items
    )


def _indented(lines: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        click.echo(f"   {name.ljust(width)}  {one_line(text)}")


def _print_commands(answers: Sequence[dict[str, str]], indent: str) -> None:
    width = max((len(each["means"]) for each in answers), default=0)
    for each in answers:
        click.echo(f"{indent}{each['means'].ljust(width)}  {styled(clean(each['command']), fg='cyan')}")

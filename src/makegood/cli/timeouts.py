"""`makegood timeouts`: limits beside what was measured, setting them while workers run, verdicts on runs that timed out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from makegood.cli.base import Group, Seconds, State, actor_options, actor_or_user, store_options
from makegood.cli.output import clean, print_json, print_record, print_table, say
from makegood.tasks.policies import SMALLEST_LIMIT_S
from makegood.tasks.rules.limits import LIMIT_LEVELS, VERDICTS

if TYPE_CHECKING:
    from makegood.monitoring.limits import LimitRow
    from makegood.tasks.client import Client

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT = "default"


class Limit(Seconds):
    """A number of seconds, or the word for what was declared."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value is None or value == DEFAULT:
            return value
        seconds = super().convert(value, param, ctx)
        if seconds < SMALLEST_LIMIT_S:
            self.fail(f"{value!r} is less than {SMALLEST_LIMIT_S:g}, one millisecond", param, ctx)
        return seconds


def which_limits(command: F) -> F:
    """`--agent` and `--tool`: of which limits."""
    command = click.option("--tool", help="Only this tool.")(command)
    return click.option("--agent", help="Only this agent and its tools.")(command)


@click.group("timeouts", cls=Group)
def timeouts() -> None:
    """Limits of time: what was measured, what it suggests, and setting them while workers run."""


@timeouts.command("report")
@which_limits
@store_options
@click.pass_obj
def report(state: State, agent: str | None, tool: str | None) -> None:
    """Every limit beside the durations of the last 7 days: percentiles, how often it fired, what they suggest."""
    with state.client() as client:
        rows = load_rows(client, agent, tool)
    if state.json:
        print_json([to_dict(row) for row in rows])
        return
    cells = [
        (
            row.level,
            row.name,
            seconds(row.threshold_s),
            row.source,
            row.samples,
            *(seconds(each) for each in (row.p50_s, row.p95_s, row.p99_s, row.max_s)),
            row.fired,
            seconds(row.suggested_s),
        )
        for row in rows
    ]
    columns = ("LEVEL", "NAME", "LIMIT", "FROM", "SAMPLES", "P50", "P95", "P99", "MAX", "FIRED", "SUGGESTED")
    print_table(columns, cells, "No worker has published an agent yet; start one with `makegood worker`.")


@timeouts.command("suggest")
@which_limits
@store_options
@click.pass_obj
def suggest(state: State, agent: str | None, tool: str | None) -> None:
    """P99 × 1.3 of the last 7 days where there are 100 samples, and the commands that set it. Changes nothing itself."""
    with state.client() as client:
        rows = load_rows(client, agent, tool)
    if state.json:
        print_json([to_dict(row) for row in rows])
        return
    if not rows:
        say("No worker has published an agent yet; start one with `makegood worker`.")
    for row in rows:
        click.echo(clean(sentence(row)))
        for note in row.notes:
            click.echo(clean(f"  {note}"))
        if row.differs:
            click.echo(clean(f"  {command(row)}"))


@timeouts.command("set")
@click.argument("level", type=click.Choice(LIMIT_LEVELS))
@click.argument("name")
@click.argument("limit", type=Limit(), metavar=f"SECONDS|{DEFAULT}")
@actor_options
@store_options
@click.pass_obj
def set_(state: State, level: str, name: str, limit: float | str, actor: str | None, reason: str) -> None:
    """Set a limit: `call` of a tool, `step` or `run` of an agent. Running workers follow within 5 s, without a restart."""
    wanted = None if isinstance(limit, str) else limit
    with state.client() as client:
        changed = client.set_timeout(level, name, wanted, actor=actor_or_user(actor), reason=reason)
    if state.json:
        print_json(changed)
        return
    words = {key: DEFAULT if changed[key] is None else seconds(changed[key]) for key in ("from_s", "to_s")}
    print_record({"limit": f"{level} {name}", "from": words["from_s"], "to": words["to_s"]})


@timeouts.command("verdict")
@click.argument("run_id", metavar="RUN")
@click.argument("verdict", type=click.Choice(VERDICTS))
@actor_options
@store_options
@click.pass_obj
def verdict_(state: State, run_id: str, verdict: str, actor: str | None, reason: str) -> None:
    """Say of a run that timed out whether it had in fact finished (false_kill) or not (true_kill)."""
    with state.client() as client:
        judged = client.judge_timeout(run_id, verdict, actor=actor_or_user(actor), reason=reason)
    if state.json:
        print_json(judged)
    else:
        print_record({key: judged[key] for key in ("verdict", "by", "at")})


# --- rows -------------------------------------------------------------------------------------------------------------


def load_rows(client: Client, agent: str | None, tool: str | None) -> Sequence[LimitRow]:
    """The rows that were asked for. Raises UnknownAgent for a name that has none."""
    from makegood.monitoring.limits import load_limits
    from makegood.tasks.steering import tools_in, unknown

    published = client.agents()
    rows = client.run_flow(load_limits()).rows
    if tool is not None and tool not in {row.name for row in rows if row.level == "call"}:
        raise unknown("tool", tool, tools_in(published))
    if agent is not None and agent not in {row.name for row in rows if row.level != "call"}:
        raise unknown("agent", agent, published)
    if tool is not None:
        rows = [row for row in rows if row.level == "call" and row.name == tool]
    if agent is not None:
        mine = tools_in({agent: published.get(agent, {})})
        rows = [row for row in rows if (row.name in mine if row.level == "call" else row.name == agent)]
    return rows


def to_dict(row: LimitRow) -> dict[str, Any]:
    """A row as JSON, with the command where the suggestion is worth setting."""
    from dataclasses import asdict

    plain = {name: value for name, value in asdict(row).items() if name != "differs"}
    return {**plain, "notes": list(row.notes), "command": command(row) if row.differs else None}


def command(row: LimitRow) -> str:
    """The command that sets what is suggested."""
    reason = f"P99 {seconds(row.p99_s)} of {row.samples} samples in 7 days"
    return f"makegood timeouts set {row.level} {shlex.quote(row.name)} {row.suggested_s:g} --reason {shlex.quote(reason)}"


def sentence(row: LimitRow) -> str:
    """What is known of a limit, in one line."""
    known = f"{row.level} {row.name}: the limit is {seconds(row.threshold_s)} ({row.source})"
    if row.suggested_s is None:
        return f"{known}; no suggestion."
    what = f"suggested is {seconds(row.suggested_s)}, from a P99 of {seconds(row.p99_s)} over {row.samples} samples"
    return f"{known}; {what}."


def seconds(value: float | None) -> str:
    """A number of seconds for a person."""
    return "" if value is None else f"{value:.4g} s"

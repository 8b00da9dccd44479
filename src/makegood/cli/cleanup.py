"""`makegood runs cleanup`: settle and undo what runs that have ended left behind."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from makegood.cli.base import Command, State, actor_options, actor_or_user, limit_option, store_options
from makegood.cli.output import one_line, print_json, print_table, say

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

FILTER = {"state": "run_state", "agent": "agent", "older_than": "older"}
"""What picks runs: the client's name and ours."""

DONE = frozenset({"requested", "would_request", "nothing_to_do", "already_cleaning"})
"""Results that are fine: the run is clean, will be, or would be."""

NAMED_CALLS = 3
"""Calls that a cell names; the rest is a number, and --json has them all."""


class Age(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """A time such as 90, 90s, 30m, 1h or 14d; in seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value))
        seconds = float(found[1]) * UNITS_S[found[2] or "s"] if found else math.nan
        if not 0 <= seconds < 1e9:
            self.fail(f"{value!r} is no time; write it as 90s, 30m, 1h or 14d", param, ctx)
        return seconds


@click.command("cleanup", cls=Command)
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@click.option(
    "--state", "run_state", help="Runs that ended in this state; default: failed, timed_out, cancelled."
)
@click.option("--agent", help="Runs of this agent.")
@click.option("--older", type=Age(), metavar="AGE", help="Runs that ended so long ago, as 30m, 1h, 14d.")
@limit_option
@click.option("--dry-run", is_flag=True, help="Only say what would be undone, and which calls are unknown.")
@click.option("--undo-succeeded", is_flag=True, help="Also undo what succeeded runs did.")
@click.option("--yes", is_flag=True, help="Do not ask before runs that a filter picked are cleaned up.")
@actor_options
@store_options
@click.pass_obj
def cleanup(state: State, /, run_ids: tuple[str, ...], dry_run: bool, yes: bool, **given: Any) -> int:
    """Settle what is unknown of runs that have ended, and undo what can be undone.

    Name the runs, or pick them with --state, --agent, --older. "requested" is not "done": the run's state says that.
    """
    picked = {name: given[option] for name, option in FILTER.items()}
    _check(run_ids, picked, dry_run=dry_run, reason=given["reason"])
    if not (run_ids or dry_run or yes or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise click.UsageError("a filter may pick many runs: look with --dry-run first, then give --yes")
    how: dict[str, Any] = {
        "undo_succeeded": given["undo_succeeded"],
        "actor": actor_or_user(given["actor"]),
        "reason": given["reason"],
    }
    with state.client() as client:
        if run_ids:
            results = client.cleanup(run_ids, dry_run=dry_run, **how)
        elif dry_run or yes:
            results = client.cleanup(**picked, limit=given["limit"], dry_run=dry_run, **how)
        else:
            foreseen = client.cleanup(**picked, limit=given["limit"], dry_run=True, **how)
            results = client.cleanup(_confirmed(foreseen), **how)
    if state.json:
        print_json(results)
    else:
        print_results(results)
    return exit_code(results)


def _check(run_ids: Sequence[str], picked: Mapping[str, object], *, dry_run: bool, reason: str) -> None:
    filtered = any(each is not None for each in picked.values())
    if bool(run_ids) == filtered:
        raise click.UsageError("name the runs, or pick them with --state, --agent or --older; not both")
    if not dry_run and not reason.strip():
        raise click.UsageError("Missing option '--reason': why, for the audit log")


def _confirmed(foreseen: Sequence[dict[str, Any]]) -> list[str]:
    """The runs that would be cleaned up, once a person at a terminal has agreed."""
    wanted = [each for each in foreseen if each["result"] == "would_request"]
    for each in wanted:
        say(
            f"{each['run_id']}  undo: {calls(each['undo']) or 'nothing'}  unknown: {calls(each['unknown']) or 'none'}"
        )
    if wanted:
        click.confirm(f"Clean up {len(wanted)} runs?", abort=True, err=True)
    return [each["run_id"] for each in wanted]


def print_results(results: Sequence[dict[str, Any]]) -> None:
    """One line per run."""
    rows = [
        (each["run_id"], each["result"], calls(each["undo"]), calls(each["unknown"]), each["detail"])
        for each in results
    ]
    print_table(("RUN", "RESULT", "UNDO", "UNKNOWN", "DETAIL"), rows, "There are no such runs.")


def calls(found: Sequence[dict[str, Any]]) -> str:
    """Calls and resources in a few words, those that are undone first in front."""
    names = [
        f"{each['resource']['kind']} {each['resource']['id']}" if each["resource"] else str(each["tool"])
        for each in found
    ]
    more = f" and {len(names) - NAMED_CALLS} more" if len(names) > NAMED_CALLS else ""
    return one_line(", ".join(names[:NAMED_CALLS]), 80) + more


def exit_code(results: Sequence[dict[str, Any]]) -> int:
    """Fine when every run is; partly done when some are; else what was wrong with them."""
    from makegood.cli.exits import Exit

    bad = {each["result"] for each in results} - DONE
    if not bad:
        return Exit.FINE
    if any(each["result"] in DONE for each in results):
        return Exit.PARTLY_DONE
    codes = {"not_found": Exit.NOT_FOUND, "refused": Exit.CONFLICT, "failed": Exit.FAILED}
    return codes[bad.pop()] if len(bad) == 1 else Exit.FAILED

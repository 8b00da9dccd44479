"""`makegood enqueue`: record a run, and if wanted look on until it ends."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from makegood.cli.base import Command, Seconds, State, store_options, timeout_option
from makegood.cli.output import clean, fail, print_json, print_line, say, to_json
from makegood.cli.runs import print_event

if TYPE_CHECKING:
    from makegood.tasks.client import Run
    from makegood.tasks.records import Result


@click.command("enqueue", cls=Command)
@click.argument("agent")
@click.argument("input_", metavar="INPUT")
@click.option("--key", help="Unique per agent; makes the request safe to repeat.")
@click.option(
    "--expires-in", type=Seconds(), metavar="SECONDS", help="How long the run may wait in the queue."
)
@click.option("--wait", is_flag=True, help="Wait for the end; exit code 7 unless it succeeded.")
@timeout_option("How long to wait or follow; exit code 9 when it is over. The run goes on.")
@click.option("--follow", is_flag=True, help="Print the run's events until it has ended.")
@store_options
@click.pass_obj
def enqueue(
    state: State,
    agent: str,
    input_: str,
    key: str | None,
    expires_in: float | None,
    wait: bool,
    timeout: float | None,
    follow: bool,
) -> int:
    """Enqueue a run of AGENT and print its id.

    INPUT is a text, or a JSON object when it parses as one; - reads it from standard input.
    """
    if timeout is not None and not (wait or follow):
        raise click.UsageError("--timeout goes with --wait or --follow")
    value = parse_input(_from_stdin() if input_ == "-" else input_)
    with state.client() as client:
        run = client.enqueue(agent, value, key=key, expires_in=expires_in)
        if not client.catalog:
            say("No worker has published an agent yet: the run waits until one starts.")
        if not (wait or follow):
            _print_enqueued(state, run)
            return 0
        if not state.json:
            say(f"Run {run.id}")
        return watch(state, run, wait=wait, follow=follow, timeout=timeout)


def parse_input(text: str) -> str | dict[str, Any]:
    """A JSON object when the text parses as one, else the text itself."""
    try:
        value = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _from_stdin() -> str:
    raw = sys.stdin.buffer.read()
    try:
        return raw.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"standard input is not UTF-8 (byte {error.start})") from None


def watch(state: State, run: Run, *, wait: bool, follow: bool, timeout: float | None) -> int:
    """Look on until the run has ended or the time is over; returns the exit code."""
    from makegood.cli.exits import Exit
    from makegood.errors import WaitTimeout

    until_s = None if timeout is None else time.monotonic() + timeout
    try:
        if follow:
            follow_events(state, run, until_s, timeout or 0.0)
        result = run.wait(None if until_s is None else max(0.0, until_s - time.monotonic()))
    except WaitTimeout as error:
        if wait and state.json:
            _print_result(run.result(), ndjson=follow)
        fail(str(error))
        return Exit.WAITED_OUT
    if not wait:
        return Exit.FINE
    if state.json:
        _print_result(result, ndjson=follow)
    elif result.state == "succeeded":
        click.echo(clean(result.output) if isinstance(result.output, str) else to_json(result.output))
    if result.state == "succeeded":
        return Exit.FINE
    fail(ended_badly(result))
    return Exit.ENDED_BADLY


def follow_events(state: State, run: Run, until_s: float | None, timeout: float) -> None:
    """Print events as they come until the run has ended or waits for a review. Raises WaitTimeout."""
    from makegood.store.states import SETTLED
    from makegood.tasks.client_base import pauses, waited_out

    after = "0"
    for pause_s in pauses():
        status = run.status()
        for event in run.events(after):
            after = event["id"]
            print_event(state, event)
        if status in SETTLED:
            return
        if until_s is not None and time.monotonic() >= until_s:
            raise waited_out(run.id, status, timeout)
        time.sleep(pause_s)


def ended_badly(result: Result) -> str:
    """Why the run did not succeed, in one sentence, and where to look."""
    if result.state == "requires_manual_review":
        return f"Run {result.run_id} waits for a person; see `makegood review show {result.run_id}`."
    why = "" if result.error is None else f" ({result.error.code}: {result.error.message.rstrip('.')})"
    return f"Run {result.run_id} ended {result.state}{why}; look at it with `makegood runs show {result.run_id}`."


def _print_enqueued(state: State, run: Run) -> None:
    if state.json:
        _print_result(run.result())
    else:
        click.echo(run.id)


def _print_result(result: Result, *, ndjson: bool = False) -> None:
    (print_line if ndjson else print_json)(result.to_dict())

"""`makegood stats`: the state-level numbers of a window, once or again and again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from makegood.cli.base import Command, Seconds, State, store_options
from makegood.cli.output import on_terminal, print_json, print_line, print_table, say, styled

if TYPE_CHECKING:
    from makegood.monitoring.stats import Ratio, RunNumbers, Stats

WATCH_S = 2.0
GAP = 2
NONE = "–"
"""There is no number: nothing to divide by, or nobody waits."""

COLUMNS = (
    "AGENT", "ENQUEUED", "ENDED", "STEPS/RUN", "CALLS/RUN", "MODEL/RUN", "CLEANED UP", "RECOVERED", "FALSE KILLS", "NOW",
)  # fmt: skip

SHORT = {"requires_manual_review": "review"}


@click.command("stats", cls=Command)
@click.option(
    "--since",
    default="24h",
    show_default=True,
    metavar="WHEN",
    help="90m, 24h or 7d ago, or an ISO-8601 time (UTC).",
)
@click.option("--until", metavar="WHEN", help="The same; default: now.")
@click.option("--agent", metavar="AGENT", help="Only the numbers of this agent.")
@click.option("--watch", is_flag=False, flag_value=str(WATCH_S), type=Seconds(), metavar="[SECONDS]",
              help=f"Look again every so often ({WATCH_S:g}); with --json one object per line.")  # fmt: skip
@store_options
@click.pass_obj
def stats(state: State, since: str, until: str | None, agent: str | None, watch: float | None) -> None:
    """What runs took and what became of them, per agent, in any hours of the last 14 days.

    The window is rounded outwards to whole hours; the output says which. Every run counts once, at its first end.
    """
    from makegood.monitoring.stats import load_stats

    with state.client() as client:

        def look() -> Stats:
            return client.run_flow(load_stats(since, until, agent))

        if watch is None:
            show(state, look())
            return
        for found in looks(look, watch):
            if state.json:
                print_line(found.to_dict())
            else:
                click.clear()  # does nothing unless standard output is a terminal
                print_stats(found)
                if not on_terminal():
                    click.echo()


def show(state: State, found: Stats) -> None:
    """The numbers, once."""
    if state.json:
        print_json(found.to_dict())
    else:
        print_stats(found)


def looks(look: Callable[[], Stats], every_s: float) -> Iterator[Stats]:
    """The numbers again and again, for ever. After the first look a store that is away is waited for, and said once."""
    from makegood.errors import StoreUnreachable

    yield look()
    away = False
    while True:
        time.sleep(every_s)
        try:
            found = look()
        except StoreUnreachable as error:
            if not away:
                say(f"{error} Looking again every {every_s:g} s.")
            away = True
            continue
        if away:
            say("The store answers again.")
        away = False
        yield found


# --- for a person ---------------------------------------------------------------------------------------------------


def print_stats(found: Stats) -> None:
    """The window, the table, and what is counted without an agent."""
    window = found.window.to_dict()
    hours = len(found.window.hours)
    click.echo(f"{window['since']} to {window['until']}, {hours} {'hour' if hours == 1 else 'hours'}\n")
    print_numbers(found)
    click.echo()
    for name, text in more_lines(found):
        click.echo(f"{styled(name.ljust(16), bold=True)}  {text}")


def print_numbers(found: Stats) -> None:
    """One row per agent, and one for all when there are several agents or none was asked for."""
    rows = [row_of(each, each.agent or "") for each in found.agents]
    if found.agent is None:
        rows.append(row_of(found.all, "all"))
    if fits(rows):
        print_table(COLUMNS, rows, "")
        return
    for name, *cells in rows:
        click.echo(styled(name, bold=True))
        for column, cell in zip(COLUMNS[1:], cells, strict=True):
            click.echo(f"  {column.lower().ljust(11)}  {cell}")


def fits(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the terminal is wide enough; a table whose words are cut in the middle helps nobody."""
    widths = (max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True))
    return not on_terminal() or sum(widths) + GAP * (len(COLUMNS) - 1) <= shutil.get_terminal_size().columns


def row_of(numbers: RunNumbers, name: str) -> tuple[str, ...]:
    """The numbers of one agent as cells."""
    ended = {outcome: count for outcome, count in numbers.outcomes.items() if count}
    return (
        name,
        str(numbers.enqueued),
        f"{numbers.finished}: {counts(ended)}" if ended else "0",
        mean(numbers.steps),
        mean(numbers.tool_calls),
        mean(numbers.model_requests),
        share(numbers.cleaned),
        share(numbers.recovered),
        share(numbers.false_kills),
        counts({state: count for state, count in numbers.now.items() if count}) or "0",
    )


def more_lines(found: Stats) -> Iterator[tuple[str, str]]:
    """What has no agent (or, of cleanups and reviews, is summed over it), a name and a text each."""
    recoveries = counts(found.recoveries)
    if found.recovery_s.value is not None:
        recoveries += f"; {found.recovery_s.value:.2f} s each on average"
    decided = sum(found.reviews_resolved.values())
    actions = f" ({counts(found.reviews_resolved)})" if decided else ""
    yield "cleanups", counts(found.cleanups)
    yield "reviews", f"{found.reviews_opened} opened, {decided} decided{actions}"
    scope = "" if found.agent is None else " (of all agents)"
    yield "skipped retries", counts(found.retries_skipped) + scope
    yield "recoveries", recoveries + scope
    yield "unknown outcomes", counts(found.unknown_outcomes) + scope
    yield "redeliveries", counts(found.redeliveries) + scope
    waits = [
        f"{SHORT.get(state, state)} {duration(age_s)}"
        for state, age_s in found.oldest_s.items()
        if age_s is not None
    ]
    yield "oldest now", (", ".join(waits) or NONE) + scope
    yield "breakers now", ", ".join(f"{each.name} {each.state}" for each in found.breakers) or "all closed"


def counts(found: Mapping[str, int]) -> str:
    """`3 succeeded, 1 failed`; the state that waits for a person is called review."""
    return ", ".join(f"{count} {SHORT.get(name, name)}" for name, count in found.items())


def mean(ratio: Ratio) -> str:
    """At most two decimals."""
    return NONE if ratio.value is None else f"{ratio.value:.2f}".rstrip("0").rstrip(".")


def share(ratio: Ratio) -> str:
    """`92.3 % (12 of 13)`. Neither none nor all is claimed by rounding."""
    if ratio.value is None:
        return NONE
    percent = round(100 * ratio.value, 1)
    if 0 < ratio.numerator < ratio.denominator:
        percent = min(max(percent, 0.1), 99.9)
    return f"{percent:g} % ({ratio.numerator} of {ratio.denominator})"


def duration(seconds: float) -> str:
    """`12 s`, `3 min`, `2 h`, `5 d`: the two that matter, `1 h 20 min`."""
    whole = int(seconds)
    for (unit, size), (below, smaller) in (
        (("d", 86_400), ("h", 3600)), (("h", 3600), ("min", 60)), (("min", 60), ("s", 1)),
    ):  # fmt: skip
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{seconds:.1f} s"

"""`makegood stats` of real runs is a recount of their records, and their events hold what the table of events says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import pytest

from makegood import (
    ALL,
    BreakerPolicy,
    RecordedCall,
    Result,
    RetryableToolError,
    RetryPolicy,
    ToolError,
    tool,
)
from makegood.monitoring.stats import Ratio, load_stats
from makegood.store.states import State
from makegood.tasks.client import Run
from makegood.tasks.event_types import EVENTS
from makegood.testing import Behaviour, Reply, RequestRecord, Stall, Status
from support.engine import LONG_S, MakeProvider, Workers, begun_anew, calls, limits, make_agent

DATA = {event.type: event.data for event in EVENTS}


@tool(effect="idempotent", identity=("n",), breaker="bookings")
async def book(ctx: Any, n: int) -> str:
    """Books; can be undone."""
    return "booked"


@book.compensate
async def unbook(ctx: Any, call: RecordedCall) -> None:
    """Undoes it."""


@tool(effect="write", identity=ALL, on_failure="keep")
async def act(ctx: Any, n: int) -> str:
    """Does something; 13 is a bug, so that nobody knows whether it did."""
    if n == 13:
        raise ZeroDivisionError
    return "acted"


@tool(effect="read", breaker="stock", retry=RetryPolicy(retries=1, backoff=0.01, jitter=0))
async def look(ctx: Any, n: int) -> str:
    """Looks; 0 is never there, 1 not at first, and 2 is refused."""
    if n == 0 or (n == 1 and ctx.run_id not in SEEN):
        SEEN.add(ctx.run_id)
        raise RetryableToolError("not there")
    if n == 2:
        raise ToolError("refused")
    return "seen"


SEEN: set[str] = set()


def answer(request: RequestRecord) -> Behaviour:
    """What each kind of run does, by the first word of its input."""
    first = not request.results
    match request.messages[0]["content"].split()[0]:
        case "ok":
            return calls(("book", {"n": 1}), ("act", {"n": 1})) if first else Reply("done")
        case "refused":
            return calls(("look", {"n": 2})) if first else Reply("done")
        case "flaky":
            return calls(("look", {"n": 1})) if first else Reply("done")
        case "broken":
            return calls(("look", {"n": 0})) if first else Reply("done")
        case "undone":
            return calls(("book", {"n": 1})) if first else Status(401)
        case "unknown":
            return calls(("act", {"n": 13})) if first else Reply("done")
        case "late":
            return Reply("done") if begun_anew(request) else Stall()
        case _:
            return Stall()


KINDS = (
    ["ok"] * 3
    + ["flaky"] * 2
    + ["refused"] * 2
    + ["undone"] * 2
    + ["unknown", "unknown", "late", "late", "never"]
)


def played(worker: Workers, model: MakeProvider) -> list[tuple[Result, Run]]:
    """A mixed load of two agents to its end, then a breaker that opens and refuses."""
    agent = make_agent(
        model(answer), book, act, look, timeouts=limits(step=2), max_attempts=2, on_failure="rollback"
    )
    other = make_agent(
        model(answer), look, name="b", breaker=BreakerPolicy(failures=3, window=60, open_for=60)
    )
    worker.start(agent, other)
    runs = [worker.enqueue(agent, f"{kind} {n}") for n, kind in enumerate(KINDS)]
    ended = [(run.wait(LONG_S), run) for run in runs]
    for n in range(3):
        run = worker.enqueue(other, f"broken {n}")
        ended.append((run.wait(LONG_S), run))
    return ended


@pytest.mark.contract("I1")
@pytest.mark.contract("I2")
def test_stats_of_real_runs_equal_a_recount(worker: Workers, model: MakeProvider) -> None:
    """Every number of the table, per agent and for all; and every event holds what the table of events says."""
    ended = played(worker, model)
    found = worker.client.run_flow(load_stats("1h"))
    assert [each.agent for each in found.agents] == ["a", "b"]
    for row, of in zip((*found.agents, found.all), (("a",), ("b",), ("a", "b")), strict=True):
        assert_row(row, [result for result, _ in ended if result.agent in of])
    events = [event for _, run in ended for event in run.events()]
    kinds = Counter(event["type"] for event in events)
    requests = kinds["llm.attempt"] - sum(
        event["type"] == "llm.attempt"
        for result, run in ended
        if result.state == State.REVIEW
        for event in run.events()
    )
    assert found.all.model_requests.numerator == requests
    assert sum(found.retries_skipped.values()) == kinds["tool.retry_skipped"] + kinds["llm.retry_skipped"]
    assert sum(found.cleanups.values()) == kinds["cleanup.ended"]
    assert found.cleanups["failed"] == found.reviews_opened == kinds["review.opened"] == 2
    assert [each.name for each in found.breakers] == ["stock"]
    assert found.oldest_s["requires_manual_review"] is not None
    assert found.oldest_s["running"] is None
    settle(worker, [run for result, run in ended if result.state == State.REVIEW])
    unknown = worker.client.run_flow(load_stats("1h")).unknown_outcomes
    assert (unknown["happened"], unknown["not_happened"]) == (1, 1)
    assert_told(event for _, run in ended for event in run.events())
    assert {"cleanup.compensated", "breaker.opened", "tool.retry", "attempt.ended", "review.opened"} <= set(
        kinds
    )


def settle(worker: Workers, runs: list[Run]) -> None:
    """Say of the first unknown call that it happened, and of the second that it did not."""
    marks: dict[Literal["done", "undone"], Run] = {"done": runs[0], "undone": runs[1]}
    for mark, run in marks.items():
        (row,) = (row for row in run.journal() if row["status"] == "unknown")
        worker.client.mark(run.id, row["call_key"], mark, actor="ada", reason="seen")


def assert_row(row: Any, results: list[Result]) -> None:
    """The numbers of some runs, against their records. A run in review has not ended."""
    over = [result for result in results if result.state != State.REVIEW]
    late = [result for result in results if result.error and result.error.code.endswith("_TIMEOUT")]
    retried = [result for result in results if result.attempts > 1 or result.crashes]
    assert row.enqueued == len(results)
    ends = Counter(str(result.state) for result in over)
    assert {outcome: n for outcome, n in row.outcomes.items() if n} == ends
    assert row.steps == Ratio(sum(result.steps for result in over), len(over))
    assert row.tool_calls == Ratio(sum(result.calls for result in over), len(over))
    assert row.cleaned == Ratio(sum(result.state != State.REVIEW for result in late), len(late))
    assert row.recovered == Ratio(sum(result.state == "succeeded" for result in retried), len(retried))
    assert row.now["requires_manual_review"] == len(results) - len(over)
    assert sum(row.now.values()) == len(results) - len(over)


def assert_told(events: Iterable[dict[str, Any]]) -> None:
    """Each event has the data that its type has, and no other; what is said to be in some of them may be missing."""
    for event in events:
        fields = DATA[event["type"]]
        must = {name for name, meaning in fields.items() if ", only " not in meaning}
        assert must <= set(event["data"]) <= set(fields), event


@pytest.mark.contract("I2")
def test_a_run_that_a_person_resolves_stays_not_cleaned_up(worker: Workers, model: MakeProvider) -> None:
    """It timed out with an effect that nothing can undo; when a person lets that stand, the share does not change."""

    @tool(effect="irreversible", identity=ALL)
    async def print_label(ctx: Any) -> str:
        """Cannot be undone."""
        return "printed"

    def script(request: RequestRecord) -> Behaviour:
        return Stall() if request.results else calls(("print_label", {}))

    agent = make_agent(
        model(script), print_label, timeouts=limits(step=1.5), max_attempts=1, on_failure="rollback"
    )
    result, run = worker.run(agent)
    assert result.state == State.REVIEW
    before = worker.client.run_flow(load_stats("1h")).all
    assert (before.cleaned, before.finished) == (Ratio(0, 1), 0)
    worker.client.resolve(run.id, actor="ada", reason="it may stand")
    found = worker.client.run_flow(load_stats("1h"))
    assert (found.all.cleaned, found.all.finished) == (Ratio(0, 1), 1)
    assert {outcome for outcome, n in found.all.outcomes.items() if n} == {"resolved"}
    assert (found.reviews_opened, sum(found.reviews_resolved.values())) == (1, 1)
    assert_told(run.events())

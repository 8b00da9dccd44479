"""What a scrape says of real runs is what their records say (CONTRACT I2)."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from makegood import ALL, RecordedCall, RetryableToolError, ToolError, tool
from makegood.monitoring.collector import StoreCollector
from makegood.monitoring.metrics import METRICS, sample_names
from makegood.store.ops.breakers import set_breaker
from makegood.store.states import State
from makegood.testing import Behaviour, Reply, RequestRecord, Stall, Status
from support.counted import Samples, labels_of, samples_of, scrape, value
from support.engine import LONG_S, MakeProvider, Workers, begun_anew, calls, limits, make_agent

WHO = {"actor": "ada", "reason": "why not"}


@tool(effect="write", identity=ALL)
async def act(ctx: Any, n: int) -> str:
    """Does something; above 100 it refuses."""
    if n > 100:
        raise ToolError("too much")
    return "acted"


@tool(effect="idempotent", identity=("n",), breaker="bookings")
async def book(ctx: Any, n: int) -> str:
    """Books at the second try; 0 can be undone only by hand."""
    if ctx.run_id not in SEEN:
        SEEN.add(ctx.run_id)
        raise RetryableToolError("not there", code="NOT_THERE")
    return "booked"


@book.compensate
async def unbook(ctx: Any, call: RecordedCall) -> None:
    """Undoes it, but not of 0."""
    if call.args["n"] == 0:
        raise ToolError("cannot")


SEEN: set[str] = set()


def answer(request: RequestRecord) -> Behaviour:
    """By the first word of the input: two calls, one refused call, or no model."""
    match request.messages[0]["content"].split()[0]:
        case "two":
            return Reply("done") if request.results else calls(("act", {"n": 1}), ("act", {"n": 2}))
        case "refused":
            return Reply("done") if request.results else calls(("act", {"n": 101}))
        case _:
            return Status(401)


def numbers(collector: StoreCollector) -> Samples:
    """One scrape."""
    return samples_of(scrape(collector))


@pytest.mark.contract("I2")
def test_a_scrape_equals_a_recount_of_the_records(worker: Workers, model: MakeProvider) -> None:
    """Ends, steps, calls, tokens and states of a mixed load; a scrape in the midst of it and one after it only go up."""
    agent = make_agent(model(answer), act)
    worker.start(agent)
    collector = StoreCollector(worker.url, "memory://")
    runs = [
        worker.enqueue(agent, f"{kind} {n}")
        for n, kind in enumerate(["two"] * 4 + ["refused"] * 3 + ["no"] * 2)
    ]
    during = numbers(collector)
    results = [run.wait(LONG_S) for run in runs]
    found = numbers(collector)
    collector.close()
    assert all(
        found[key] >= during[key]
        for key in during
        if key[0].endswith(("_total", "_count", "_bucket", "_sum"))
    )
    ends = Counter(str(result.state) for result in results)
    assert {end: value(found, "runs_finished_total", agent="a", outcome=end) for end in ends} == ends
    assert {end: value(found, "runs_state", agent="a", state=end) for end in ends} == ends
    assert value(found, "runs_enqueued_total", agent="a") == len(runs)
    assert value(found, "run_steps_count", agent="a") == len(runs)
    assert value(found, "run_steps_sum", agent="a") == sum(result.steps for result in results)
    assert value(found, "run_calls_sum", agent="a", kind="tool") == sum(result.calls for result in results)
    assert value(found, "calls_total", tool="act", result="ok") == 8
    assert value(found, "calls_total", tool="act", result="error") == 3
    assert value(found, "call_duration_seconds_count", tool="act", result="ok") == 8
    assert value(found, "run_queue_wait_seconds_count", queue="runs") == len(runs)
    model_name = labels_of(found, "tokens_total", "model").pop()
    assert value(found, "tokens_total", model=model_name, direction="prompt") == sum(result.usage.prompt_tokens for result in results)  # fmt: skip


def faulty(request: RequestRecord) -> Behaviour:
    """A booking, and then: a model that is gone for good, one that answers too late once or always."""
    if begun_anew(request):
        return Reply("done")
    match request.messages[0]["content"].split():
        case [_, n] if not request.results:
            return calls(("book", {"n": int(n)}))
        case ["gone", _]:
            return Status(401)
        case _:
            return Stall()


@pytest.mark.contract("I1")
def test_every_name_that_is_counted_is_in_the_table(
    worker: Workers, model: MakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """Of runs that are tried again, time out, are undone and wait for a person, and of what operators do.

    The collector met no counter that it does not know, and no label has a value that its closed list does not.
    """
    agent = make_agent(
        model(faulty), book, timeouts=limits(call=0.5, step=2), max_attempts=2, on_failure="rollback"
    )
    once = make_agent(
        model(faulty),
        book,
        name="b",
        timeouts=limits(call=0.5, step=2),
        max_attempts=1,
        on_failure="rollback",
    )
    worker.start(agent, once)
    runs = [worker.enqueue(agent, "gone 1"), worker.enqueue(agent, "late 2"), worker.enqueue(once, "late 3")]
    runs += [worker.enqueue(once, f"gone {n}") for n in (0, 0, 0)]
    results = [run.wait(LONG_S) for run in runs]
    assert [str(each.state) for each in results[:3]] == ["failed", "succeeded", "timed_out"]
    assert {each.state for each in results[3:]} == {State.REVIEW}
    operate(worker, [run.id for run in runs])

    collector = StoreCollector(worker.url, "memory://")
    with caplog.at_level(logging.DEBUG, "makegood.monitor"):
        found = numbers(collector)
    collector.close()
    assert [record.message for record in caplog.records if record.name == "makegood.monitor"] == []
    for metric in METRICS:
        for label, values in metric.values.items():
            for name in sample_names(metric):
                assert labels_of(found, name.removeprefix("makegood_"), label) <= set(values), (name, label)
    actions = (
        "cleanup",
        "retry",
        "resume",
        "resolve",
        "mark",
        "timeout_verdict",
        "timeout_set",
        "breaker_open",
        "breaker_close",
    )
    assert {action: value(found, "operator_actions_total", action=action, result="done") for action in actions} == {**dict.fromkeys(actions, 1), "cleanup": 0}  # fmt: skip
    assert value(found, "operator_actions_total", action="cleanup", result="refused") == 1
    assert value(found, "compensations_total", tool="book", result="succeeded") >= 2
    assert value(found, "compensations_total", tool="book", result="failed") >= 3
    assert {action: value(found, "reviews_resolved_total", agent="b", action=action) for action in ("retry", "resume", "resolve")} == {"retry": 1, "resume": 1, "resolve": 1}  # fmt: skip


def operate(worker: Workers, ids: list[str]) -> None:
    """Each thing that an operator can do, once. The last three runs are in review."""
    client = worker.client
    client.judge_timeout(ids[2], "true_kill", **WHO)
    client.cleanup(ids[1], **WHO)
    client.set_timeout("call", "book", 9, **WHO)
    for action in ("open", "close"):
        client.store.do(set_breaker("bookings", action, "ada", "why not"))
    (row,) = client.get(ids[3]).journal()
    client.mark(ids[3], row["call_key"], "undone", **WHO)
    client.resume(ids[3], **WHO)
    client.resolve(ids[4], **WHO)
    client.retry_cleanup(ids[5], **WHO)
    for run_id in (ids[3], ids[5]):
        client.get(run_id).wait(LONG_S)

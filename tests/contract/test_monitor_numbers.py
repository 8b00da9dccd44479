"""What a scrape says of real runs is what their records say (CONTRACT I2)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from makegood import ALL, ToolError, tool
from makegood.monitoring.collector import StoreCollector
from makegood.testing import Behaviour, Reply, RequestRecord, Status
from support.counted import Samples, labels_of, samples_of, scrape, value
from support.engine import LONG_S, MakeProvider, Workers, calls, make_agent


@tool(effect="write", identity=ALL)
async def act(ctx: Any, n: int) -> str:
    """Does something; above 100 it refuses."""
    if n > 100:
        raise ToolError("too much")
    return "acted"


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

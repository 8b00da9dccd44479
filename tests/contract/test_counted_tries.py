"""Counters against what really happened: how often a tool's body was entered, how many requests the provider saw (I2).

A recount from events cannot see what never became an event; these do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from makegood import ALL, NOT_DONE, RecordedCall, RetryableToolError, RetryPolicy, ToolContext, tool
from makegood.store.keys import all_prefixes, prefix_of, run_key
from makegood.store.ops.leases import lose_worker
from makegood.store.ops.numbers import read_totals
from makegood.testing import Behaviour, Reply, RequestRecord, Stall
from support.engine import (
    LONG_S,
    MakeProvider,
    Workers,
    begun_anew,
    calls,
    events_of,
    eventually,
    limits,
    make_agent,
)

AT_ONCE = RetryPolicy(retries=2, backoff=0.01, jitter=0)
SLOWLY = RetryPolicy(retries=3, backoff=60, max_backoff=60, jitter=0)
"""So slowly that whoever waits for the next try is stopped or lost first."""


def totals(worker: Workers, series: str) -> Counter[str]:
    """Counters and histograms of a tool, agent or model, over all shards."""
    found: Counter[str] = Counter()
    for each in worker.client.store.do_all([read_totals(prefix, series) for prefix in all_prefixes()]):
        found.update(each)
    return found


def tries(worker: Workers, name: str) -> Counter[str]:
    """Tries of a tool by how they ended."""
    found: Counter[str] = Counter()
    for field, n in totals(worker, f"tool:{name}").items():
        _, result, *bucket = field.split("|")
        if bucket != ["sum"]:
            found[result] += n
    return found


@pytest.mark.contract("I2")
def test_a_limit_that_ends_the_last_try_of_a_call_has_fired_too(worker: Workers, model: MakeProvider) -> None:
    """Three tries, each cut by its own limit: three."""

    @tool(effect="read", timeout=0.3, retry=AT_ONCE)
    async def act(ctx: ToolContext) -> None:
        await asyncio.sleep(LONG_S)

    _, run = worker.run(make_agent(model([calls(("act", {})), Reply("done")]), act))
    assert tries(worker, "act") == Counter(timeout=3)
    assert worker.counters()["timeouts_total|a|call"] == 3
    (ended,) = events_of(run, "tool.ended")
    assert (ended["data"]["result"], ended["data"]["level"]) == ("timeout", "call")


@pytest.mark.contract("I2")
@pytest.mark.parametrize("how", ["let go", "lost"])
def test_a_call_that_only_waits_for_its_next_try_is_not_under_way(
    worker: Workers, model: MakeProvider, how: str
) -> None:
    """Its worker is let go of, or lost: no try that was never made is counted, and the retry once."""
    ran: list[str] = []

    @tool(effect="read", retry=SLOWLY)
    async def act(ctx: ToolContext) -> str:
        ran.append(ctx.run_id)
        if len(ran) == 1:
            raise RetryableToolError("later")
        return "acted"

    agent = make_agent(model([calls(("act", {})), Reply("done")]), act, timeouts=limits(step=200, run=200))
    first = worker.start(agent, grace_s=2)
    run = worker.enqueue(agent)
    eventually(lambda: events_of(run, "tool.retry"), "it backs off")
    if how == "let go":
        worker.stop(first)
    else:
        worker.pump.detach(first)
        op = lose_worker(prefix_of(run.id), first.env.worker, only_expired=False, death=False)
        assert worker.client.store.do(op).run_ids == (run.id,)
        worker.client.publisher.wake(run.id)
    worker.start(agent)
    assert run.wait(LONG_S).state == "succeeded"
    assert tries(worker, "act") == Counter(error=1, ok=1)
    assert len(ran) == 2
    assert worker.counters()["retries_total|tool|RETRYABLE"] == 1


@pytest.mark.contract("I2")
def test_a_request_is_told_also_when_the_way_to_the_next_attempt_is_refused(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """A declared resource stands when the step times out: cleanup comes first, and nothing that waited is lost."""

    async def snapshot(ctx: Any, value: Any) -> None:
        await ctx.declare("path", str(tmp_path / "file"))

    def script(request: RequestRecord) -> Behaviour:
        return Reply("done") if begun_anew(request) else Stall()

    provider = model(script)
    agent = make_agent(provider, timeouts=limits(step=1.5), max_attempts=2, snapshot=snapshot)
    _, run = worker.run(agent)
    requests = worker.client.store.redis.hget(run_key(run.id), "requests")
    assert len(provider.requests) == len(events_of(run, "llm.attempt")) == int(requests)


@pytest.mark.contract("I2")
def test_what_a_reply_has_cost_counts_also_when_its_run_ends_before_it_is_used(
    worker: Workers, model: MakeProvider
) -> None:
    """A hook that breaks after the last reply."""

    async def before_end(ctx: Any, output: Any) -> None:
        raise ZeroDivisionError

    agent = make_agent(model([Reply("done")]), before_end=before_end)
    result, run = worker.run(agent)
    (asked,) = events_of(run, "llm.attempt")
    usage = asked["data"]["usage"]
    assert result.state == "failed"
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == tuple(usage.values())
    counted = totals(worker, f"model:{agent.model}")
    assert counted["tokens_total|prompt"] == usage["prompt_tokens"] > 0


@pytest.mark.contract("I2")
def test_a_cleanup_is_measured_over_all_its_passes(worker: Workers, model: MakeProvider) -> None:
    """An unknown call may be settled after 2 s, in a second pass."""

    @tool(effect="write", identity=ALL, settle_after=2.0, on_failure="keep")
    async def act(ctx: ToolContext) -> None:
        raise ZeroDivisionError

    @act.probe
    async def probe(ctx: ToolContext, call: RecordedCall) -> Any:
        return NOT_DONE

    agent = make_agent(model([calls(("act", {})), Reply("done")]), act)
    _, run = worker.run(agent)
    assert len(events_of(run, "cleanup.started")) >= 2
    assert totals(worker, f"agent:{agent.name}")["cleanup_duration_seconds|sum"] >= 1900

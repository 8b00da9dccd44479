"""Limits that are set while a worker runs: the next try, the next step, the attempt that is under way (CONTRACT A7)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from makegood import Agent, Result, RetryableToolError, RetryPolicy, ToolContext, agent, tool
from makegood.monitoring.limits import load_limits
from makegood.tasks.tool import Tool
from makegood.testing import Behaviour, Reply, RequestRecord, Stall
from makegood.workers.runtime import Runtime
from support.engine import (
    LONG_S,
    MODEL,
    MakeProvider,
    Workers,
    calls,
    events_of,
    eventually,
    limits,
    make_agent,
)

WITHIN_S = 5.0
"""What A7 promises."""

NO_RETRY = RetryPolicy(retries=0)

WHO = {"actor": "ada", "reason": "the downstream is slow today"}


def by_hand(runtime: Runtime) -> dict[str, float]:
    """What the worker knows to be set."""
    return dict(runtime.env.limits.set_by_hand)


def limit_set(worker: Workers, level: str, name: str, seconds: float | None) -> None:
    """Set a limit, and see that it comes to all workers by itself."""
    worker.client.set_timeout(level, name, seconds, **WHO)
    wanted = {f"{level}|{name}": seconds} if seconds else {}
    for runtime in worker.runtimes:
        eventually(lambda runtime=runtime: by_hand(runtime) == wanted, "the worker follows", WITHIN_S)


async def set_inside(worker: Workers, level: str, name: str, seconds: float) -> None:
    """From a tool: set a limit, and let its worker read it now."""
    await asyncio.to_thread(worker.client.set_timeout, level, name, seconds, **WHO)
    await worker.runtimes[0].env.limits.refresh()


def change_of(worker: Workers, level: str, name: str, seconds: float) -> Tool[Any, Any]:
    """A tool that sets a limit while its own run is under way."""

    @tool(effect="read")
    async def change(ctx: ToolContext) -> str:
        await set_inside(worker, level, name, seconds)
        return "changed"

    return change


def made_of_code(model: MakeProvider, code: Callable[[Any, Any], Any], *tools: Any, run_s: float) -> Agent:
    """An agent `code` of one attempt that may last `run_s`."""
    return agent(
        name="code", model=MODEL, tools=tools, timeouts=limits(run=run_s), max_attempts=1,
        model_args={"api_base": model().url, "api_key": "k"},
    )(code)  # fmt: skip


DECLARED_S = (0.5, 2.0, 8.0)
"""Limits to be outlasted, shortest first: the first one within which this machine comes to where it is raised is taken."""


def outlasting(worker: Workers, make: Callable[[float, list[float]], Agent]) -> Result:
    """How a run ends whose limit is raised in time.

    `make` is given the limit to declare, and a list to which the run adds as soon as the new limit holds.
    """
    for declared_s in DECLARED_S:
        raised: list[float] = []
        made = make(declared_s, raised)
        runtime = worker.start(made)
        result, _ = worker.run(made)
        if raised:
            return result
        assert (result.state, result.error and result.error.code) == ("timed_out", "RUN_TIMEOUT")
        worker.stop(runtime)
        worker.client.set_timeout("run", made.name, None, **WHO)
    raise AssertionError(f"no limit was raised within {declared_s:g} s")


def steps_of(*names: str) -> Any:
    """A model that asks for these tools, one a step, and then answers."""

    def play(request: RequestRecord) -> Behaviour:
        done = len(request.results)
        return calls((names[done], {})) if done < len(names) else Reply("done")

    return play


@pytest.mark.contract("A7")
@pytest.mark.parametrize("is_async", [True, False])
def test_a_limit_of_a_tool_reaches_a_running_worker_and_goes_again(
    worker: Workers, model: MakeProvider, is_async: bool
) -> None:
    """Set, then default: without a restart the tool of 30 s is cut after 0.2 s, then lasts again."""
    holds_s: list[float] = []

    @tool(effect="read", timeout=30)
    async def wait(ctx: ToolContext) -> str:
        holds_s.append(ctx.deadline.remaining())
        return await ctx.cancelled.wait() and "late" if holds_s[-1] < 1 else "in time"

    @tool(effect="read", timeout=30)
    def wait_sync(ctx: ToolContext) -> str:
        holds_s.append(ctx.deadline.remaining())
        while holds_s[-1] < 1 and not ctx.cancelled.is_set():
            time.sleep(0.01)
        return "in time"

    name = "wait" if is_async else "wait_sync"
    made = make_agent(model(steps_of(name)), wait, wait_sync, tool_retry=NO_RETRY)
    worker.start(made)
    assert worker.run(made)[0].state == "succeeded"
    limit_set(worker, "call", name, 0.2)
    result, run = worker.run(made)
    assert (result.state, result.error and result.error.code) == ("failed", "TOOL_RETRIES")
    assert run.journal()[0]["error"] == {
        "code": "TOOL_TIMEOUT",
        "message": f"{name} did not end within its limit (0.2 s, call).",
    }
    limit_set(worker, "call", name, None)
    assert worker.run(made)[0].state == "succeeded"
    assert min(holds_s[0], holds_s[-1]) > 1


@pytest.mark.contract("A7")
def test_the_next_try_of_a_call_has_the_limit_that_is_set_by_then(
    worker: Workers, model: MakeProvider
) -> None:
    """The try that has begun keeps the one it began with."""
    left_s: list[float] = []

    @tool(effect="read", timeout=30)
    async def ask(ctx: ToolContext) -> str:
        if not left_s:
            await set_inside(worker, "call", "ask", 9)
        left_s.append(ctx.deadline.remaining())
        if len(left_s) == 1:
            raise RetryableToolError("again")
        return "ok"

    result, _ = worker.run(make_agent(model(steps_of("ask")), ask))
    assert result.state == "succeeded"
    assert 9 < left_s[0] < 30
    assert 0 < left_s[1] < 9


@pytest.mark.contract("A7")
def test_a_step_that_begins_has_the_limit_that_is_set_by_then(worker: Workers, model: MakeProvider) -> None:
    """The step in which it was set goes on; the model then stalls in the next one, which is cut."""
    change = change_of(worker, "step", "a", 0.5)

    def play(request: RequestRecord) -> Behaviour:
        return Stall() if request.results else calls(("change", {}))

    result, _ = worker.run(make_agent(model(play), change, timeouts=limits(), max_attempts=1))
    assert result.error is not None
    assert result.error.code == "STEP_TIMEOUT"
    assert "its limit of 0.5 s" in result.error.message


@pytest.mark.contract("A7")
def test_an_attempt_under_way_is_cut_at_its_next_step_by_a_shorter_limit(
    worker: Workers, model: MakeProvider
) -> None:
    """It has used more than it may now: there is no second model request."""
    change = change_of(worker, "run", "a", 0.001)
    provider = model(steps_of("change"))
    result, _ = worker.run(make_agent(provider, change, timeouts=limits(), max_attempts=1))
    assert (result.state, result.error and result.error.code) == ("timed_out", "RUN_TIMEOUT")
    assert "its limit of 0.001 s" in str(result.error and result.error.message)
    assert len(provider.requests) == 1


@pytest.mark.contract("A7")
def test_an_attempt_under_way_lasts_longer_from_its_next_step_on(
    worker: Workers, model: MakeProvider
) -> None:
    """L3 is raised in the first step; the second step outlasts what was declared, and the total that followed from it."""

    def make(declared_s: float, raised: list[float]) -> Agent:
        @tool(effect="read")
        async def linger(ctx: ToolContext) -> str:
            raised.append(ctx.deadline.remaining())
            await asyncio.sleep(declared_s + 0.1)
            return "late"

        return make_agent(
            model(steps_of("change", "linger")),
            change_of(worker, "run", "a", 60),
            linger,
            timeouts=limits(run=declared_s, cleanup=0.001),
            max_attempts=1,
        )

    result = outlasting(worker, make)
    assert (result.state, result.attempts) == ("succeeded", 1)


@tool(effect="read")
async def look(ctx: ToolContext) -> str:
    """Looks."""
    return "seen"


@pytest.mark.contract("A7")
def test_an_agent_made_of_code_lasts_longer_from_its_next_operation_on(
    worker: Workers, model: MakeProvider
) -> None:
    """The operation is the boundary; the code outlasts what was declared."""

    def make(declared_s: float, raised: list[float]) -> Agent:
        change = change_of(worker, "run", "code", 60)

        async def code(ctx: Any, value: Any) -> float:
            await ctx.call(change)
            await ctx.call(look)
            raised.append(ctx.deadline.remaining())
            await asyncio.sleep(declared_s + 0.1)
            return raised[0]

        return made_of_code(model, code, change, look, run_s=declared_s)

    result = outlasting(worker, make)
    assert result.state == "succeeded"
    assert result.output > LONG_S


@pytest.mark.contract("A7")
def test_an_agent_made_of_code_is_cut_at_its_next_operation_by_a_shorter_limit(
    worker: Workers, model: MakeProvider
) -> None:
    """The operation is not begun."""
    change = change_of(worker, "run", "code", 0.001)

    async def code(ctx: Any, value: Any) -> None:
        await ctx.call(change)
        await ctx.call(look)

    result, run = worker.run(made_of_code(model, code, change, look, run_s=60))
    assert (result.state, result.error and result.error.code) == ("timed_out", "RUN_TIMEOUT")
    assert [row["tool"] for row in run.journal()] == ["change"]


@pytest.mark.contract("A7")
def test_code_that_waits_is_cut_when_the_limit_that_came_meanwhile_is_over(
    worker: Workers, model: MakeProvider
) -> None:
    """The boundary is an operation beside it; nobody waits for the limit of 60 s that was declared."""
    change = change_of(worker, "run", "code", 1.5)

    async def code(ctx: Any, value: Any) -> None:
        await ctx.call(change)
        await ctx.model([{"role": "user", "content": "hello"}])
        await asyncio.Event().wait()

    result, _ = worker.run(made_of_code(model, code, change, run_s=60))
    assert (result.state, result.error and result.error.code) == ("timed_out", "RUN_TIMEOUT")


@pytest.mark.contract("A7")
def test_a_run_that_is_continued_has_the_limit_of_now(worker: Workers, model: MakeProvider) -> None:
    """Its worker drains between two steps; the limit is set; the next worker claims a run that has used more than that."""
    inside: list[float] = []

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        worker.runtimes[0].drain()
        inside.append(ctx.deadline.remaining())
        return "seen"

    made = make_agent(model(steps_of("look")), look, timeouts=limits(), max_attempts=1)
    first = worker.start(made)
    run = worker.enqueue(made)
    eventually(lambda: run.status() == "queued" and inside, "it is handed over")
    worker.stop(first)
    worker.client.set_timeout("run", "a", 0.001, **WHO)
    worker.start(made)
    result = run.wait(LONG_S)
    assert (result.state, result.error and result.error.code) == ("timed_out", "RUN_TIMEOUT")
    assert len(events_of(run, "run.continued")) == 1


@pytest.mark.contract("A7")
def test_whatever_goes_by_a_tools_limit_goes_by_the_one_that_is_set(
    worker: Workers, model: MakeProvider
) -> None:
    """What another try would cost (C7): 25 s do not fit a step of 20 s, though the declared second would."""

    @tool(effect="read", timeout=1)
    async def ask(ctx: ToolContext) -> str:
        await set_inside(worker, "call", "ask", 25)
        raise RetryableToolError("again")

    result, run = worker.run(make_agent(model(steps_of("ask")), ask, timeouts=limits(step=20)))
    assert (result.state, result.error and result.error.code) == ("failed", "TOOL_RETRIES")
    (skipped,) = events_of(run, "tool.retry_skipped")
    assert skipped["data"]["needed_s"] == pytest.approx(25, abs=0.1)


@pytest.mark.contract("A7")
def test_the_percentiles_of_every_level_can_be_read_at_any_time(worker: Workers, model: MakeProvider) -> None:
    """Each try, step and attempt is a sample: of its tool or of its agent."""

    @tool(effect="read", slow=True)
    async def look(ctx: ToolContext) -> str:
        return "seen"

    made = make_agent(model(steps_of("look")), look, timeouts=limits(step=20))
    worker.start(made)
    for _ in range(3):
        assert worker.run(made)[0].state == "succeeded"
    worker.client.set_timeout("run", "a", 40, **WHO)
    rows = {(row.level, row.name): row for row in worker.client.run_flow(load_limits()).rows}
    assert {place: row.samples for place, row in rows.items()} == {
        ("call", "look"): 3,
        ("step", "a"): 6,
        ("run", "a"): 3,
    }
    for row in rows.values():
        assert 0 <= (row.p50_s or 0) <= (row.p95_s or 0) <= (row.p99_s or 0) <= (row.max_s or 0) < LONG_S
    assert {place: (row.threshold_s, row.source) for place, row in rows.items()} == {
        ("call", "look"): (LONG_S, "agent"),
        ("step", "a"): (20, "agent"),
        ("run", "a"): (40, "set"),
    }

"""Limits that are set while a worker runs: the next try, the next step, the attempt that is under way (CONTRACT A7)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from makegood import Client, RetryableToolError, RetryPolicy, ToolContext, agent, tool
from makegood.monitoring.limits import load_limits
from makegood.store.async_store import AsyncStore
from makegood.tasks.limits import LimitBoard
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
from support.servers import ServerFactory, kill

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
    assert [round(each) for each in holds_s] == [30, 0, 30]


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

    @tool(effect="read")
    async def change(ctx: ToolContext) -> str:
        await set_inside(worker, "step", "a", 0.5)
        return "changed"

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

    @tool(effect="read")
    async def change(ctx: ToolContext) -> str:
        await set_inside(worker, "run", "a", 0.001)
        return "changed"

    provider = model(steps_of("change"))
    result, _ = worker.run(make_agent(provider, change, timeouts=limits(), max_attempts=1))
    assert (result.state, result.error and result.error.code) == ("timed_out", "RUN_TIMEOUT")
    assert "its limit of 0.001 s" in str(result.error and result.error.message)
    assert len(provider.requests) == 1


@pytest.mark.contract("A7")
def test_an_attempt_under_way_lasts_longer_from_its_next_step_on(
    worker: Workers, model: MakeProvider
) -> None:
    """L3 of 2 s is raised in the first step; the second step outlasts it, and the total that followed from it."""
    began_s: list[float] = []

    @tool(effect="read")
    async def change(ctx: ToolContext) -> str:
        began_s.append(time.monotonic())
        await set_inside(worker, "run", "a", 60)
        return "changed"

    @tool(effect="read")
    async def linger(ctx: ToolContext) -> str:
        await asyncio.sleep(began_s[0] + 2.2 - time.monotonic())  # until after the limit that was declared
        return "late"

    made = make_agent(
        model(steps_of("change", "linger")),
        change,
        linger,
        timeouts=limits(run=2, cleanup=0.001),
        max_attempts=1,
    )
    result, _ = worker.run(made)
    assert (result.state, result.attempts) == ("succeeded", 1)


@pytest.mark.contract("A7")
@pytest.mark.parametrize(
    ("declared_s", "set_s", "ends"), [(2.0, 60.0, "succeeded"), (60.0, 0.001, "timed_out")]
)
def test_an_agent_made_of_code_follows_too(
    worker: Workers, model: MakeProvider, declared_s: float, set_s: float, ends: str
) -> None:
    """Its next operation is the boundary: from there on it lasts longer, or is over."""
    began_s: list[float] = []

    @tool(effect="read")
    async def change(ctx: ToolContext) -> str:
        began_s.append(time.monotonic())
        await set_inside(worker, "run", "code", set_s)
        return "changed"

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        return "seen"

    @agent(
        name="code", model=MODEL, tools=[change, look], timeouts=limits(run=declared_s), max_attempts=1,
        model_args={"api_base": model().url, "api_key": "k"},
    )  # fmt: skip
    async def code(ctx: Any, value: Any) -> float:
        await ctx.call(change)
        await ctx.call(look)
        left_s: float = ctx.deadline.remaining()
        await asyncio.sleep(began_s[0] + 2.2 - time.monotonic())
        return left_s

    result, _ = worker.run(code)
    assert result.state == ends
    assert result.output is None or result.output > 50


@pytest.mark.contract("A7")
def test_code_that_waits_is_cut_when_the_limit_that_came_meanwhile_is_over(
    worker: Workers, model: MakeProvider
) -> None:
    """The boundary is an operation beside it; nobody waits for the limit of 60 s that was declared."""

    @tool(effect="read")
    async def change(ctx: ToolContext) -> str:
        await set_inside(worker, "run", "code", 1.5)
        return "changed"

    @agent(
        name="code", model=MODEL, tools=[change], timeouts=limits(run=60), max_attempts=1,
        model_args={"api_base": model().url, "api_key": "k"},
    )  # fmt: skip
    async def code(ctx: Any, value: Any) -> None:
        await ctx.call(change)
        await ctx.model([{"role": "user", "content": "hello"}])
        await asyncio.Event().wait()

    result, _ = worker.run(code)
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


def test_without_a_store_the_last_known_limits_hold(model: MakeProvider, fresh_server: ServerFactory) -> None:
    """A worker does not fall back to what was declared because its store is away for a moment."""
    server = fresh_server()

    async def play() -> None:
        board = LimitBoard(AsyncStore(server.url, patience_s=0.2))
        await asyncio.to_thread(set_at, server.url)
        await board.refresh()
        await asyncio.to_thread(kill, server)
        with pytest.raises(ConnectionError):
            await board.refresh()
        made = make_agent(model(), look_up)
        assert board.call_s(made, look_up) == 3
        await board.store.aclose()

    asyncio.run(play())


@tool(effect="write", identity=("n",), timeout=8)
async def look_up(ctx: ToolContext, n: int = 1) -> None:
    """With a limit of its own."""


def set_at(url: str) -> None:
    """Set the limit of `look_up` at another server."""
    with Client(url) as client:
        client.set_timeout("call", "look_up", 3, **WHO)


@pytest.mark.contract("A7")
def test_the_limits_of_a_worker_are_those_set_over_those_declared(model: MakeProvider) -> None:
    """Each level for itself; the total follows L3 unless it was declared; a shorter limit settles nothing sooner."""
    made = make_agent(model(), look_up, timeouts=limits(step=20, run=40, cleanup=5), max_attempts=2)
    fixed = make_agent(model(), look_up, name="b", timeouts=limits(total=7))
    board = LimitBoard(store=None)  # type: ignore[arg-type]  # nothing is read here
    declared = (
        board.call_s(made, look_up),
        board.settle_after_s(made, look_up),
        board.step_s(made),
        board.run_s(made),
    )
    assert (*declared, board.total_s(made)) == (8, 8, 20, 40, 85)
    board.set_by_hand = {"call|look_up": 3.0, "step|a": 2.0, "run|a": 100.0, "run|b": 100.0}
    held = (
        board.call_s(made, look_up),
        board.settle_after_s(made, look_up),
        board.step_s(made),
        board.run_s(made),
    )
    assert (*held, board.total_s(made)) == (3, 8, 2, 100, 205)
    assert (board.run_s(fixed), board.total_s(fixed), board.call_s(fixed, look_up)) == (100, 7, 3)


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
    rows = {(row.level, row.name): row for row in worker.client.run_flow(load_limits())}
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

"""Three levels of time: explicit deadlines, handed down, and nothing that outlives them (CONTRACT A)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from makegood import ALL, RetryPolicy, tool
from makegood.testing import Reply, RequestRecord, Stall
from support import engine_tools
from support.engine import (
    LONG_S,
    MakeProvider,
    Shop,
    Workers,
    calls,
    events_of,
    eventually,
    limits,
    make_agent,
    told,
)

MakeShop = Callable[..., Shop]
NONE = RetryPolicy(retries=0)


def is_alive(pid: int) -> bool:
    """Whether a process exists (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.contract("A3", "D1")
@pytest.mark.parametrize("is_async", [True, False])
def test_the_deadline_and_the_key_travel_with_each_request_of_a_tool(
    worker: Workers, model: MakeProvider, shop: MakeShop, is_async: bool
) -> None:
    """The server sees the run, the key of the row, and a deadline that shrinks with what is left of the call."""
    there = shop()

    @tool(effect="idempotent", identity=("n",), timeout=20)
    async def ask(ctx: Any, n: int) -> Any:
        return [(await ctx.http.post(there.url)).json(), ctx.deadline.remaining()]

    @tool(effect="idempotent", identity=("n",), timeout=20)
    def ask_sync(ctx: Any, n: int) -> Any:
        return [ctx.http.post(there.url).json(), ctx.deadline.remaining()]

    name = "ask" if is_async else "ask_sync"
    provider = model([calls((name, {"n": 1})), Reply("done")])
    result, run = worker.run(make_agent(provider, ask, ask_sync))
    assert result.state == "succeeded"
    (row,), (request,) = run.journal(), there.requests
    assert request.headers["idempotency-key"] == row["idempotency_key"] == f"{run.id}:{row['call_key']}:1"
    assert request.headers["x-run-id"] == run.id
    assert row["response"][1] * 1000 < int(request.headers["x-deadline-ms"]) <= 20_000


@pytest.mark.contract("A2")
def test_the_deadline_of_a_tool_is_the_smallest_of_its_levels(worker: Workers, model: MakeProvider) -> None:
    """A tool of 30 s in a step of 20 s in an attempt of 10 s has less than 10 s."""

    @tool(effect="read", timeout=30)
    async def left(ctx: Any) -> float:
        remaining: float = ctx.deadline.remaining()
        return remaining

    provider = model([calls(("left", {})), Reply("done")])
    _, run = worker.run(make_agent(provider, left, timeouts=limits(step=20, run=10)))
    assert 0 < run.journal()[0]["response"] < 10


@pytest.mark.contract("A1", "A2")
@pytest.mark.parametrize("is_async", [True, False])
def test_a_request_that_hangs_is_cut_at_the_limit_of_its_call_and_the_server_sees_the_end(
    worker: Workers, model: MakeProvider, shop: MakeShop, is_async: bool
) -> None:
    """L1 of 0.2 s: the connection is closed, the tool ends, the model is told TOOL_TIMEOUT."""
    there = shop(Stall())

    @tool(effect="read", timeout=0.2, retry=NONE)
    async def ask(ctx: Any) -> str:
        return str((await ctx.http.get(there.url)).text)

    @tool(effect="read", timeout=0.2, retry=NONE)
    def ask_sync(ctx: Any) -> str:
        return str(ctx.http.get(there.url).text)

    provider = model([calls(("ask" if is_async else "ask_sync", {})), Reply("done")])
    result, run = worker.run(make_agent(provider, ask, ask_sync))
    assert there.requests[0].connection.peer_closed.wait(LONG_S)
    assert result.error is not None
    assert result.error.code == "TOOL_RETRIES"
    (row,) = run.journal()
    assert row["status"] == "failed"
    assert row["error"]["code"] == "TOOL_TIMEOUT"


@pytest.mark.contract("A2")
def test_after_the_attempts_limit_no_connection_of_it_is_open(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """L3 is reached while a tool waits downstream and keeps an idle connection: the server sees both closed."""
    idle, stalled = shop(), shop(Stall())

    @tool(effect="read")
    async def ask(ctx: Any) -> str:
        await ctx.http.get(idle.url)
        return str((await ctx.http.get(stalled.url)).text)

    provider = model([calls(("ask", {}))])
    result, _ = worker.run(make_agent(provider, ask, timeouts=limits(run=0.6), max_attempts=1))
    assert result.state == "timed_out"
    assert result.error is not None
    assert result.error.code == "RUN_TIMEOUT"
    assert idle.requests[0].connection.peer_closed.wait(LONG_S)
    assert stalled.requests[0].connection.peer_closed.wait(LONG_S)


@pytest.mark.contract("A1", "C11")
def test_a_step_that_does_not_end_is_followed_by_a_new_attempt(worker: Workers, model: MakeProvider) -> None:
    """The model stalls until L2; the second attempt answers."""
    provider = model([Stall(), Reply("done")])
    result, run = worker.run(make_agent(provider, timeouts=limits(step=1)))
    assert (result.state, result.attempts) == ("succeeded", 2)
    assert provider.requests[0].connection.peer_closed.wait(LONG_S)
    (ended,) = [e for e in events_of(run, "attempt.ended") if e["attempt"] == 1]
    assert ended["data"]["code"] == "STEP_TIMEOUT"


@pytest.mark.contract("A1", "C11")
def test_a_run_has_at_most_its_attempts_and_then_ends_as_timed_out(
    worker: Workers, model: MakeProvider
) -> None:
    """Three attempts, three requests, one end."""
    provider = model(lambda _: Stall())
    result, run = worker.run(make_agent(provider, timeouts=limits(step=0.2)))
    assert (result.state, result.attempts, len(provider.requests)) == ("timed_out", 3, 3)
    assert result.error is not None
    assert result.error.code == "STEP_TIMEOUT"
    assert len(events_of(run, "run.ended")) == 1
    assert len(events_of(run, "attempt.started")) == 3


@pytest.mark.contract("C11")
@pytest.mark.parametrize("limit", [{"step": 0.3}, {"run": 0.3}])
def test_tool_calls_count_towards_step_and_attempt(
    worker: Workers, model: MakeProvider, limit: dict[str, float]
) -> None:
    """A tool that would take for ever is cut by the level that is reached first, and nothing of it goes on."""
    cut: list[str] = []

    @tool(effect="read")
    async def wait(ctx: Any) -> None:
        try:
            await ctx.cancelled.wait()
        finally:
            cut.append(ctx.run_id)

    provider = model(lambda _: calls(("wait", {})))
    result, run = worker.run(make_agent(provider, wait, timeouts=limits(**limit), max_attempts=2))
    code = "STEP_TIMEOUT" if "step" in limit else "RUN_TIMEOUT"
    assert result.state == "timed_out"
    assert result.error is not None
    assert result.error.code == code
    assert cut == [run.id] * 2
    assert {row["error"]["code"] for row in run.journal()} == {"TOOL_TIMEOUT"}


@pytest.mark.contract("A1", "C7")
def test_the_total_decides_whether_another_attempt_may_begin(worker: Workers, model: MakeProvider) -> None:
    """Half an L3 does not fit what is left of total: the event names both numbers, the run ends."""
    provider = model(lambda _: Stall())
    result, run = worker.run(make_agent(provider, timeouts=limits(step=0.3, run=60, total=10)))
    assert (result.state, result.attempts) == ("timed_out", 1)
    (skipped,) = events_of(run, "llm.retry_skipped")
    assert skipped["data"]["needed_s"] == 30
    assert 0 < skipped["data"]["left_s"] < 10


@pytest.mark.contract("A1")
def test_the_total_bounds_the_run_from_its_first_claim(worker: Workers, model: MakeProvider) -> None:
    """Total of 0.4 s, everything else long: TOTAL_TIMEOUT, no second attempt."""
    provider = model(lambda _: Stall())
    result, _ = worker.run(make_agent(provider, timeouts=limits(total=0.4)))
    assert (result.state, result.attempts) == ("timed_out", 1)
    assert result.error is not None
    assert result.error.code == "TOTAL_TIMEOUT"


def test_a_tool_that_swallows_its_cancellation_is_cancelled_until_it_ends(
    worker: Workers, model: MakeProvider
) -> None:
    """It ignores the first three cancels; the run waits, shown as stopping, and its end comes after the tool's."""
    import asyncio

    swallowed: list[float] = []

    @tool(effect="read", timeout=0.1, retry=NONE)
    async def stubborn(ctx: Any) -> str:
        while len(swallowed) < 3:
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError:
                swallowed.append(time.monotonic())
        return "late"

    provider = model([calls(("stubborn", {})), Reply("done")])
    agent = make_agent(provider, stubborn)
    worker.start(agent)
    run = worker.enqueue(agent)
    info = eventually(lambda: (i := run.info())["state"] == "stopping" and i, "the run is stopping")
    assert info["activity_detail"]["call"] == "stubborn"
    assert info["activity_detail"]["for_s"] > 0
    result = run.wait(LONG_S)
    assert len(swallowed) == 3
    assert result.state == "failed"
    assert run.journal()[0]["error"]["code"] == "TOOL_TIMEOUT"
    assert run.journal()[0]["response"] is None


def test_nothing_is_logged_by_a_call_that_is_over(
    worker: Workers, model: MakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """A logger that a tool kept is silent after its call."""
    kept: list[Any] = []

    @tool(effect="read")
    async def keep(ctx: Any) -> str:
        kept.append(ctx.log)
        ctx.log.warning("during")
        return "ok"

    provider = model([calls(("keep", {})), Reply("done")])
    worker.run(make_agent(provider, keep))
    kept[0].warning("after")
    said = [record.getMessage() for record in caplog.records if record.name == "makegood.tool"]
    assert len(said) == 1
    assert said[0].startswith("during [run=")


# --- isolation="process" ------------------------------------------------------------------------------------------------


def test_a_tool_in_a_process_of_its_own_gives_its_value_and_its_errors(
    worker: Workers, model: MakeProvider
) -> None:
    """Arguments, results, business errors, bugs and prints of a child are those of a tool in a thread."""
    asked = calls(("triple", {"n": 14}), ("refuse", {}), ("print_much", {}), ("broken", {}))
    provider = model([asked, Reply("done")])
    result, run = worker.run(make_agent(provider, *engine_tools.ALL_TOOLS))
    assert result.state == "succeeded"
    rows = {row["tool"]: row for row in run.journal()}
    assert rows["triple"]["response"] == 42
    assert rows["refuse"]["error"] == {"code": "NOPE", "message": "no"}
    assert rows["print_much"]["response"] == "quiet"
    assert rows["broken"]["error"]["code"] == "BUG"
    assert "ZeroDivisionError" in rows["broken"]["error"]["message"]


@pytest.mark.contract("A1", "A2")
def test_a_tool_in_a_process_of_its_own_is_killed_at_its_limit_with_all_its_children(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """Busy in C code, with a child of its own: both are gone when the call has ended."""
    provider = model([calls(("spin", {"folder": str(tmp_path)})), Reply("done")])
    result, run = worker.run(make_agent(provider, *engine_tools.ALL_TOOLS))
    assert result.error is not None
    assert result.error.code == "TOOL_RETRIES"
    assert run.journal()[0]["error"]["code"] == "TOOL_TIMEOUT"
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    eventually(lambda: not any(is_alive(pid) for pid in pids), "both processes are gone")


def test_a_process_that_dies_is_a_bug_told_to_the_model(worker: Workers, model: MakeProvider) -> None:
    """SIGKILL, as the kernel sends it when memory is short: the worker and the run live on."""
    provider = model([calls(("die", {})), Reply("done")])
    result, run = worker.run(make_agent(provider, *engine_tools.ALL_TOOLS))
    assert result.state == "succeeded"
    assert told(provider.requests[1])["code"] == "PROCESS_DIED"
    assert "signal 9" in run.journal()[0]["error"]["message"]


def test_a_tool_in_a_process_sends_the_headers_too(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """ctx.http of a child carries run, key and deadline."""
    there = shop()
    provider = model([calls(("post", {"url": there.url})), Reply("done")])
    _, run = worker.run(make_agent(provider, *engine_tools.ALL_TOOLS))
    (row,) = run.journal()
    assert row["status"] == "succeeded"
    assert there.keys == [row["idempotency_key"]]
    assert 0 < int(there.requests[0].headers["x-deadline-ms"]) <= 30_000


# --- bodies that must not take the worker along -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MemoryError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("is_async", [True, False])
def test_what_would_end_a_process_ends_the_run_and_not_the_worker(
    worker: Workers, model: MakeProvider, kind: type[BaseException], is_async: bool
) -> None:
    """MemoryError and the like in a tool: this run's work ends at once, the next one on the same worker succeeds."""

    @tool(effect="write", identity=ALL)
    async def explode(ctx: Any) -> None:
        raise kind("boom")

    @tool(effect="write", identity=ALL)
    def explode_sync(ctx: Any) -> None:
        raise kind("boom")

    def answer(request: RequestRecord) -> Reply:
        explodes = request.messages[-1]["content"] == "explode"
        return calls(("explode" if is_async else "explode_sync", {})) if explodes else Reply("fine")

    provider = model(answer)
    agent = make_agent(provider, explode, explode_sync)
    result, run = worker.run(agent, "explode")
    assert result.state == "requires_manual_review", "its write may have happened"
    assert result.error is not None
    assert result.error.code == "BUG"
    assert len(provider.requests) == 1
    assert run.journal()[0]["status"] == "unknown"
    assert result.effects.unknown == 1
    assert worker.run(agent, "again")[0].output == "fine"


def test_a_bug_is_told_once_and_the_second_one_ends_the_run(worker: Workers, model: MakeProvider) -> None:
    """The first exception that a tool should not raise goes to the model as such; the second is the run's end."""
    tried = threading.Semaphore(0)

    @tool(effect="read")
    def divide(ctx: Any, n: int) -> float:
        tried.release()
        return n / 0

    provider = model(lambda r: calls(("divide", {"n": r.number})))
    result, _ = worker.run(make_agent(provider, divide))
    assert result.error is not None
    assert result.error.code == "BUG"
    assert "ZeroDivisionError" in result.error.message
    assert len(provider.requests) == 2
    assert told(provider.requests[1])["code"] == "BUG"
    assert tried.acquire(blocking=False)
    assert tried.acquire(blocking=False)
    assert not tried.acquire(blocking=False)

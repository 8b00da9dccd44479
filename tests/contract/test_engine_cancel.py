"""Cancel: one holder per attempt, wins over every timer, and what it leaves says whether something happened (CONTRACT F)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from makegood import ALL, Client, RetryPolicy, StillStopping, tool
from makegood.testing import Behaviour, Reply, RequestRecord, Stall, Status
from makegood.workers import maintenance
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
)

MakeShop = Callable[..., Shop]


class Gate:
    """A sync tool that says that it runs and waits until it is let go; `.hang` is the tool."""

    def __init__(self, effect: Any = "write", **options: Any) -> None:
        self.entered, self.let_go, self.returned = threading.Event(), threading.Event(), threading.Event()

        @tool(effect=effect, identity=None if effect == "read" else ALL, **options)
        def hang(ctx: Any) -> str:
            self.entered.set()
            self.let_go.wait(LONG_S)
            self.returned.set()
            return "late"

        self.hang = hang


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers hear of a cancel only from the replies to their own writes."""
    monkeypatch.setattr(maintenance, "CANCEL_POLL_S", 600)


@pytest.mark.contract("F5", "A2")
def test_a_cancelled_model_request_is_closed_and_the_run_ends(worker: Workers, model: MakeProvider) -> None:
    """The provider sees the end of the connection; when cancel(wait) returns nothing runs any more."""
    provider = model([Stall()])
    agent = make_agent(provider)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    assert provider.arrived().wait(LONG_S)
    began_s = time.monotonic()
    assert run.cancel(wait=True, timeout=LONG_S) == "cancelled"
    assert time.monotonic() - began_s < 2, "ten times the 200 ms of F5"
    assert provider.requests[0].connection.peer_closed.wait(LONG_S)
    result = run.result()
    assert result.error is not None
    assert result.error.code == "CANCELLED"
    assert result.attempts == 1
    eventually(lambda: not runtime.attempts, "the worker holds nothing")


@pytest.mark.contract("F3")
@pytest.mark.parametrize(
    ("effect", "status", "state"),
    [
        ("write", "unknown", "cleaning"),
        ("idempotent", "unknown", "cleaning"),
        ("read", "failed", "cancelled"),
    ],
)
def test_a_call_that_is_cancelled_while_it_runs_is_aborted(
    worker: Workers, model: MakeProvider, shop: MakeShop, effect: Any, status: str, state: str
) -> None:
    """ABORTED: an effect may have happened, so the run has to be cleaned up; a read never has one."""
    worker.cleans = False
    there = shop(Stall())

    @tool(effect=effect, identity=None if effect == "read" else ALL)
    async def ask(ctx: Any) -> Any:
        return (await ctx.http.post(there.url)).json()

    agent = make_agent(model([calls(("ask", {}))]), ask)
    worker.start(agent)
    run = worker.enqueue(agent)
    assert there.provider.arrived().wait(LONG_S)
    run.cancel()
    assert there.requests[0].connection.peer_closed.wait(LONG_S)
    eventually(lambda: run.status() == state, f"the run is {state}")
    (row,) = run.journal()
    assert row["status"] == status
    assert row["error"]["code"] == "ABORTED"
    assert run.result().effects.unknown == (0 if effect == "read" else 1)


@pytest.mark.contract("F3", "F7")
@pytest.mark.usefixtures("deaf")
def test_a_cancel_that_arrives_with_the_decision_lets_no_body_begin(
    worker: Workers, model: MakeProvider
) -> None:
    """The reply to the intent brings the cancel: ABORTED_BEFORE_DISPATCH, no effect, nothing entered."""
    entered: list[str] = []

    @tool(effect="write", identity=ALL)
    async def one(ctx: Any) -> None:
        entered.append("one")

    @tool(effect="write", identity=ALL)
    def two(ctx: Any) -> None:
        entered.append("two")

    ids: list[str] = []
    started = threading.Event()

    def answer(request: RequestRecord) -> Behaviour:
        started.wait(LONG_S)
        with Client(worker.url) as client:
            client.get(ids[0]).cancel()
        return calls(("one", {}), ("two", {}))

    agent = make_agent(model(answer), one, two)
    worker.start(agent)
    run = worker.enqueue(agent)
    ids.append(run.id)
    started.set()
    result = run.wait(LONG_S)
    assert result.state == "cancelled"
    assert not entered
    assert {row["error"]["code"] for row in run.journal()} == {"ABORTED_BEFORE_DISPATCH"}
    assert {row["status"] for row in run.journal()} == {"aborted_before_dispatch"}
    assert result.effects.not_started == 2
    assert result.effects.unknown == 0


@pytest.mark.contract("F3")
def test_a_call_that_still_waits_for_a_thread_has_no_effect_when_it_is_cancelled(
    worker: Workers, model: MakeProvider
) -> None:
    """Two sync calls, one thread: the one that runs is ABORTED, the one that waits ABORTED_BEFORE_DISPATCH."""
    gate = Gate()
    agent = make_agent(model([calls(("hang", {}), ("hang", {}))]), gate.hang)
    worker.cleans = False
    worker.start(agent, sync_threads=1)
    run = worker.enqueue(agent)
    assert gate.entered.wait(LONG_S)
    run.cancel()
    eventually(lambda: run.status() == "stopping", "the run is stopping")
    gate.let_go.set()
    worker.left(run)
    rows = run.journal()
    assert [row["error"]["code"] for row in rows] == ["ABORTED", "ABORTED_BEFORE_DISPATCH"]
    assert [row["status"] for row in rows] == ["unknown", "aborted_before_dispatch"]
    assert run.result().calls == 1
    assert run.result().effects.not_started == 1


@pytest.mark.contract("F8", "A6")
def test_work_that_does_not_stop_is_shown_with_the_call_it_hangs_in_and_is_never_reported_as_finished(
    worker: Workers, model: MakeProvider
) -> None:
    """cancel(wait) gives up with the name of the call; the run is stopping until the thread returns, then cleaned up."""
    gate = Gate()
    agent = make_agent(model([calls(("hang", {}))]), gate.hang)
    worker.start(agent)
    run = worker.enqueue(agent)
    assert gate.entered.wait(LONG_S)
    with pytest.raises(StillStopping, match="hang"):
        run.cancel(wait=True, timeout=2)
    info = run.info()
    assert info["state"] == "stopping"
    assert info["activity_detail"]["call"] == "hang"
    assert info["activity_detail"]["for_s"] > 0
    assert info["activity_detail"]["call_key"] == run.journal()[0]["call_key"]
    assert info["ended_at"] is None
    later = eventually(
        lambda: (i := run.info())["activity_detail"]["for_s"] > info["activity_detail"]["for_s"] and i,
        "it counts on",
    )
    assert later["state"] == "stopping"
    assert len(events_of(run, "run.stopping")) == 1
    assert not gate.returned.is_set()
    assert not worker.cleaners
    gate.let_go.set()
    result = run.wait(LONG_S)
    assert gate.returned.is_set()
    assert result.state == "requires_manual_review", "a write that may have happened"
    assert result.error is not None
    assert result.error.code == "CANCELLED"


@pytest.mark.contract("F7")
def test_a_cancel_wins_over_the_limit_of_a_call_that_hangs_past_it(
    worker: Workers, model: MakeProvider
) -> None:
    """L1 was reached, the thread does not stop, then the user cancels: cancelled, not failed and not retried."""
    gate = Gate("read", timeout=0.1)
    provider = model([calls(("hang", {}))])
    agent = make_agent(provider, gate.hang)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    eventually(lambda: run.status() == "stopping", "the run is stopping")
    run.cancel()
    eventually(lambda: runtime.attempts[run.id].cancel.asked, "the worker heard of it")
    gate.let_go.set()
    assert run.wait(LONG_S).state == "cancelled"
    assert len(provider.requests) == 1


@pytest.mark.contract("F1")
@pytest.mark.parametrize("is_async", [True, False])
def test_a_hook_before_a_step_can_stop_the_run(worker: Workers, model: MakeProvider, is_async: bool) -> None:
    """ctx.cancel in before_step of step 2: one request, state cancelled, the log says no more than that."""

    def stop(ctx: Any) -> None:
        if ctx.step == 2:
            ctx.cancel("enough of it")

    async def stop_async(ctx: Any) -> None:
        stop(ctx)

    @tool(effect="write", identity=ALL)
    async def act(ctx: Any) -> str:
        return "done"

    provider = model([calls(("act", {})), Reply("never")])
    result, run = worker.run(make_agent(provider, act, before_step=stop_async if is_async else stop))
    assert result.state == "cancelled"
    assert len(provider.requests) == 1
    assert result.effects.committed == 1
    assert result.error is not None
    assert "enough" not in result.error.message
    assert not any("enough" in str(event) for event in run.events())


@pytest.mark.contract("F1")
def test_a_hook_before_the_end_sees_the_output_and_can_stop_the_run(
    worker: Workers, model: MakeProvider
) -> None:
    """The answer is there, and is not given."""
    seen: list[Any] = []

    def stop(ctx: Any, output: Any) -> None:
        seen.append((ctx.step, ctx.attempt, output))
        ctx.cancel()

    result, _ = worker.run(make_agent(model([Reply("secret plan")]), before_end=stop))
    assert result.state == "cancelled"
    assert result.output is None
    assert seen == [(1, 1, "secret plan")]


@pytest.mark.contract("F1")
def test_hooks_run_within_the_limits_of_their_step_and_their_bugs_end_the_run(
    worker: Workers, model: MakeProvider
) -> None:
    """A hook that waits for ever is cut at L2; one that raises is a bug."""
    import asyncio

    async def wait(ctx: Any) -> None:
        await asyncio.sleep(LONG_S)

    def crash(ctx: Any, output: Any) -> None:
        raise RuntimeError("boom")

    provider = model()
    slow = make_agent(provider, name="slow", before_step=wait, timeouts=limits(step=0.2), max_attempts=1)
    buggy = make_agent(provider, name="buggy", before_end=crash)
    worker.start(slow, buggy)
    result, _ = worker.run(slow)
    assert result.state == "timed_out"
    assert not provider.requests
    result, _ = worker.run(buggy)
    assert result.error is not None
    assert result.error.code == "BUG"
    assert "boom" in result.error.message


@pytest.mark.contract("F1")
def test_the_next_attempt_has_a_fresh_cancel_holder(worker: Workers, model: MakeProvider) -> None:
    """What a hook of attempt 1 kept cannot stop attempt 2."""
    kept: list[Any] = []

    def keep(ctx: Any) -> None:
        kept.append(ctx)
        if ctx.attempt == 2:
            kept[0].cancel("too late")

    result, _ = worker.run(
        make_agent(model([Stall(), Reply("done")]), before_step=keep, timeouts=limits(step=1))
    )
    assert (result.state, result.attempts) == ("succeeded", 2)


@pytest.mark.contract("F4")
def test_after_a_cancelled_tool_step_every_call_has_its_outcome_in_the_journal(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Parallel calls A and B, cancel during A: B's good outcome is kept, A's is ABORTED, both rows have ended."""
    there = shop(Stall())

    @tool(effect="idempotent", identity=("n",))
    async def ask(ctx: Any, n: int) -> Any:
        return (await ctx.http.post(there.url)).json() if n == 1 else "quick"

    agent = make_agent(model([calls(("ask", {"n": 1}), ("ask", {"n": 2}))]), ask)
    worker.cleans = False
    worker.start(agent)
    run = worker.enqueue(agent)
    eventually(lambda: "quick" in [row["response"] for row in run.journal()], "B has ended")
    assert there.provider.arrived().wait(LONG_S)
    run.cancel()
    effects = worker.left(run).effects
    first, second = run.journal()
    assert (first["status"], second["status"]) == ("unknown", "succeeded")
    assert first["ended_at"]
    assert (effects.committed, effects.unknown) == (1, 1)
    worker.start_cleaner()
    assert run.cancel(wait=True, timeout=LONG_S) == "cancelled"
    first, second = run.journal()
    assert (first["status"], first["error"]["code"]) == ("succeeded", "ABORTED")
    assert second["error"] is None


@pytest.mark.contract("F5")
def test_cancelling_twice_or_after_the_end_changes_nothing(worker: Workers, model: MakeProvider) -> None:
    """A finished run stays as it ended; so does a cancelled one."""
    agent = make_agent(model())
    result, run = worker.run(agent)
    before = run.info()
    assert run.cancel(wait=True, timeout=LONG_S) == "succeeded"
    assert run.info() == before
    assert worker.counters()["runs_finished_total|a|cancelled"] == 0
    assert result.state == "succeeded"


@pytest.mark.contract("F5")
def test_a_queued_or_parked_run_is_cancelled_at_once_and_never_starts(
    worker: Workers, model: MakeProvider
) -> None:
    """Nobody has to notice: the store ends it; a late wake-up finds nothing."""
    provider = model([Status(429, headers={"retry-after": "500"})])
    agent = make_agent(provider, retry=RetryPolicy(), timeouts=limits(total=3600))
    queued = worker.enqueue(agent)
    assert queued.cancel() == "cancelled"
    worker.start(agent)
    parked = worker.enqueue(agent)
    eventually(lambda: parked.status() == "parked", "the run is parked")
    assert parked.cancel() == "cancelled"
    for run in (queued, parked):
        worker.runtimes[0].perform(run.id)
        assert run.status() == "cancelled"
    assert len(provider.requests) == 1

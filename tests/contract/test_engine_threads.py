"""Sync tools that hang: others go on, the hung ones are shown, the worker drains (CONTRACT A6, J28)."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from makegood import ALL, RetryPolicy, tool
from makegood.testing import Behaviour, Reply, RequestRecord
from makegood.workers.runtime import Runtime
from support.engine import LONG_S, MakeProvider, Workers, calls, eventually, limits, make_agent

THREADS = 4


class Hanging:
    """A sync tool that hangs past its limit until `let_go`; `.slow` hangs, `.quick` and `.soon` do not."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

        @tool(effect="idempotent", identity=("order",), timeout=0.3, retry=RetryPolicy(retries=0))
        def slow(ctx: Any, order: int) -> str:
            self.let_go.wait(LONG_S * 2)
            return "late"

        @tool(effect="read")
        def quick(ctx: Any, n: int) -> str:
            return f"quick {n}"

        @tool(effect="read")
        async def soon(ctx: Any, n: int) -> str:
            return f"soon {n}"

        self.tools = (slow, quick, soon)

    @staticmethod
    def answer(request: RequestRecord) -> Behaviour:
        """`hang n` hangs, `quick n` and `soon n` call the tool of that name and say what it said."""
        if request.results:
            return Reply(request.messages[-1]["content"])
        word, _, number = request.messages[-1]["content"].partition(" ")
        return calls(("slow", {"order": int(number)}) if word == "hang" else (word, {"n": int(number)}))


def stopping(run: Any) -> Any:
    """The run's info once it is stopping."""
    info = run.info()
    return info if info["state"] == "stopping" else None


def claims(runtime: Runtime) -> bool:
    """Whether the worker claims further runs."""
    return not runtime.takes_nothing


@pytest.fixture
def hanging() -> Any:
    """Hanging tools, all let go at the end."""
    made = Hanging()
    yield made
    made.let_go.set()


@pytest.mark.contract("A6", "F8")
def test_a_hung_thread_is_replaced_and_the_worker_stops_claiming_when_as_many_hang_as_the_pool_has(
    worker: Workers, model: MakeProvider, hanging: Hanging
) -> None:
    """One fewer: other sync tools run and runs are claimed. The last one: the worker asks to be recycled and claims nothing."""
    agent = make_agent(model(Hanging.answer), *hanging.tools)
    runtime = worker.start(agent, slots=32, sync_threads=THREADS)
    hung = [worker.enqueue(agent, f"hang {n}") for n in range(THREADS - 1)]
    for run in hung:
        eventually(partial(stopping, run), "the run is stopping")
    assert claims(runtime)
    assert not worker.recycled.is_set()
    quick = [worker.enqueue(agent, f"quick {n}") for n in range(8)]
    assert [run.wait(LONG_S).output for run in quick] == [f"quick {n}" for n in range(8)]
    hung.append(worker.enqueue(agent, "hang 99"))
    assert worker.recycled.wait(LONG_S)
    assert not claims(runtime)
    late = worker.enqueue(agent, "quick 1")
    runtime.perform(late.id)
    assert late.status() == "queued"
    for run in hung:
        (row,) = run.journal()
        assert row["tool"] == "slow"
        assert row["status"] == "started"
        assert row["args"]["order"] in (0, 1, 2, 99)
        info = eventually(partial(stopping, run), "the run is stopping")
        assert info["activity_detail"]["call_key"] == row["call_key"]
        assert info["activity_detail"]["for_s"] > 0


@pytest.mark.contract("A6")
def test_a_run_that_already_runs_still_gets_its_sync_tool_while_all_threads_hang(
    worker: Workers, model: MakeProvider, hanging: Hanging
) -> None:
    """The pool is full of hung calls when its call comes: it gets a replacement thread and ends."""
    go = threading.Event()

    def answer(request: RequestRecord) -> Behaviour:
        if "quick" in request.messages[0]["content"]:
            go.wait(LONG_S)
        return Hanging.answer(request)

    patient = make_agent(model(answer), *hanging.tools, name="patient")
    agent = make_agent(model(Hanging.answer), *hanging.tools)
    runtime = worker.start(agent, patient, slots=32, sync_threads=THREADS)
    other = worker.enqueue(patient, "quick 5")
    eventually(lambda: other.id in runtime.attempts, "the other run is at work")
    hung = [worker.enqueue(agent, f"hang {n}") for n in range(THREADS)]
    assert worker.recycled.wait(LONG_S)
    go.set()
    assert other.wait(LONG_S).output == "quick 5"
    hanging.let_go.set()
    results = [run.wait(LONG_S) for run in hung]
    assert {result.state for result in results} == {"failed"}
    assert {run.journal()[0]["error"]["code"] for run in hung} == {"TOOL_TIMEOUT"}
    eventually(lambda: runtime.env.threads.stuck == 0, "no thread is stuck any more")
    assert not runtime.env.threads.exhausted


@pytest.mark.contract("J28")
def test_a_downstream_that_slows_and_then_hangs_does_not_stop_other_agents(
    worker: Workers, model: MakeProvider, shop: Any
) -> None:
    """More runs than slots call a hanging system through ctx.http: they end one by one, no thread is lost, others go on."""
    from makegood.testing import Stall, Status

    there = shop(*[Status(200, {"id": 1}, delay_s=0.2)] * 3, *[Stall()] * 100)

    @tool(effect="read", timeout=0.5, retry=RetryPolicy(retries=0))
    def order(ctx: Any, n: int) -> Any:
        return ctx.http.get(f"{there.url}/{n}").json()

    @tool(effect="read")
    def quick(ctx: Any, n: int) -> str:
        return f"quick {n}"

    def answer(request: RequestRecord) -> Behaviour:
        if request.results:
            return Reply(request.messages[-1]["content"])
        word, _, number = request.messages[-1]["content"].partition(" ")
        return calls((word, {"n": int(number)}))

    from makegood import BreakerPolicy

    orders = make_agent(model(answer), order, name="orders", breaker=BreakerPolicy(failures=10**6))
    others = make_agent(model(answer), quick, name="others")
    runtime = worker.start(orders, others, slots=6, sync_threads=THREADS)
    stuck = [worker.enqueue(orders, f"order {n}") for n in range(12)]
    going = [worker.enqueue(others, f"quick {n}") for n in range(12)]
    assert [run.wait(LONG_S).output for run in going] == [f"quick {n}" for n in range(12)]
    results = [run.wait(LONG_S) for run in stuck]
    assert [result.state for result in results].count("succeeded") == 3
    for run, result in zip(stuck, results, strict=True):
        (row,) = run.journal()
        assert row["tool"] == "order"
        assert (row["status"] == "succeeded") is (result.state == "succeeded")
    assert all(request.connection.closed.wait(LONG_S) for request in there.requests)
    eventually(lambda: not runtime.attempts, "nothing runs any more")
    assert runtime.env.threads.stuck == 0
    assert not worker.recycled.is_set()
    assert there.provider.open_connections == 0


@pytest.mark.contract("A6")
def test_when_the_grace_ends_a_hung_call_is_given_up_and_its_outcome_is_unknown(
    worker: Workers, model: MakeProvider
) -> None:
    """The worker shuts down while a write hangs: the row says maybe, the run leaves the worker, nothing is lost."""
    let_go = threading.Event()

    @tool(effect="write", identity=ALL, timeout=0.2)
    def pay(ctx: Any) -> None:
        let_go.wait(LONG_S * 2)

    def answer(request: RequestRecord) -> Behaviour:
        return Reply("done") if request.results else calls(("pay", {}))

    agent = make_agent(model(answer), pay, timeouts=limits())
    runtime = worker.start(agent, sync_threads=1, grace_s=2.5)
    run = worker.enqueue(agent)
    eventually(lambda: run.status() == "stopping", "the run is stopping")
    began_s = time.monotonic()
    worker.stop(runtime)
    assert time.monotonic() - began_s < LONG_S
    (row,) = run.journal()
    assert row["status"] == "unknown"
    assert row["error"]["code"] in ("TOOL_TIMEOUT", "TOOL_OUTCOME_UNKNOWN")
    if run.status() == "queued":
        worker.start(agent)
    result = run.wait(LONG_S)
    assert result.state == "requires_manual_review"
    assert result.effects.unknown == 1
    assert len(run.journal()) == 1
    let_go.set()

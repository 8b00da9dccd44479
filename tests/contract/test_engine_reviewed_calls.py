"""What a stopped call may still do, and what it gives back: nothing is sent, no slot and no probe is kept (A6, C9, F1, F9)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest

from makegood import ALL, BreakerPolicy, RetryPolicy, tool
from makegood.errors import StoreUnreachable
from makegood.store.keys import run_key
from makegood.store.ops.breakers import read_breakers, report
from makegood.tasks.breakers import BreakerBoard
from makegood.tasks.client import Run
from makegood.tasks.engine.ask import breaker_name
from makegood.testing import Behaviour, Reply, RequestRecord
from makegood.workers.runtime import Runtime
from support.engine import LONG_S, MODEL, MakeProvider, Shop, Workers, calls, eventually, limits, make_agent

MakeShop = Callable[..., Shop]

ONCE = RetryPolicy(retries=0)


def take_away(worker: Workers, run: Run) -> None:
    """From now on someone else executes the run."""
    worker.client.store.redis.hset(run_key(run.id), "fence", "99:elsewhere")


def slots_in_use(runtime: Runtime) -> int:
    """Threads of the pool that work or are reserved."""
    return runtime.env.threads._busy


def trip(worker: Workers, name: str, *, open_for_ms: int = 1) -> None:
    """Open a breaker as a failed call would."""
    op = report(name, "test", "failure", failures=1, window_ms=60_000, open_for_ms=open_for_ms)
    assert worker.client.store.do(op).after["state"] == "open"


def probe_of(worker: Workers, name: str) -> str:
    """Who probes a half-open breaker."""
    return worker.client.store.do(read_breakers())[name]["probe_owner"]


class Stubborn:
    """A tool in two ways that notices its cancel, goes on, and sends; `.refused` is what its request met."""

    def __init__(self, url: str, timeout: float) -> None:
        self.at = threading.Event()
        self.refused: list[str] = []

        @tool(effect="write", identity=ALL, timeout=timeout, retry=ONCE)
        async def task(ctx: Any) -> None:
            self.at.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(LONG_S * 2)
            try:
                await ctx.http.post(url)
            except httpx.HTTPError as error:
                self.refused.append(type(error).__name__)

        @tool(effect="write", identity=ALL, timeout=timeout, retry=ONCE)
        def thread(ctx: Any) -> None:
            self.at.set()
            ctx.cancelled.wait_sync(LONG_S * 2)
            try:
                ctx.http.post(url)
            except httpx.HTTPError as error:
                self.refused.append(type(error).__name__)

        self.tools = {"task": task, "thread": thread}


@pytest.mark.contract("A2", "F1")
@pytest.mark.parametrize("how", ["task", "thread"])
@pytest.mark.parametrize("stopped_by", ["cancel", "limit"])
def test_a_tool_that_goes_on_after_it_was_stopped_sends_nothing(
    worker: Workers, model: MakeProvider, shop: MakeShop, how: str, stopped_by: str
) -> None:
    """Cancelled or past its limit: its next request is refused in the worker, and the shop hears nothing."""
    there = shop()
    stubborn = Stubborn(there.url, 0.3 if stopped_by == "limit" else LONG_S)
    agent = make_agent(model([calls((how, {}))], then=Reply("done")), stubborn.tools[how])
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    assert stubborn.at.wait(LONG_S)
    if stopped_by == "cancel":
        run.cancel()
    assert run.wait(LONG_S).state == "requires_manual_review", "a write that may have happened"
    eventually(lambda: stubborn.refused, "the tool has tried to send")
    assert there.requests == []
    eventually(lambda: slots_in_use(runtime) == 0, "the thread is free")


@pytest.mark.contract("A6", "F8", "F9")
def test_a_thread_that_hangs_counts_as_stuck_though_the_run_is_someone_elses(
    worker: Workers, model: MakeProvider
) -> None:
    """The report of the hang is refused; the body is not let go of, and the pool knows of it until it returns."""
    go, at = threading.Event(), threading.Event()

    @tool(effect="idempotent", identity=ALL, timeout=0.3, retry=ONCE)
    def hang(ctx: Any) -> str:
        at.set()
        go.wait(LONG_S * 2)
        return "late"

    agent = make_agent(model([calls(("hang", {}))], then=Reply("done")), hang)
    runtime = worker.start(agent, sync_threads=1, lease_s=60)
    run = worker.enqueue(agent)
    assert at.wait(LONG_S)
    take_away(worker, run)
    try:
        eventually(lambda: runtime.env.threads.stuck == 1, "the thread counts as stuck")
        assert worker.recycled.wait(LONG_S), "the only thread hangs: the worker asks to be replaced"
        assert run.id in runtime.attempts
    finally:
        go.set()
    eventually(lambda: not runtime.attempts, "the body has ended, and then the attempt")
    assert (slots_in_use(runtime), runtime.env.threads.stuck) == (0, 0)


@pytest.mark.contract("E6", "F9")
def test_the_end_of_an_async_body_is_awaited_though_the_report_of_its_hang_is_refused(
    worker: Workers, model: MakeProvider
) -> None:
    """It is cancelled again and again, and its attempt is not over before it is."""
    go, at = threading.Event(), threading.Event()
    told: list[int] = []
    ended: list[int] = []

    @tool(effect="write", identity=ALL, timeout=0.3, retry=ONCE)
    async def hang(ctx: Any) -> None:
        at.set()
        while not go.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                told.append(1)
        ended.append(1)

    agent = make_agent(model([calls(("hang", {}))], then=Reply("done")), hang)
    runtime = worker.start(agent, lease_s=60)
    run = worker.enqueue(agent)
    assert at.wait(LONG_S)
    take_away(worker, run)
    try:
        eventually(lambda: len(told) >= 3, "it is asked to stop again after the report was refused")
        assert run.id in runtime.attempts
    finally:
        go.set()
    eventually(lambda: not runtime.attempts, "the attempt is over")
    assert ended == [1]


@pytest.mark.contract("A6", "C9", "F9")
def test_a_call_that_may_not_start_gives_back_its_slot_and_its_breakers_probe(
    worker: Workers, model: MakeProvider
) -> None:
    """It waited for a thread as the probe of its breaker; the run was lost meanwhile, so it keeps neither."""
    go, at = threading.Event(), threading.Event()
    entered: list[int] = []

    @tool(effect="read", timeout=LONG_S)
    def first(ctx: Any) -> str:
        at.set()
        go.wait(LONG_S)
        return "x"

    @tool(effect="read")
    def second(ctx: Any) -> str:
        entered.append(1)
        return "y"

    one = make_agent(model([calls(("first", {}))], then=Reply("done")), first, name="one")
    two = make_agent(model([calls(("second", {}))], then=Reply("done")), second, name="two")
    trip(worker, "second")
    runtime = worker.start(one, two, sync_threads=1, lease_s=60)
    blocker = worker.enqueue(one)
    assert at.wait(LONG_S)
    run = worker.enqueue(two)

    probe = partial(probe_of, worker, "second")
    eventually(lambda: [row["status"] for row in run.journal()] == ["planned"], "the call waits")
    eventually(probe, "it has the breaker's probe")
    take_away(worker, run)
    go.set()
    assert blocker.wait(LONG_S).state == "succeeded"
    eventually(lambda: not runtime.attempts, "both are over")
    eventually(lambda: slots_in_use(runtime) == 0, "no slot is kept")
    assert not entered
    assert probe() == ""


@pytest.mark.contract("A6", "C9")
def test_a_breaker_that_cannot_be_asked_costs_no_slot(
    worker: Workers, model: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot was reserved with the intent; the store is away when the breaker is asked."""
    asked: list[str] = []
    admit = BreakerBoard.admit

    async def unreachable(board: BreakerBoard, name: str, owner: str, limit_s: float) -> Any:
        if name != "look":
            return await admit(board, name, owner, limit_s)
        asked.append(name)
        raise StoreUnreachable("away")

    monkeypatch.setattr(BreakerBoard, "admit", unreachable)

    @tool(effect="read")
    def look(ctx: Any) -> str:
        return "x"

    agent = make_agent(model([calls(("look", {}), ("look", {}))], then=Reply("done")), look)
    runtime = worker.start(agent, sync_threads=2)
    worker.enqueue(agent)
    eventually(lambda: asked and not runtime.attempts, "the attempt is over")
    assert slots_in_use(runtime) == 0


class DeafAdapter:
    """A model whose request does not stop when it is told to."""

    def __init__(self) -> None:
        self.at, self.go = threading.Event(), threading.Event()

    async def stream(self, request: Any, clocks: Any) -> AsyncIterator[Any]:
        """Nothing, for as long as it may."""
        self.at.set()
        while not self.go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.02)
        for _ in ():
            yield
        raise RuntimeError("told to end")


@pytest.mark.contract("C9", "F9")
def test_a_model_request_that_hangs_in_a_run_that_was_lost_gives_back_its_breakers_probe(
    worker: Workers, model: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of the hang is refused; at the end of the request the breaker may be probed by others."""
    agent = make_agent(model(), timeouts=limits(step=0.3))
    name, deaf = breaker_name(MODEL, agent.model_args), DeafAdapter()
    trip(worker, name)
    runtime = worker.start(agent, lease_s=60)
    monkeypatch.setattr(runtime.env.adapter, "stream", deaf.stream)
    run = worker.enqueue(agent)
    assert deaf.at.wait(LONG_S)
    probe = partial(probe_of, worker, name)
    assert probe()
    take_away(worker, run)
    attempt = runtime.attempts[run.id]
    try:
        eventually(lambda: attempt.stopping, "it hangs past the limit of its step")
    finally:
        deaf.go.set()
    eventually(lambda: not runtime.attempts, "the attempt is over")
    assert probe() == ""


class Doubtful:
    """A sync tool whose first try fails with a bug after it may have had its effect; `.book` is the tool."""

    def __init__(self) -> None:
        self.tries: list[str] = []

        @tool(effect="idempotent", identity=ALL, timeout=LONG_S)
        def book(ctx: Any) -> str:
            self.tries.append(ctx.idempotency_key)
            if len(self.tries) == 1:
                raise ValueError("after the effect")
            return "booked"

        self.book = book


@pytest.mark.contract("D6", "F3")
def test_a_repeat_of_a_doubtful_call_that_waits_for_a_thread_is_never_planned(
    worker: Workers, model: MakeProvider
) -> None:
    """`planned` would say that it had no effect; while it waits, the journal says that it may have had one."""
    doubtful = Doubtful()
    again, blocked, go = threading.Event(), threading.Event(), threading.Event()

    def answer(request: RequestRecord) -> Behaviour:
        if len(request.results) == 2:
            return Reply("done")
        if request.results:
            again.set()
            blocked.wait(LONG_S)
        return calls(("book", {}))

    @tool(effect="read", timeout=LONG_S)
    def block(ctx: Any) -> str:
        blocked.set()
        go.wait(LONG_S)
        return "x"

    one = make_agent(model(answer), doubtful.book, name="one")
    two = make_agent(model([calls(("block", {}))], then=Reply("done")), block, name="two")
    worker.start(one, two, sync_threads=1)
    run = worker.enqueue(one)
    assert again.wait(LONG_S)
    assert run.journal()[0]["status"] == "unknown"
    worker.enqueue(two)
    try:
        eventually(lambda: run.info()["step"] == 2, "the repeat is decided")
        (row,) = run.journal()
        assert len(doubtful.tries) == 1, "it waits"
        assert row["status"] == "started"
    finally:
        go.set()
    result = run.wait(LONG_S)
    assert result.state == "succeeded"
    assert len(set(doubtful.tries)) == 1
    assert (result.effects.committed, result.effects.unknown) == (1, 0)


@pytest.mark.contract("C9", "D6")
def test_a_repeat_of_a_doubtful_call_that_its_breaker_rejects_stays_doubtful(
    worker: Workers, model: MakeProvider
) -> None:
    """The breaker opens between the two: nothing is sent, and the run does not succeed with an open effect."""
    worker.cleans = False
    doubtful = Doubtful()
    again, opened = threading.Event(), threading.Event()

    def answer(request: RequestRecord) -> Behaviour:
        if len(request.results) == 2:
            return Reply("done")
        if request.results:
            again.set()
            opened.wait(LONG_S)
        return calls(("book", {}))

    agent = make_agent(model(answer), doubtful.book, breaker=BreakerPolicy(failures=5))
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    assert again.wait(LONG_S)
    trip(worker, "book", open_for_ms=600_000)
    eventually(lambda: runtime.env.breakers.rejects("book"), "the worker sees the breaker")
    opened.set()
    result = worker.left(run)
    (row,) = run.journal()
    assert (row["status"], result.effects.unknown) == ("unknown", 1)
    assert row["error"]["code"] == "BREAKER_OPEN"
    assert len(doubtful.tries) == 1

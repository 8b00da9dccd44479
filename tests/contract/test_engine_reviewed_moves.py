"""Runs that change hands in the middle of something: nothing is lost, nothing happens twice (C4, C9, D6, D7, F1)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from makegood import ALL, RetryPolicy, agent, tool
from makegood.errors import StoreUnreachable
from makegood.store import faults
from makegood.store.keys import prefix_of
from makegood.store.ops.breakers import report
from makegood.store.ops.leases import Beat, lose_worker
from makegood.store.ops.runs import claim_run
from makegood.tasks.client import Run
from makegood.tasks.engine.ask import breaker_name
from makegood.testing import Behaviour, Reply, Status
from makegood.workers.heartbeat import Round
from makegood.workers.runtime import Runtime
from support.engine import (
    LONG_S,
    MODEL,
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


class Interrupted:
    """Tools that stay in their first try until they are stopped; `.tried` has the key of every try."""

    def __init__(self, url: str) -> None:
        self.tried: dict[str, list[str]] = {"book": [], "book_sync": [], "charge": [], "look": []}
        self._lock, self.wanted, self.at = threading.Lock(), 1, threading.Event()

        @tool(effect="idempotent", identity=ALL, timeout=LONG_S)
        async def book(ctx: Any) -> Any:
            done = (await ctx.http.post(url)).json()
            await self._stay("book", ctx)
            return done

        @tool(effect="idempotent", identity=ALL, timeout=LONG_S)
        def book_sync(ctx: Any) -> Any:
            done = ctx.http.post(url).json()
            if self._enter("book_sync", ctx):
                ctx.cancelled.wait_sync(LONG_S * 2)
            return done

        @tool(effect="write", identity=ALL, timeout=LONG_S)
        async def charge(ctx: Any) -> Any:
            done = (await ctx.http.post(url)).json()
            await self._stay("charge", ctx)
            return done

        @tool(effect="read", timeout=LONG_S)
        async def look(ctx: Any) -> Any:
            await self._stay("look", ctx)
            return "seen"

        self.tools = (book, book_sync, charge, look)

    def _enter(self, name: str, ctx: Any) -> bool:
        with self._lock:
            self.tried[name].append(ctx.idempotency_key)
            if sum(len(keys) for keys in self.tried.values()) >= self.wanted:
                self.at.set()
            return len(self.tried[name]) == 1

    async def _stay(self, name: str, ctx: Any) -> None:
        if self._enter(name, ctx):
            await asyncio.sleep(LONG_S * 2)


def dispose(worker: Workers, runtime: Runtime, run: Run) -> None:
    """The grace of a worker ends with the run in flight; the worker is gone when this returns."""
    runtime.dispose()
    eventually(runtime.env.draining.is_set, "the worker lets go")
    worker.stop(runtime)
    assert run.status() == "queued"


def statuses(run: Run) -> dict[str, str]:
    """Status of each tool's call."""
    return {row["tool"]: row["status"] for row in run.journal()}


@pytest.mark.contract("D7", "F1")
@pytest.mark.parametrize(("name", "committed"), [("book", 1), ("book_sync", 1), ("look", 0)])
def test_a_call_that_may_be_repeated_is_left_open_when_the_grace_ends_and_goes_on_under_its_key(
    worker: Workers, model: MakeProvider, shop: MakeShop, name: str, committed: int
) -> None:
    """Its worker invents no outcome; the next one asks the downstream again under the same key: one effect."""
    there = shop()
    tools = Interrupted(there.url)
    provider = model(lambda request: Reply("done") if request.results else calls((name, {})))
    made = make_agent(provider, *tools.tools)
    runtime = worker.start(made)
    run = worker.enqueue(made)
    assert tools.at.wait(LONG_S)
    dispose(worker, runtime, run)
    assert [row["status"] for row in run.journal()] == ["started"]
    worker.start(made)
    result = run.wait(LONG_S)
    assert (result.state, result.attempts) == ("succeeded", 1)
    assert len(tools.tried[name]) == 2
    assert len(set(tools.tried[name])) == 1
    assert len(there.done) == result.effects.committed == committed
    assert result.effects.unknown == 0
    assert len(provider.requests) == 2


@pytest.mark.contract("D7", "F3")
def test_a_write_in_flight_when_the_grace_ends_is_unknown_and_not_repeated(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """ABORTED with an open effect; the run goes on elsewhere, cannot succeed, and waits for a person."""
    tools = Interrupted(shop().url)
    provider = model(lambda request: Reply("done") if request.results else calls(("charge", {})))
    made = make_agent(provider, *tools.tools)
    runtime = worker.start(made)
    run = worker.enqueue(made)
    assert tools.at.wait(LONG_S)
    dispose(worker, runtime, run)
    (row,) = run.journal()
    assert (row["status"], row["error"]["code"]) == ("unknown", "ABORTED")
    worker.start(made)
    result = run.wait(LONG_S)
    assert (result.state, result.effects.unknown) == ("requires_manual_review", 1)
    assert len(tools.tried["charge"]) == 1


@pytest.mark.contract("D7", "F3")
def test_of_parallel_calls_those_that_may_be_repeated_go_on_and_the_others_are_unknown(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """The step stays open for the two; the outcome of the write is recorded, once."""
    there = shop()
    tools = Interrupted(there.url)
    tools.wanted = 3
    asked = calls(("charge", {}), ("book", {}), ("look", {}))
    provider = model(lambda request: Reply("done") if request.results else asked)
    made = make_agent(provider, *tools.tools)
    runtime = worker.start(made)
    run = worker.enqueue(made)
    assert tools.at.wait(LONG_S)
    dispose(worker, runtime, run)
    assert statuses(run) == {"charge": "unknown", "book": "started", "look": "started"}
    worker.start(made)
    result = run.wait(LONG_S)
    assert statuses(run) == {"charge": "unknown", "book": "succeeded", "look": "succeeded"}
    assert result.state == "requires_manual_review"
    assert (result.effects.unknown, result.effects.committed) == (1, 1)
    assert {name: len(keys) for name, keys in tools.tried.items() if keys} == {
        "charge": 1,
        "book": 2,
        "look": 2,
    }
    assert len(set(tools.tried["book"])) == 1
    assert len(provider.requests) == 2


@pytest.mark.contract("C6", "D7")
def test_a_call_that_backs_off_when_the_grace_ends_is_left_open_too(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """A wait between two tries is no outcome: the next worker makes the next try under the same key."""
    there = shop(Status(503))

    @tool(effect="idempotent", identity=ALL, timeout=5)
    async def book(ctx: Any) -> Any:
        answer = await ctx.http.post(there.url)
        answer.raise_for_status()
        return answer.json()

    provider = model(lambda request: Reply("done") if request.results else calls(("book", {})))
    patient = RetryPolicy(retries=3, backoff=15, max_backoff=15)
    made = make_agent(provider, book, tool_retry=patient, timeouts=limits(step=120, run=240))
    runtime = worker.start(made)
    run = worker.enqueue(made)
    eventually(lambda: events_of(run, "tool.retry"), "it backs off")
    dispose(worker, runtime, run)
    assert [row["status"] for row in run.journal()] == ["started"]
    worker.start(made)
    result = run.wait(LONG_S)
    assert (result.state, result.effects.committed, result.effects.unknown) == ("succeeded", 1, 0)
    assert len(set(there.keys)) == 1


class Out(BaseModel):
    """The declared output."""

    n: int


@pytest.fixture
def cut_after_intent() -> Iterator[list[str]]:
    """The first step whose intent is durable goes no further, as if its process had ended there."""
    passed: list[str] = []

    def hook(name: str) -> None:
        if name == "after_intent" and not passed:
            passed.append(name)
            raise StoreUnreachable("as if the process had ended here")

    faults.arm(hook)
    yield passed
    faults.disarm()


@pytest.mark.contract("D7")
@pytest.mark.parametrize("first", [Reply("no json"), calls(("nothing", {}))], ids=["note", "answer"])
def test_a_step_that_runs_nothing_and_was_cut_before_its_end_goes_on(
    worker: Workers, model: MakeProvider, cut_after_intent: list[str], first: Behaviour
) -> None:
    """Its answer was refused, or its calls were: nothing runs, and the step still has to end before the next."""
    provider = model([first, Reply('{"n": 1}')])
    made = make_agent(provider, output=Out)
    runtime = worker.start(made)
    run = worker.enqueue(made)
    eventually(lambda: cut_after_intent and not runtime.attempts, "the step is cut")
    lose = lose_worker(prefix_of(run.id), runtime.worker, only_expired=False, death=True)
    worker.client.store.do(lose)
    worker.pump.wake(run.id)
    result = run.wait(LONG_S)
    assert (result.state, result.output, result.error) == ("succeeded", {"n": 1}, None)
    assert (result.attempts, result.steps, len(provider.requests)) == (1, 2, 2)


@pytest.mark.contract("D7")
def test_a_run_whose_claim_was_not_heard_of_is_adopted_once_and_not_after_its_end(
    worker: Workers, model: MakeProvider
) -> None:
    """Several beats name it before the store answers: it is executed once; named after its end, it is left alone."""
    ran: list[str] = []

    @tool(effect="write", identity=ALL)
    async def act(ctx: Any) -> str:
        ran.append(ctx.idempotency_key)
        await asyncio.sleep(0.3)
        return "acted"

    provider = model(lambda request: Reply("done") if request.results else calls(("act", {})))
    made = make_agent(provider, act)
    runtime = worker.start(made, lease_s=60)
    worker.pump.detach(runtime)
    run = worker.enqueue(made, "x" * 100_000)
    claim = claim_run(shard_prefix=prefix_of(run.id), nonce="unheard", worker=runtime.worker, agents=["a"])
    assert worker.client.store.do(claim) is not None

    def beats() -> None:
        for _ in range(4):
            runtime._heard(Round({}, [Beat((), (run.id,))], time.monotonic() + 60))

    runtime._from_thread(beats)
    assert run.wait(LONG_S).state == "succeeded"
    eventually(lambda: not runtime.attempts and not runtime._adoptions._under_way, "it is forgotten")
    before = list(run.events())
    heard = threading.Event()
    runtime._from_thread(beats)
    runtime._from_thread(heard.set)
    assert heard.wait(LONG_S)
    eventually(lambda: not runtime._adoptions._under_way, "the beats are dealt with")
    assert not runtime.attempts
    assert list(run.events()) == before
    assert (len(ran), len(provider.requests)) == (1, 2)


@pytest.mark.contract("C2", "C4")
def test_a_step_that_was_parked_sends_no_more_than_one_that_was_not(
    worker: Workers, model: MakeProvider
) -> None:
    """1 + retries + switches, over every wait; and a model that was given up is not asked again."""
    provider = model(lambda _: Status(429, None, {"retry-after": "17"}))
    others = ("openai/gpt-5-nano", "openai/gpt-4.1")
    twice = RetryPolicy(retries=2, backoff=0.01, max_backoff=0.05)
    made = make_agent(provider, fallback_models=others, retry=twice)
    worker.start(made)
    run = worker.enqueue(made)
    redis = worker.client.store.redis

    def over() -> bool:
        if run.status() == "parked":  # its time has come
            redis.zadd(prefix_of(run.id) + "due", {run.id: 0})
        return run.status() == "failed"

    eventually(over, "the retries are used up")
    assert len(events_of(run, "run.parked")) == 2
    asked = [request.body["model"] for request in provider.requests]
    assert len(asked) == made.max_sends_per_step() == 5
    assert asked == ["gpt-5-mini", "gpt-5-nano", "gpt-4.1", "gpt-4.1", "gpt-4.1"]


@pytest.mark.contract("C9")
@pytest.mark.parametrize("of", ["tool", "model"])
def test_a_breaker_says_when_it_lets_a_probe_pass(worker: Workers, model: MakeProvider, of: str) -> None:
    """breaker.half_open once, before breaker.closed."""

    @tool(effect="read")
    async def look(ctx: Any) -> str:
        return "seen"

    provider = model([calls(("look", {}))], then=Reply("done"))
    made = make_agent(provider, look)
    name = "look" if of == "tool" else breaker_name(MODEL, made.model_args)
    worker.client.store.do(report(name, "test", "failure", failures=1, window_ms=60_000, open_for_ms=1))
    result, run = worker.run(made)
    assert result.state == "succeeded"
    told = events_of(run, "breaker.half_open", "breaker.closed")
    assert [event["type"] for event in told] == ["breaker.half_open", "breaker.closed"]
    assert {event["data"]["name"] for event in told} == {name}


@pytest.mark.contract("D7", "J29")
def test_code_that_makes_a_call_twice_on_purpose_makes_two_effects_also_when_it_is_continued(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Killed during the first call; continued, the second one comes while the first is repeated: two keys."""
    there = shop()
    at = threading.Event()
    tried: list[str] = []
    executions: list[int] = []

    @tool(effect="idempotent", identity=ALL, timeout=LONG_S)
    async def book(ctx: Any) -> Any:
        done = (await ctx.http.post(there.url)).json()
        tried.append(ctx.idempotency_key)
        if len(tried) == 1:
            at.set()
            await asyncio.sleep(LONG_S * 2)
        return done["id"]

    @agent(name="code", model=MODEL, tools=(book,), on_failure="keep", timeouts=limits())
    async def code(ctx: Any, value: Any) -> Any:
        executions.append(1)

        async def later() -> Any:
            if len(executions) == 1:
                await asyncio.sleep(LONG_S * 2)
            return await ctx.call(book)

        return await asyncio.gather(ctx.call(book), later())

    first = worker.start(code, lease_s=60)
    run = worker.enqueue(code)
    assert at.wait(LONG_S)
    worker.pump.detach(first)
    worker.client.store.do(lose_worker(prefix_of(run.id), first.worker, only_expired=False, death=True))
    first._from_thread(partial(first.attempts[run.id].cancel.ask, "disposed"))
    eventually(lambda: not first.attempts, "the first worker is gone")
    assert [row["status"] for row in run.journal()] == ["started"]
    worker.start(code)
    worker.pump.wake(run.id)
    result = run.wait(LONG_S)
    assert (result.state, result.attempts) == ("succeeded", 1)
    assert sorted(result.output) == sorted(there.done.values()) == ["T-1", "T-2"]
    assert tried[0] in tried[1:]
    assert len(set(tried)) == len(run.journal()) == result.effects.committed == 2

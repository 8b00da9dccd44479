"""Locks of calls: exclusive, waited for, given back however the call ends, the run's own after a crash (CONTRACT E7)."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from makegood import ALL, LockTimeout, RetryPolicy, tool
from makegood.errors import StaleFence
from makegood.store.keys import prefix_of
from makegood.store.ops.leases import lose_worker
from makegood.store.ops.locks import extend_lock, read_lock, read_locks, release_lock
from makegood.tasks.client import Run
from makegood.testing import Behaviour, Reply, RequestRecord
from makegood.workers.duties import locks as locks_duty
from support import engine_tools
from support.engine import LONG_S, MakeProvider, Shop, Workers, calls, eventually, limits, make_agent, told

NONE = RetryPolicy(retries=0)


class Holding:
    """Tools that hold the lock "account" until the test lets them go; each noted its token in `tokens`.

    `at` is released once for each that has it.
    """

    def __init__(self) -> None:
        self.at, self.go = threading.Semaphore(0), threading.Event()
        self.tokens: list[int] = []

        @tool(effect="read")
        async def hold_async(ctx: Any) -> str:
            async with ctx.lock("account") as token:
                self.note(token)
                await asyncio.to_thread(self.go.wait, LONG_S)
            return "held"

        @tool(effect="read")
        def hold_sync(ctx: Any) -> str:
            with ctx.lock("account") as token:
                self.note(token)
                self.go.wait(LONG_S)
            return "held"

        @tool(effect="read")
        async def sleep_in(ctx: Any) -> None:
            async with ctx.lock("account") as token:
                self.note(token)
                await asyncio.sleep(LONG_S * 2)

        self.tools = (hold_async, hold_sync, sleep_in, *engine_tools.RESIDUE_TOOLS)

    def note(self, token: int) -> None:
        self.tokens.append(token)
        self.at.release()

    def wait(self) -> None:
        """Until one more holds the lock."""
        assert self.at.acquire(timeout=LONG_S)


@pytest.fixture
def holding() -> Any:
    """Holding tools, all let go at the end."""
    made = Holding()
    yield made
    made.go.set()


def by_input(request: RequestRecord) -> Behaviour:
    """Calls the tool that the input names, then says what it said."""
    if request.results:
        return Reply(request.messages[-1]["content"] or "none")
    name, _, args = request.messages[-1]["content"].partition(" ")
    return calls((name, {"name": args} if args else {}))


def owner(worker: Workers, name: str = "account") -> str | None:
    """Which run holds the lock."""
    return worker.client.store.do(read_lock(name)).get("owner")


def registered(worker: Workers, run: Run) -> list[str]:
    return worker.client.store.do(read_locks(run.id))


@pytest.mark.contract("E7")
@pytest.mark.parametrize("kinds", [("hold_async", "hold_sync"), ("hold_sync", "hold_async")])
def test_two_runs_exclude_each_other(
    worker: Workers, model: MakeProvider, holding: Holding, kinds: tuple[str, str]
) -> None:
    """The second waits, and goes on when the first gives the lock back; its token is larger."""
    agent = make_agent(model(by_input), *holding.tools, timeouts=limits())
    worker.start(agent)
    first = worker.enqueue(agent, kinds[0])
    holding.wait()
    second = worker.enqueue(agent, kinds[1])
    eventually(lambda: registered(worker, second), "the second waits for the lock")
    assert owner(worker) == first.id
    assert registered(worker, first) == ["account"]
    assert len(holding.tokens) == 1
    holding.go.set()
    for run in (first, second):
        assert (run.wait(LONG_S).output, registered(worker, run)) == ("held", [])
    assert holding.tokens == sorted(set(holding.tokens))
    assert owner(worker) is None


@pytest.mark.contract("E7", "A1")
@pytest.mark.parametrize("kind", ["async", "sync", "process"])
def test_who_waits_too_long_is_told(
    worker: Workers, model: MakeProvider, holding: Holding, kind: str
) -> None:
    """LOCK_TIMEOUT within the call's limit, no effect, no retry; the model goes on."""

    @tool(effect="write", identity=ALL, timeout=3)
    async def wait_async(ctx: Any) -> None:
        async with ctx.lock("account"):
            pass

    @tool(effect="write", identity=ALL, timeout=3)
    def wait_sync(ctx: Any) -> None:
        with ctx.lock("account"):
            pass

    asked = (f"wait_{kind}", {}) if kind != "process" else ("wait_in_process", {"name": "account"})
    provider = model([calls(asked), Reply("I do without")])
    holder = make_agent(model(by_input), *holding.tools, name="holder", timeouts=limits())
    waiter = make_agent(provider, wait_async, wait_sync, *engine_tools.RESIDUE_TOOLS, name="waiter")
    worker.start(holder, waiter)
    first = worker.enqueue(holder, "hold_async")
    holding.wait()
    second = worker.enqueue(waiter)
    result = second.wait(LONG_S)
    assert (result.state, result.output) == ("succeeded", "I do without")
    assert told(provider.requests[1])["code"] == "LOCK_TIMEOUT"
    (row,) = second.journal()
    assert (row["status"], row["error"]["code"], row["tries"]) == ("failed", "LOCK_TIMEOUT", 1)
    assert registered(worker, second) == []
    assert owner(worker) == first.id


def test_a_call_that_did_something_before_it_waited_is_unknown(
    worker: Workers, model: MakeProvider, holding: Holding, shop: Any
) -> None:
    """A lock that was not free proves nothing about what was sent before."""
    desk: Shop = shop()

    @tool(effect="idempotent", identity=ALL, timeout=3)
    async def pay_then_lock(ctx: Any) -> None:
        await ctx.http.post(desk.url)
        async with ctx.lock("account"):
            pass

    holder = make_agent(model(by_input), *holding.tools, name="holder", timeouts=limits())
    waiter = make_agent(model([calls(("pay_then_lock", {})), Reply("done")]), pay_then_lock, name="waiter")
    worker.start(holder, waiter)
    worker.cleans = False
    worker.enqueue(holder, "hold_sync")
    holding.wait()
    run = worker.enqueue(waiter)
    row = eventually(lambda: [each for each in run.journal() if each["error"]], "the outcome is recorded")[0]
    assert (row["status"], row["error"]["code"]) == ("unknown", "LOCK_TIMEOUT")


@pytest.mark.contract("E7")
@pytest.mark.parametrize("kind", ["sleep_in", "hold_sync"])
def test_a_cancelled_call_gives_its_lock_back(
    worker: Workers, model: MakeProvider, holding: Holding, kind: str
) -> None:
    """Also when the cancel hits a sync tool, as soon as it returns."""
    agent = make_agent(model(by_input), *holding.tools, timeouts=limits())
    worker.start(agent)
    run = worker.enqueue(agent, kind)
    holding.wait()
    run.cancel()
    holding.go.set()
    assert run.wait(LONG_S).state == "cancelled"
    assert (owner(worker), registered(worker, run)) == (None, [])
    second = worker.enqueue(agent, "hold_async")
    assert second.wait(LONG_S).output == "held"


@pytest.mark.contract("E7")
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_call_that_is_cut_while_it_waits_leaves_nothing(
    worker: Workers, model: MakeProvider, holding: Holding, kind: str
) -> None:
    """It does not get the lock later, when nobody is there to give it back."""
    agent = make_agent(model(by_input), *holding.tools, timeouts=limits())
    worker.start(agent)
    worker.enqueue(agent, "hold_sync")
    holding.wait()
    second = worker.enqueue(agent, f"hold_{kind}")
    eventually(lambda: registered(worker, second), "the second waits for the lock")
    second.cancel()
    assert second.wait(LONG_S).state == "cancelled"
    assert registered(worker, second) == []
    holding.go.set()
    eventually(lambda: owner(worker) is None, "the first gives the lock back")
    assert len(holding.tokens) == 1


@pytest.mark.contract("J26", "E7")
@pytest.mark.parametrize("kind", ["async", "process"])
def test_a_holder_that_times_out_at_l3_does_not_keep_the_next_run_waiting(
    worker: Workers, model: MakeProvider, holding: Holding, tmp_path: Path, kind: str
) -> None:
    """The lock would have lasted much longer; what the timed-out run still sends does not free it for a third."""

    def stuck(request: RequestRecord) -> Behaviour:
        if kind == "async":
            return calls(("sleep_in", {}))
        return calls(("hold_in_process", {"name": "account", "folder": str(tmp_path)}))

    late = make_agent(
        model(stuck), *holding.tools, name="late", timeouts=limits(run=3, call=60), max_attempts=1
    )
    next_one = make_agent(model(by_input), *holding.tools, name="next", timeouts=limits())
    worker.start(late, next_one)
    first = worker.enqueue(late)
    eventually(lambda: owner(worker), "it is held")
    fields = worker.client.store.do(read_lock("account"))
    expires_ms = int(fields["until"])
    result = first.wait(LONG_S)
    assert result.error is not None
    assert (result.state, result.error.code) == ("timed_out", "RUN_TIMEOUT")
    assert registered(worker, first) == []
    second = worker.enqueue(next_one, "hold_async")
    eventually(lambda: owner(worker) == second.id, "the next run has the lock")
    assert worker.client.store.do(read_lock("account"))["holder"] != fields["holder"]
    assert time.time() * 1000 < expires_ms or kind == "process"
    stale = {"run_id": first.id, "fence": fields["fence"], "holder": fields["holder"], "name": "account"}
    before = worker.client.store.do(read_lock("account"))
    worker.client.store.do(release_lock(**stale))  # one that gave it back before is told so again
    assert worker.client.store.do(read_lock("account")) == before
    assert owner(worker) == second.id
    holding.go.set()
    assert second.wait(LONG_S).state == "succeeded"


@pytest.mark.contract("E7")
def test_a_lock_lasts_half_as_long_again_as_what_is_left_of_its_attempt(
    worker: Workers, model: MakeProvider, holding: Holding
) -> None:
    """Of an attempt of 40 s: a minute."""
    agent = make_agent(model(by_input), *holding.tools, timeouts=limits(run=40))
    worker.start(agent)
    worker.enqueue(agent, "hold_async")
    holding.wait()
    left_ms = int(worker.client.store.do(read_lock("account"))["until"]) - time.time() * 1000
    assert 30_000 < left_ms <= 60_000


@pytest.mark.contract("E7")
def test_a_call_that_hangs_on_keeps_its_lock(worker: Workers, model: MakeProvider, holding: Holding) -> None:
    """While its run is stopping the lock is renewed; it is given back when the thread ends."""
    agent = make_agent(model(by_input), *holding.tools, timeouts=limits(run=0.5, call=60), max_attempts=1)
    runtime = worker.start(agent)
    run = worker.enqueue(agent, "hold_sync")
    holding.wait()
    eventually(lambda: run.status() == "stopping", "the thread hangs")
    before = int(worker.client.store.do(read_lock("account"))["until"])

    def renewed() -> bool:
        work = locks_duty.run_once(runtime.env.store, runtime.attempts, 3600)
        return runtime._wait(work) == 1

    assert renewed()
    after = int(worker.client.store.do(read_lock("account"))["until"])
    assert after > before + 3_000_000
    holding.go.set()
    assert run.wait(LONG_S).state == "timed_out"
    assert (owner(worker), registered(worker, run)) == (None, [])
    assert runtime._wait(locks_duty.run_once(runtime.env.store, runtime.attempts, 3600)) == 0


@pytest.mark.contract("E7", "D9")
def test_a_continued_run_gets_its_own_lock_back(worker: Workers, model: MakeProvider) -> None:
    """At once, though its first worker seems to hold it; the old fence can then neither release nor extend it."""
    at, go = threading.Semaphore(0), threading.Event()
    tokens: list[int] = []
    ends: list[BaseException | None] = []

    @tool(effect="idempotent", identity=ALL, timeout=LONG_S)
    def pay(ctx: Any) -> str:
        try:
            with ctx.lock("account") as token:
                tokens.append(token)
                at.release()
                go.wait(LONG_S)
        except BaseException as error:
            ends.append(error)
            raise
        ends.append(None)
        return "paid"

    agent = make_agent(model([calls(("pay", {})), Reply("done")]), pay, timeouts=limits())
    first = worker.start(agent)
    run = worker.enqueue(agent)
    assert at.acquire(timeout=LONG_S)
    old = worker.client.store.do(read_lock("account"))
    worker.pump.detach(first)
    op = lose_worker(prefix_of(run.id), first.env.worker, only_expired=False, death=False)
    assert worker.client.store.do(op).run_ids == (run.id,)
    worker.client.publisher.wake(run.id)
    worker.start(agent)
    assert at.acquire(timeout=LONG_S)
    assert tokens[1] > tokens[0]
    new = worker.client.store.do(read_lock("account"))
    assert (new["owner"], int(new["n"])) == (run.id, int(old["n"]) + 1)
    mine = {"run_id": run.id, "fence": old["fence"], "holder": old["holder"], "name": "account"}
    assert not worker.client.store.do(release_lock(**mine))
    assert not worker.client.store.do(extend_lock(**mine, lifetime_ms=1_000_000))
    assert worker.client.store.do(read_lock("account")) == new
    go.set()
    assert run.wait(LONG_S).state == "succeeded"
    eventually(lambda: len(ends) == 2, "both bodies have ended")
    assert (owner(worker), registered(worker, run)) == (None, [])


def test_a_stale_fence_takes_no_lock(worker: Workers, model: MakeProvider) -> None:
    """The registration is refused, so that the lock is never asked for."""
    seen: list[BaseException] = []
    at, go = threading.Event(), threading.Event()

    @tool(effect="read")
    def late(ctx: Any) -> None:
        at.set()
        go.wait(LONG_S)
        try:
            with ctx.lock("account"):
                pass
        except BaseException as error:
            seen.append(error)
            raise

    agent = make_agent(model([calls(("late", {}))], then=Reply("no")), late)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    assert at.wait(LONG_S)
    worker.client.store.redis.hset(f"{prefix_of(run.id)}run:{run.id}", "fence", "99:other")
    go.set()
    eventually(lambda: not runtime.attempts, "the worker stops its work on the run")
    assert isinstance(seen[0], StaleFence | TimeoutError), "refused, or told to stop for that"
    assert worker.client.store.do(read_lock("account")) == {}


@pytest.mark.contract("E7")
def test_calls_of_one_step_wait_for_each_other(worker: Workers, model: MakeProvider) -> None:
    """The same lock in the same run, under the same fence; also twice within one call at the same time."""
    inside: list[int] = []
    most: list[int] = []

    @tool(effect="read")
    async def enter(ctx: Any, n: int) -> None:
        lock = ctx.lock("account")

        async def once() -> None:
            async with lock:
                inside.append(n)
                most.append(len(inside))
                await asyncio.sleep(0.02)
                inside.remove(n)

        await asyncio.gather(once(), once())

    agent = make_agent(model([calls(*(("enter", {"n": n}) for n in range(3))), Reply("done")]), enter)
    result, run = worker.run(agent)
    assert (result.state, most) == ("succeeded", [1] * 6)
    assert registered(worker, run) == []


def test_a_process_gets_a_lock_and_its_token(worker: Workers, model: MakeProvider) -> None:
    """Through a connection of its own; tokens grow over processes."""
    agent = make_agent(
        model(
            [
                calls(("lock_in_process", {"name": "a"})),
                calls(("lock_in_process", {"name": "a"})),
                Reply("ok"),
            ]
        ),
        *engine_tools.RESIDUE_TOOLS,
    )
    result, run = worker.run(agent)
    assert result.state == "succeeded"
    first, second = (row["response"] for row in run.journal())
    assert first < second
    assert registered(worker, run) == []


@pytest.mark.parametrize("name", ["", "x" * 201, 7, None])
def test_a_lock_needs_a_name(worker: Workers, model: MakeProvider, name: Any) -> None:
    """A text of 1 to 200 characters."""

    @tool(effect="read")
    async def enter(ctx: Any) -> None:
        async with ctx.lock(name):
            pass

    provider = model([calls(("enter", {})), Reply("I see")])
    worker.run(make_agent(provider, enter))
    assert "1 to 200 characters" in told(provider.requests[1])["message"]


def test_a_tool_may_catch_the_timeout(worker: Workers, model: MakeProvider, holding: Holding) -> None:
    """And do without the lock."""

    @tool(effect="read", timeout=3)
    async def look(ctx: Any) -> str:
        try:
            async with ctx.lock("account"):
                return "with"
        except LockTimeout as error:
            return str(error.code)

    holder = make_agent(model(by_input), *holding.tools, name="holder", timeouts=limits())
    looker = make_agent(model([calls(("look", {})), Reply("done")]), look, name="looker")
    worker.start(holder, looker)
    worker.enqueue(holder, "hold_sync")
    holding.wait()
    run = worker.enqueue(looker)
    run.wait(LONG_S)
    assert run.journal()[0]["response"] == "LOCK_TIMEOUT"

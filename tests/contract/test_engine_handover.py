"""A run that leaves its worker goes on elsewhere: same attempt, same history; doubled and late messages do nothing (D7)."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from makegood import ALL, Budgets, tool
from makegood.store.keys import new_run_id, prefix_of, run_key
from makegood.store.ops.leases import lose_worker
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


class Pause:
    """A tool that waits for the test: `.at` is set when its body runs, `.go` lets it return."""

    def __init__(self) -> None:
        self.at, self.go = threading.Event(), threading.Event()
        self.ran: list[str] = []

        @tool(effect="write", identity=ALL)
        async def act(ctx: Any) -> str:
            import asyncio

            self.ran.append(ctx.idempotency_key)
            self.at.set()
            await asyncio.to_thread(self.go.wait, LONG_S)
            return "acted"

        self.act = act


def drained(worker: Workers, agent: Any, pause: Pause, value: Any = "go") -> Any:
    """A run that its first worker handed over at the step boundary after `act`; that worker is gone."""
    runtime = worker.start(agent)
    run = worker.enqueue(agent, value)
    assert pause.at.wait(LONG_S)
    runtime.drain()
    eventually(runtime.env.draining.is_set, "the worker drains")
    pause.go.set()
    worker.stop(runtime)
    assert run.status() == "queued"
    return run


@pytest.mark.contract("D7", "F4")
def test_a_handed_over_run_goes_on_with_the_same_history_byte_for_byte(
    worker: Workers, model: MakeProvider
) -> None:
    """One attempt, the finished step is not done again, the next request begins with exactly what was sent before."""
    pause = Pause()
    provider = model([calls(("act", "{ }"), text="thinking…"), calls(("nothing", {})), Reply("done")])
    agent = make_agent(provider, pause.act, system="sys")
    run = drained(worker, agent, pause, {"b": 1, "a": "ü"})
    assert len(provider.requests) == 1, "the boundary comes before the next request"
    worker.start(agent)
    result = run.wait(LONG_S)
    assert (result.state, result.attempts, result.steps) == ("succeeded", 1, 3)
    assert len(pause.ran) == 1
    first, second, third = (list(request.messages) for request in provider.requests)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert second[-2]["tool_calls"][0]["function"]["arguments"] == "{ }"
    assert second[-1]["content"] == "acted"
    assert len(events_of(run, "run.handed_over")) == len(events_of(run, "run.continued")) == 1
    assert result.calls == 1
    assert result.effects.committed == 1


@pytest.mark.contract("D7", "A1")
def test_the_limit_of_an_attempt_is_not_reset_by_a_hand_over(worker: Workers, model: MakeProvider) -> None:
    """What was used of L3 before is used after; time between two workers is free."""
    pause = Pause()
    provider = model([calls(("act", {})), Stall()])
    agent = make_agent(provider, pause.act, timeouts=limits(run=20))
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    assert pause.at.wait(LONG_S)
    runtime.drain()
    first = runtime.attempts[run.id]
    eventually(lambda: first.run.left_s(time.monotonic()) < 19.5, "half a second of L3 is used")
    pause.go.set()
    worker.stop(runtime)
    used_ms = int(worker.client.store.redis.hget(run_key(run.id), "l3_used_ms"))  # type: ignore[arg-type]
    assert 400 <= used_ms < 20_000
    second = worker.start(agent)
    assert provider.arrived(2).wait(LONG_S)
    attempt = second.attempts[run.id]
    left_s = attempt.run.left_s(attempt.began_s)
    assert left_s <= 20 - used_ms / 1000 + 0.1
    run.cancel(wait=True, timeout=LONG_S)


@pytest.mark.contract("A5")
def test_repeated_failures_count_on_after_a_hand_over(worker: Workers, model: MakeProvider) -> None:
    """Two equal failures before, one after: REPEATED_FAILURE."""
    pause = Pause()
    fail = ("nothing", {"a": 1})
    provider = model([calls(fail), calls(("act", {}), fail), calls(fail), Reply("no")])
    agent = make_agent(provider, pause.act)
    run = drained(worker, agent, pause)
    worker.start(agent)
    result = run.wait(LONG_S)
    assert result.error is not None
    assert result.error.code == "REPEATED_FAILURE"
    assert len(provider.requests) == 3


def test_a_bug_that_was_told_before_a_hand_over_ends_the_run_when_it_comes_again(
    worker: Workers, model: MakeProvider
) -> None:
    """Told once is once in the attempt, not once in each worker."""
    pause = Pause()

    @tool(effect="read")
    async def divide(ctx: Any, n: int) -> float:
        return n / 0

    provider = model([calls(("act", {}), ("divide", {"n": 1})), calls(("divide", {"n": 2})), Reply("no")])
    agent = make_agent(provider, pause.act, divide)
    run = drained(worker, agent, pause)
    worker.start(agent)
    result = run.wait(LONG_S)
    assert result.error is not None
    assert result.error.code == "BUG"
    assert len(provider.requests) == 2


@pytest.mark.contract("G6")
def test_steps_count_on_after_a_hand_over(worker: Workers, model: MakeProvider) -> None:
    """The limit counts all steps of the attempt, whoever did them."""
    pause = Pause()
    provider = model(lambda _: calls(("act", {})))
    agent = make_agent(provider, pause.act, budgets=Budgets(steps=2))
    run = drained(worker, agent, pause)
    worker.start(agent)
    result = run.wait(LONG_S)
    assert result.error is not None
    assert result.error.code == "STEP_LIMIT"
    assert len(provider.requests) == 2


@pytest.mark.contract("D4")
def test_a_question_about_a_possible_repeat_is_not_asked_again_after_a_hand_over(
    worker: Workers, model: MakeProvider
) -> None:
    """POSSIBLE_REPEAT was given before the hand-over; asked again after it, the call runs."""
    pause, ran = Pause(), []

    @tool(effect="write", identity=("to",))
    async def mail(ctx: Any, to: str) -> str:
        ran.append(to)
        return "sent"

    def answer(request: RequestRecord) -> Behaviour:
        if not begun_anew(request):
            return Stall() if request.results else calls(("mail", {"to": "a"}))
        steps = [m for m in request.messages if m["role"] == "assistant"]
        if not steps:
            return calls(("mail", {"to": "b"}), ("act", {}))
        return calls(("mail", {"to": "b"})) if len(steps) == 1 else Reply("done")

    agent = make_agent(model(answer), mail, pause.act, timeouts=limits(step=3))
    run = drained(worker, agent, pause)
    assert ran == ["a"]
    worker.start(agent)
    result = run.wait(LONG_S)
    assert result.state == "succeeded"
    assert ran == ["a", "b"]
    assert result.steps == 4


@pytest.mark.contract("F1", "D7")
def test_a_run_in_a_model_request_is_handed_over_when_the_grace_ends(
    worker: Workers, model: MakeProvider
) -> None:
    """The request is closed, no outcome is invented, the next worker asks the same again."""
    provider = model([Stall(), Reply("done")])
    agent = make_agent(provider)
    runtime = worker.start(agent, grace_s=2)
    run = worker.enqueue(agent)
    assert provider.arrived().wait(LONG_S)
    worker.stop(runtime)
    assert provider.requests[0].connection.peer_closed.wait(LONG_S)
    assert run.status() == "queued"
    worker.start(agent)
    result = run.wait(LONG_S)
    assert (result.state, result.attempts) == ("succeeded", 1)
    assert provider.requests[0].raw == provider.requests[1].raw


@pytest.mark.contract("D7")
def test_doubled_late_and_unknown_wake_ups_change_nothing(worker: Workers, model: MakeProvider) -> None:
    """The same message many times at once, after the end, for a run that never was, and for what is no run."""
    provider = model(then=Reply("done"))
    agent = make_agent(provider)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    threads = [threading.Thread(target=runtime.perform, args=(run.id,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    result = run.wait(LONG_S)
    before = run.info(), list(run.events())
    for hint in (run.id, new_run_id(int(run.id[:2])), "no-run", 7, None, {"a": 1}, "99-" + "0" * 26):
        runtime.perform(hint)
    assert (run.info(), list(run.events())) == before
    assert result.state == "succeeded"
    assert len(provider.requests) == 1
    assert worker.counters()["runs_finished_total|a|succeeded"] == 1


@pytest.mark.contract("D7")
def test_a_wake_up_of_one_run_takes_the_oldest_of_its_shard(worker: Workers, model: MakeProvider) -> None:
    """A message is a hint: the run whose message got lost is not overtaken for ever."""
    provider = model(then=Reply("done"))
    agent = make_agent(provider)
    ids = [worker.enqueue(agent, f"{n}", key=None).id for n in range(60)]
    shard = max({i[:2] for i in ids}, key=lambda s: sum(1 for i in ids if i.startswith(s)))
    mine = [run_id for run_id in ids if run_id.startswith(shard)]
    assert len(mine) > 1
    worker.pump._held.clear()
    runtime = worker.start(agent)
    runtime.perform(mine[-1])
    assert worker.client.get(mine[0]).status() == "succeeded"
    assert worker.client.get(mine[-1]).status() == "queued"


@pytest.mark.contract("C11")
@pytest.mark.parametrize(
    ("attempts", "policy", "state"),
    [
        (2, "keep", "succeeded"),
        (2, "rollback", "succeeded"),
        (1, "keep", "failed"),
        (1, "rollback", "requires_manual_review"),
    ],
)
def test_a_run_that_cannot_be_continued_begins_anew_while_attempts_last(
    worker: Workers, model: MakeProvider, attempts: int, policy: str, state: str
) -> None:
    """Its worker is lost for the eleventh time while the model thinks; what was done is not done again."""
    entered: list[int] = []

    @tool(effect="irreversible", identity=ALL)
    async def act(ctx: Any) -> str:
        entered.append(1)
        return "acted"

    def answer(request: RequestRecord) -> Behaviour:
        if not request.results:
            return calls(("act", {}))
        return Reply("done") if begun_anew(request) else Stall()

    provider = model(answer)
    agent = make_agent(provider, act, max_attempts=attempts, on_failure=policy)
    first = worker.start(agent)
    run = worker.enqueue(agent)
    assert provider.arrived(2).wait(LONG_S)
    eventually(lambda: run.journal()[0]["status"] == "succeeded", "the outcome is recorded")
    worker.client.store.redis.hset(run_key(run.id), "continuations", 10)
    worker.pump.detach(first)
    op = lose_worker(prefix_of(run.id), first.env.worker, only_expired=False, death=False)
    assert worker.client.store.do(op).run_ids == (run.id,)
    worker.client.publisher.wake(run.id)
    worker.start(agent)
    result = run.wait(LONG_S)
    assert entered == [1]
    assert (result.crashes, result.effects.committed) == (1, 1)
    restarted = worker.counters()["recoveries_total|restarted"]
    if attempts == 2:
        assert (result.state, result.attempts, restarted) == (state, 2, 1)
        assert events_of(run, "attempt.ended")[0]["data"]["code"] == "CRASHED"
    else:
        assert (result.state, result.attempts, restarted) == (state, 1, 0)
        assert result.error is not None
        assert result.error.code == "CRASHED"


@pytest.mark.contract("C11")
@pytest.mark.parametrize("attempts", [1, 2])
def test_ten_hand_overs_of_one_attempt_are_the_most(
    worker: Workers, model: MakeProvider, attempts: int
) -> None:
    """The record says how often it was continued; the eleventh time the attempt is over, and another one may begin."""
    pause = Pause()
    agent = make_agent(model([calls(("act", {})), Reply("done")]), pause.act, max_attempts=attempts)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    assert pause.at.wait(LONG_S)
    worker.client.store.redis.hset(run_key(run.id), "continuations", 10)
    runtime.drain()
    eventually(runtime.env.draining.is_set, "the worker drains")
    pause.go.set()
    worker.stop(runtime)
    worker.start(agent)
    result = run.wait(LONG_S)
    assert len(pause.ran) == 1
    assert (result.attempts, result.crashes) == (attempts, 0)
    assert events_of(run, "attempt.ended")[0]["data"]["code"] == "CRASHED"
    if attempts == 2:
        assert result.state == "succeeded"
    else:
        assert result.error is not None
        assert (result.state, result.error.code) == ("failed", "CRASHED")


def test_a_run_that_waited_longer_than_it_may_ends_as_expired_and_is_never_executed(
    worker: Workers, model: MakeProvider
) -> None:
    """A late wake-up leaves it alone; the sweeper ends it, once the same server was watched for a full lease."""
    provider = model(then=Reply("done"))
    agent = make_agent(provider)
    late = worker.enqueue(agent, "late", expires_in=0.01)
    due_ms = int(worker.client.store.redis.hget(run_key(late.id), "expires_at"))  # type: ignore[arg-type]
    eventually(lambda: time.time() * 1000 > due_ms + 1, "its time is over")
    runtime = worker.start(agent, lease_s=2)
    runtime.perform(late.id)
    in_time = worker.enqueue(agent, "in time", expires_in=LONG_S)
    assert in_time.wait(LONG_S).state == "succeeded"
    result = late.wait(LONG_S)
    assert result.state == "expired"
    assert result.error is not None
    assert result.error.code == "EXPIRED"
    assert result.attempts == 0
    assert [r.messages[-1]["content"] for r in provider.requests] == ["in time"]
    assert worker.counters()["runs_finished_total|a|expired"] == 1


@pytest.mark.contract("F9", "D9")
def test_a_worker_whose_fence_is_old_starts_no_effect_and_writes_nothing(
    worker: Workers, model: MakeProvider
) -> None:
    """While the model thinks, another claim takes the run: the decision is refused before any body begins."""
    ids: list[str] = []
    entered: list[int] = []
    redis = worker.client.store.redis

    @tool(effect="write", identity=ALL)
    async def act(ctx: Any) -> None:
        entered.append(1)

    ready = threading.Event()

    def answer(request: RequestRecord) -> Behaviour:
        ready.wait(LONG_S)
        redis.hset(run_key(ids[0]), "fence", "99:elsewhere")
        return calls(("act", {}))

    agent = make_agent(model(answer), act)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    ids.append(run.id)
    ready.set()
    eventually(lambda: run.id in runtime.attempts or run.info()["step"] == 0, "the run is known")
    eventually(
        lambda: not runtime.attempts and redis.hget(run_key(run.id), "fence") == b"99:elsewhere", "it let go"
    )
    assert not entered
    assert run.journal() == []
    assert run.status() == "running"
    assert run.info()["steps"] == 0


@pytest.mark.contract("F9", "D9")
def test_the_outcome_of_an_old_fence_is_refused(worker: Workers, model: MakeProvider) -> None:
    """The run is taken while the body runs: its late outcome and the end it would write change nothing."""
    redis = worker.client.store.redis

    @tool(effect="write", identity=ALL)
    async def act(ctx: Any) -> str:
        redis.hset(run_key(ctx.run_id), "fence", "99:elsewhere")
        return "mine"

    agent = make_agent(model([calls(("act", {})), Reply("done")]), act)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    eventually(lambda: redis.hget(run_key(run.id), "fence") == b"99:elsewhere", "the run is taken")
    eventually(lambda: not runtime.attempts, "the worker lets go")
    assert run.status() == "running"
    assert run.journal()[0]["status"] == "started"

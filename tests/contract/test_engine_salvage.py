"""A failover loses acknowledged writes: the worker that made them puts its calls back, and none is made twice (invariant 3).

The store is wound back to an earlier moment under a worker that goes on, which is what it sees of such a failover.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from makegood import ALL, NOT_DONE, ToolContext, tool
from makegood.store.keys import journal_key, run_key
from makegood.tasks.client import Run
from makegood.testing import Behaviour, Reply, RequestRecord
from support.engine import LONG_S, MakeProvider, Workers, calls, events_of, eventually, make_agent


class Past:
    """The store as it was at one moment."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._dump: dict[bytes, bytes] = {}

    def keep(self) -> None:
        """This moment."""
        self._dump = {name: self._redis.dump(name) for name in self._redis.keys("*")}

    def come_back(self) -> None:
        """Everything that was written since is lost."""
        with self._redis.pipeline(transaction=True) as together:
            together.flushall()
            for name, value in self._dump.items():
                together.restore(name, 0, value)
            together.execute()


@pytest.fixture
def past(worker: Workers) -> Past:
    """The past of the test's store."""
    return Past(worker.client.store.redis)


def begin(worker: Workers, past: Past, agent: Any, **settings: Any) -> Run:
    """A run whose past is the moment before its first claim."""
    first = worker.start(agent, **settings)
    worker.pump.detach(first)  # it hears of the run only when the moment is kept
    run = worker.enqueue(agent)
    past.keep()
    worker.pump.attach(first, 8)
    return run


def asked_once(
    name: str, *, before: Callable[[], None] = lambda: None
) -> Callable[[RequestRecord], Behaviour]:
    """A model that asks for one call, and answers when it has its result."""

    def answer(request: RequestRecord) -> Behaviour:
        if request.messages[-1]["role"] == "tool":
            return Reply("done")
        before()
        return calls((name, {}))

    return answer


@pytest.mark.contract("D6", "D9")
def test_a_call_in_flight_whose_claim_and_intent_were_lost_goes_to_a_person(
    worker: Workers, model: MakeProvider, past: Past
) -> None:
    """In the store the run was never claimed: it is not executed again, and its one effect is asked about."""
    made: list[str] = []

    @tool(effect="write", identity=ALL)
    async def charge(ctx: ToolContext) -> None:
        made.append(ctx.idempotency_key)
        past.come_back()
        raise TimeoutError("no answer")

    provider = model(asked_once("charge"))
    run = begin(worker, past, make_agent(provider, charge))
    result = run.wait(LONG_S)
    assert result.state == "requires_manual_review"
    assert len(made) == 1
    assert len(provider.requests) == 1
    (item,) = worker.client.review(run.id)["items"]
    assert (item["kind"], item["tool"]) == ("unknown", "charge")
    (row,) = run.journal()
    assert (row["status"], row["idempotency_key"], row["tries"]) == ("unknown", made[0], 1)
    (event,) = events_of(run, "tool.ended")
    assert event["data"]["restored"] is True
    assert (result.effects.unknown, result.effects.committed, result.attempts) == (1, 0, 1)


@pytest.mark.contract("D6", "D9")
def test_a_success_that_only_its_worker_knows_of_is_recorded(
    worker: Workers, model: MakeProvider, past: Past
) -> None:
    """The run ends as crashed, with the effect in its record, and no attempt repeats it."""
    made: list[str] = []

    @tool(effect="write", identity=ALL)
    async def charge(ctx: ToolContext) -> str:
        made.append(ctx.idempotency_key)
        past.come_back()
        return "receipt"

    result = (run := begin(worker, past, make_agent(model(asked_once("charge")), charge))).wait(LONG_S)
    assert (result.state, result.error.code if result.error else "") == ("failed", "CRASHED")
    assert len(made) == 1
    (row,) = run.journal()
    assert (row["status"], row["response"], row["started_at"] is not None) == ("succeeded", "receipt", True)
    assert (result.effects.committed, result.effects.unknown) == (1, 0)


@pytest.mark.contract("D6", "D9")
@pytest.mark.parametrize("happened", [True, False])
def test_a_probe_settles_what_came_back(
    worker: Workers, model: MakeProvider, past: Past, happened: bool
) -> None:
    """Nobody has to be asked when the downstream can be."""
    made: list[str] = []

    @tool(effect="write", identity=ALL, settle_after=0.05)
    async def charge(ctx: ToolContext) -> None:
        made.append(ctx.idempotency_key)
        past.come_back()
        raise TimeoutError("no answer")

    @charge.probe
    async def look(ctx: ToolContext, call: Any) -> Any:
        return {"id": call.idempotency_key} if happened else NOT_DONE

    result = (run := begin(worker, past, make_agent(model(asked_once("charge")), charge))).wait(LONG_S)
    assert (result.state, result.error.code if result.error else "") == ("failed", "CRASHED")
    assert len(made) == 1
    assert run.journal()[0]["status"] == ("succeeded" if happened else "failed")
    assert (result.effects.committed, result.effects.unknown) == (int(happened), 0)


@pytest.mark.contract("D6")
def test_an_intent_that_was_lost_under_a_claim_that_was_not_comes_back_before_the_end(
    worker: Workers, model: MakeProvider, past: Past
) -> None:
    """The worker is still the one: it ends its run, and the end finds what has to be settled."""
    made: list[str] = []

    @tool(effect="write", identity=ALL)
    async def charge(ctx: ToolContext) -> None:
        made.append(ctx.idempotency_key)
        past.come_back()
        raise TimeoutError("no answer")

    agent = make_agent(model(asked_once("charge", before=past.keep)), charge)
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    assert len(made) == 1
    assert run.journal()[0]["status"] == "unknown"
    assert run.info()["error"]["code"] == "CRASHED"


@pytest.mark.contract("D9")
def test_a_body_that_does_not_stop_does_not_keep_its_row_from_coming_back(
    worker: Workers, model: MakeProvider, past: Past
) -> None:
    """A thread cannot be cut: the row is put back when the heartbeat hears of the loss, not when the thread ends."""
    made: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    @tool(effect="write", identity=ALL)
    def charge(ctx: ToolContext) -> str:
        made.append(ctx.idempotency_key)
        inside.set()
        leave.wait(LONG_S)
        return "late"

    run = begin(worker, past, make_agent(model(asked_once("charge")), charge), lease_s=2)
    try:
        assert inside.wait(LONG_S)
        past.come_back()
        assert run.wait(LONG_S).state == "requires_manual_review"
        assert run.journal()[0]["status"] == "unknown"
    finally:
        leave.set()
    eventually(lambda: not worker.runtimes[0].attempts, "the worker lets go of it")
    assert len(made) == 1
    assert run.status() == "requires_manual_review"


@pytest.mark.contract("D9")
def test_what_became_of_the_calls_beside_the_one_that_learned_of_the_loss_comes_back_too(
    worker: Workers, model: MakeProvider, past: Past
) -> None:
    """Three calls of one step: one is over and loses its record, one ends well, one gives up."""
    first, others = threading.Event(), []

    @tool(effect="write", identity=ALL)
    async def quick(ctx: ToolContext) -> str:
        past.come_back()
        first.set()
        return "quick"

    @tool(effect="write", identity=ALL)
    def steady(ctx: ToolContext) -> str:
        first.wait(LONG_S)
        others.append(ctx.cancelled.wait_sync(LONG_S))
        return "steady"

    @tool(effect="read")
    async def look(ctx: ToolContext) -> None:
        await ctx.cancelled.wait()

    provider = model(
        lambda request: (
            Reply("done")
            if request.messages[-1]["role"] == "tool"
            else calls(("quick", {}), ("steady", {}), ("look", {}))
        )
    )
    result = (run := begin(worker, past, make_agent(provider, quick, steady, look))).wait(LONG_S)
    status = {row["tool"]: row["status"] for row in run.journal()}
    assert status["quick"] == "succeeded"
    assert status["steady"] in ("succeeded", "unknown")  # its row may come back before it has ended
    assert status["look"] == "failed"
    assert result.state == ("failed" if status["steady"] == "succeeded" else "requires_manual_review")


def test_a_run_that_is_lost_altogether_is_told_to_a_person(
    worker: Workers, model: MakeProvider, past: Past
) -> None:
    """There is no record in which its effect could stand."""

    @tool(effect="write", identity=ALL)
    async def charge(ctx: ToolContext) -> str:
        worker.client.store.redis.flushall()
        return "receipt"

    runtime = worker.start(agent := make_agent(model(asked_once("charge")), charge))
    run = worker.enqueue(agent)
    eventually(lambda: worker.alerts, "the alert")
    eventually(lambda: not runtime.attempts, "the worker lets go of it")
    messages = {message for message, tags in worker.alerts if tags["run_id"] == run.id}
    assert messages == {f"The store has lost run {run.id}, which had called charge; look downstream."}
    assert not worker.client.store.redis.exists(run_key(run.id), journal_key(run.id))


@pytest.mark.contract("D9")
def test_a_worker_that_only_lost_its_lease_puts_nothing_back(worker: Workers, model: MakeProvider) -> None:
    """All rows are there: what another worker has written since stays, and nothing is counted twice."""
    redis = worker.client.store.redis
    rows: list[Any] = []

    @tool(effect="write", identity=ALL)
    async def charge(ctx: ToolContext) -> str:
        redis.hset(run_key(ctx.run_id), "fence", "99:elsewhere")
        rows.append(redis.hgetall(journal_key(ctx.run_id)))
        return "mine"

    runtime = worker.start(agent := make_agent(model(asked_once("charge")), charge))
    run = worker.enqueue(agent)
    eventually(lambda: rows and not runtime.attempts, "it let go")
    assert redis.hgetall(journal_key(run.id)) == rows[0]
    assert run.status() == "running"
    assert not events_of(run, "tool.ended")

"""Holes that an attack on cleanup has found, each attacked again."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from contract.test_cleanup_pipeline import Ledger, asks_for, booking, give_up
from makegood import RecordedCall, RetryPolicy, Timeouts, ToolContext, tool
from makegood.cleanup import bodies
from makegood.store import faults
from makegood.store.states import State
from makegood.tasks.tool import Tool
from support.engine import MakeProvider, Workers, events_of, eventually, limits, make_agent

NO_RETRY = RetryPolicy(retries=0)


def lost(times: list[float], **options: Any) -> Tool[Any, Any]:
    """An idempotent tool whose answers are all lost; its compensation handles that."""

    @tool(effect="idempotent", identity=("place",), retry=NO_RETRY, **options)
    async def hotel(ctx: ToolContext, place: str = "") -> None:
        times.append(time.monotonic())
        raise ConnectionResetError("lost on the way")

    return hotel


@pytest.mark.contract("E3")
def test_nothing_is_undone_while_settling_has_no_time_left(worker: Workers, model: MakeProvider) -> None:
    """A second repeat does not fit into the pass: neither the unknown call nor another one is undone before settling ended."""
    ledger, sent = Ledger(), []
    hotel = lost(sent, timeout=60, settle_after=0)

    @hotel.compensate(handles_unknown=True)
    async def undo_hotel(ctx: ToolContext, call: RecordedCall) -> None:
        ledger.note("undo hotel")

    agent = make_agent(
        model(asks_for("flight", "hotel")),
        booking(ledger, "flight"),
        hotel,
        on_failure="rollback",
        timeouts=Timeouts(),
    )
    result, run = worker.run(agent)
    assert (result.state, result.effects.compensated) == ("failed", 2)
    assert len(sent) == 4  # one, and one more in each of three passes
    assert [event["data"]["pass"] for event in events_of(run, "cleanup.started")] == [1, 2, 3]
    assert ledger.lines == ["flight", "undo hotel", "undo flight"]


@pytest.mark.contract("C8")
def test_a_call_that_cleanup_sent_again_is_undone_only_when_that_can_not_land_any_more(
    worker: Workers, model: MakeProvider
) -> None:
    """`settle_after` counts from the last repeat; three repeats in all, however often the case is claimed."""
    sent, undone = [], []
    hotel = lost(sent, settle_after=2)

    @hotel.compensate(handles_unknown=True)
    async def undo_hotel(ctx: ToolContext, call: RecordedCall) -> None:
        undone.append(time.monotonic())

    agent = make_agent(model(asks_for("hotel")), hotel, on_failure="rollback")
    result, _ = worker.run(agent)
    assert (result.state, result.effects.compensated) == ("failed", 1)
    assert len(sent) == 4
    assert undone[0] - sent[-1] >= 2


@pytest.mark.contract("E10")
@pytest.mark.parametrize("how", ["cancel", "total"])
def test_an_irreversible_call_is_not_committed_when_the_next_attempt_cannot_begin(
    worker: Workers, model: MakeProvider, how: str
) -> None:
    """It was left for the replay; then a cancel came, or the total time had passed: a person is asked after all."""
    ledger, began, go = Ledger(), threading.Event(), threading.Event()
    mail = booking(ledger, "mail", effect="irreversible", compensates=False)
    flight = booking(ledger, "flight", compensates=False)

    @flight.compensate
    def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        began.set()
        go.wait(30)

    @tool(effect="read")
    async def slow(ctx: ToolContext) -> None:
        await asyncio.Event().wait()

    agent = make_agent(
        model(asks_for("flight", "mail", "slow")),
        flight,
        mail,
        slow,
        on_failure="rollback",
        timeouts=limits(step=1.0, run=2.0, total=None if how == "cancel" else 3.0),
    )
    worker.start(agent)
    run = worker.enqueue(agent)
    assert began.wait(30)
    if how == "cancel":
        run.cancel()
    else:
        started = run.result().started_at
        assert started is not None
        eventually(lambda: time.time() - started.timestamp() > 3.5, "the total time passes")
    go.set()
    result = run.wait(30)
    assert result.state == "requires_manual_review"
    assert [item["tool"] for item in worker.client.review(run.id)["items"]] == ["mail"]


def test_a_run_that_would_have_succeeded_is_undone_when_it_is_cancelled_while_it_is_settled(
    worker: Workers, model: MakeProvider
) -> None:
    """Invariant 18: the verdict is cancelled, and what its policy wants undone is undone."""
    ledger, began, go = Ledger(), threading.Event(), threading.Event()

    @tool(effect="write", identity=("x",), settle_after=0, on_failure="keep")
    async def buggy(ctx: ToolContext, x: str = "1") -> None:
        raise KeyError("after the effect")

    @buggy.probe
    def find(ctx: ToolContext, call: RecordedCall) -> str:
        began.set()
        go.wait(30)
        return "found"

    agent = make_agent(
        model(asks_for("flight", "buggy")), booking(ledger, "flight"), buggy, on_failure="rollback"
    )
    worker.start(agent)
    run = worker.enqueue(agent)
    assert began.wait(30)
    run.cancel()
    go.set()
    result = run.wait(30)
    assert (result.state, result.effects.compensated, result.effects.committed) == ("cancelled", 1, 1)
    assert ledger.lines == ["flight", "undo flight"]


@pytest.mark.contract("F8")
def test_a_probe_that_hangs_in_a_thread_costs_a_pass_each_time_and_ends_with_a_person(
    worker: Workers, model: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is replaced; the drain that follows must not make the case begin anew for ever."""
    monkeypatch.setattr(bodies, "HANG_S", 0.5)
    go, asked = threading.Event(), []

    @tool(effect="write", identity=("x",), settle_after=0, retry=NO_RETRY)
    async def send(ctx: ToolContext, x: str = "1") -> None:
        raise ConnectionResetError("lost on the way")

    @send.probe
    def find(ctx: ToolContext, call: RecordedCall) -> None:
        asked.append(1)
        go.wait(60)

    agent = make_agent(model(asks_for("send")), send, timeouts=limits(compensation=0.2))
    worker.cleans = False
    worker.start(agent)
    run = worker.enqueue(agent)
    for round_ in range(3):
        worker.recycled.clear()
        cleaner = worker.start_cleaner(grace_s=2.0)
        assert worker.recycled.wait(30), f"round {round_}"
        cleaner.drain()
        worker.pump.detach(cleaner)
        eventually(lambda c=cleaner: not c.attempts, "it lets go")
    worker.start_cleaner()
    assert run.wait(30).state == "requires_manual_review"
    go.set()
    assert len(asked) == 3
    assert worker.client.review(run.id)["code"] == "CLEANUP_TIMEOUT"


@pytest.mark.contract("D9")
def test_a_cleanup_worker_whose_lease_is_over_begins_nothing_before_it_is_renewed(
    worker: Workers, model: MakeProvider
) -> None:
    """It was frozen between the intent of a compensation and its body: the body waits for the lease."""
    ledger, stopped = Ledger(), threading.Event()
    agent = make_agent(
        model(asks_for("flight", "give_up")), booking(ledger, "flight"), give_up, on_failure="rollback"
    )
    worker.start(agent)
    cleaner = worker.start_cleaner()
    renewed, looked = threading.Event(), threading.Event()

    def may_act() -> bool:
        looked.set()
        return renewed.is_set()

    def freeze(point: str) -> None:
        if point == "after_undo_intent":
            cleaner.env.may_act = may_act
            stopped.set()

    faults.arm(freeze)
    try:
        run = worker.enqueue(agent)
        assert stopped.wait(30)
        for _ in range(3):  # it has looked, again and again, and not begun
            looked.clear()
            assert looked.wait(30)
        assert ledger.lines == ["flight"]
        renewed.set()
        assert run.wait(30).state == State.FAILED
    finally:
        faults.disarm()
    assert ledger.lines == ["flight", "undo flight"]


@pytest.mark.contract("E8")
def test_what_breaks_about_one_call_does_not_stop_the_others(
    worker: Workers, model: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect in how one compensation is prepared is a question for a person; the other call is undone all the same."""
    from makegood.cleanup import compensate

    ledger = Ledger()
    whole = compensate._body_of

    def breaks(case: Any, row: Any) -> Any:
        if row.tool == "hotel":
            raise KeyError("broken")
        return whole(case, row)

    monkeypatch.setattr(compensate, "_body_of", breaks)
    flight, hotel = booking(ledger, "flight"), booking(ledger, "hotel")
    agent = make_agent(
        model(asks_for("flight", "hotel", "give_up")), flight, hotel, give_up, on_failure="rollback"
    )
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    assert ledger.lines == ["flight", "hotel", "undo flight"]
    (item,) = worker.client.review(run.id)["items"]
    assert (item["tool"], item["kind"]) == ("hotel", "compensation")

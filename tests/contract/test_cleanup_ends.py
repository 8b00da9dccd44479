"""How a cleanup ends: in time, on cancel, with a person, on shutdown (CONTRACT E8–E10, F8; invariants 9, 10, 18)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from contract.test_cleanup_pipeline import Ledger, asks_for, booking, give_up
from makegood import Conflict, RecordedCall, ToolContext, tool
from support.engine import MakeProvider, Workers, events_of, eventually, limits, make_agent


def failing(model: MakeProvider, *tools: Any, **options: Any) -> Any:
    """An agent under rollback that calls its tools in order, then fails."""
    names = [each.name for each in tools]
    return make_agent(
        model(asks_for(*names, "give_up")), *tools, give_up, **{"on_failure": "rollback", **options}
    )


@pytest.mark.contract("E10")
def test_an_irreversible_call_that_succeeded_sends_its_failed_run_to_a_person_by_name(
    worker: Workers, model: MakeProvider
) -> None:
    """It is never silently committed; what can be undone is undone; marked as accepted, a retry ends the run."""
    ledger = Ledger()
    mail = booking(ledger, "mail", effect="irreversible", compensates=False)
    result, run = worker.run(failing(model, booking(ledger, "flight"), mail))
    assert result.state == "requires_manual_review"
    assert ledger.lines == ["flight", "mail", "undo flight"]
    review = worker.client.review(run.id)
    (item,) = review["items"]
    assert (item["kind"], item["tool"]) == ("irreversible", "mail")
    worker.client.mark(run.id, item["call_key"], "done", actor="ann", reason="the mail may stay")
    worker.client.retry_cleanup(run.id, actor="ann", reason="go on")
    assert eventually(lambda: run.status() == "failed" and run.wait(1), "it ends").effects.committed == 1
    assert [entry["action"] for entry in worker.client.audit(run.id)] == ["mark", "retry"]


@pytest.mark.contract("E9")
def test_a_compensation_that_may_not_be_repeated_goes_to_a_person_when_its_outcome_is_unknown(
    worker: Workers, model: MakeProvider
) -> None:
    """It ran once; the operator says that it worked, and the run ends."""
    ledger = Ledger()
    flight = booking(ledger, "flight", compensates=False)
    ledger.fails["undo flight"] = 1

    @flight.compensate(effect="write")
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        ledger.note("undo flight", ctx.idempotency_key)

    result, run = worker.run(failing(model, flight))
    assert result.state == "requires_manual_review"
    assert ledger.lines == ["flight", "undo flight"]
    (row,) = [row for row in run.journal() if row["tool"] == "flight"]
    assert row["compensation"]["status"] == "unknown"
    worker.client.mark(run.id, row["call_key"], "undone", actor="ann", reason="seen downstream")
    worker.client.retry_cleanup(run.id, actor="ann", reason="go on")
    result = eventually(lambda: run.status() == "failed" and run.wait(1), "it ends")
    assert (result.effects.compensated, result.effects.committed) == (1, 0)
    assert ledger.lines == ["flight", "undo flight"]


@pytest.mark.contract("E8")
def test_a_compensation_is_cut_at_its_limit_and_repeated_under_its_key(
    worker: Workers, model: MakeProvider
) -> None:
    """The first try hangs; the second one, under the same undo key, succeeds."""
    ledger, keys = Ledger(), []
    flight = booking(ledger, "flight", compensates=False)

    @flight.compensate
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            await asyncio.Event().wait()

    agent = failing(model, flight, timeouts=limits(compensation=0.5))
    result, run = worker.run(agent)
    assert (result.state, result.effects.compensated) == ("failed", 1)
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert [event["data"]["code"] for event in events_of(run, "cleanup.failed")] == ["TIMEOUT"]


@pytest.mark.contract("E8")
def test_a_cleanup_gets_three_passes_and_then_a_person(worker: Workers, model: MakeProvider) -> None:
    """Each pass is cut at its limit; the tries of the compensation are spread over them; it never loops."""
    ledger, tries = Ledger(), []
    flight = booking(ledger, "flight", compensates=False)

    @flight.compensate
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        tries.append(1)
        await asyncio.Event().wait()

    agent = failing(model, flight, timeouts=limits(cleanup=0.5, compensation=30))
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    assert [event["data"]["pass"] for event in events_of(run, "cleanup.started")] == [1, 2, 3]
    assert len(tries) == 3


def test_a_sync_compensation_runs_in_a_thread(worker: Workers, model: MakeProvider) -> None:
    """Like a sync tool."""
    ledger, threads = Ledger(), []
    flight = booking(ledger, "flight", compensates=False)

    @flight.compensate
    def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        threads.append(threading.current_thread().name)

    result, _ = worker.run(failing(model, flight))
    assert (result.state, result.effects.compensated) == ("failed", 1)
    assert threads == ["makegood-tool"]


def test_a_cancel_during_cleaning_is_its_verdict_and_stops_nothing(
    worker: Workers, model: MakeProvider
) -> None:
    """Invariant 18: the compensation goes on; the run ends cancelled. In review a cancel is a conflict."""
    ledger, began, go = Ledger(), threading.Event(), threading.Event()
    flight = booking(ledger, "flight", compensates=False)

    @flight.compensate
    def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        began.set()
        go.wait(30)
        ledger.note("undo flight")

    worker.start(agent := failing(model, flight))
    run = worker.enqueue(agent)
    assert began.wait(30)
    assert run.status() == "cleaning"
    assert run.info()["activity"] == "compensating"
    run.cancel()
    go.set()
    result = run.wait(30)
    assert (result.state, result.error and result.error.code) == ("cancelled", "CANCELLED")
    assert ledger.lines == ["flight", "undo flight"]


def test_in_review_a_cancel_is_a_conflict(worker: Workers, model: MakeProvider) -> None:
    """Only a decision ends a review."""
    ledger = Ledger()
    result, run = worker.run(
        failing(model, booking(ledger, "mail", effect="irreversible", compensates=False))
    )
    assert result.state == "requires_manual_review"
    with pytest.raises(Conflict):
        run.cancel()


def test_a_cancelled_run_is_undone(worker: Workers, model: MakeProvider) -> None:
    """Cancel ends a run through cleaning when effects stand under rollback."""
    ledger, began = Ledger(), threading.Event()

    @tool(effect="read")
    async def wait(ctx: ToolContext) -> None:
        began.set()
        await ctx.cancelled.wait()

    agent = make_agent(
        model(asks_for("flight", "wait")), booking(ledger, "flight"), wait, on_failure="rollback"
    )
    worker.start(agent)
    run = worker.enqueue(agent)
    assert began.wait(30)
    run.cancel()
    result = run.wait(30)
    assert (result.state, result.effects.compensated) == ("cancelled", 1)
    assert ledger.lines == ["flight", "undo flight"]


def test_a_new_attempt_after_a_rollback_makes_its_calls_anew_in_the_next_generation(
    worker: Workers, model: MakeProvider
) -> None:
    """Invariant 9: the same call key, another generation and key; both rows stay in the journal."""
    ledger = Ledger()
    hangs = threading.Event()

    @tool(effect="read")
    async def slow(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            hangs.set()
            await asyncio.Event().wait()
        return "ok"

    agent = make_agent(
        model(asks_for("flight", "slow")),
        booking(ledger, "flight"),
        slow,
        on_failure="rollback",
        timeouts=limits(step=1.5),
    )
    result, run = worker.run(agent)
    assert (result.state, result.attempts) == ("succeeded", 2)
    assert ledger.lines == ["flight", "undo flight", "flight"]
    rows = [row for row in run.journal() if row["tool"] == "flight"]
    assert [(row["generation"], row["compensation"] and row["compensation"]["status"]) for row in rows] == [
        (1, "succeeded"),
        (2, None),
    ]
    assert rows[0]["call_key"] == rows[1]["call_key"]
    assert rows[0]["idempotency_key"] != rows[1]["idempotency_key"]
    assert (result.effects.committed, result.effects.compensated) == (1, 1)


@pytest.mark.contract("I2")
def test_cleanups_compensations_and_reviews_are_counted_once(worker: Workers, model: MakeProvider) -> None:
    """A timed-out run in review counts as not cleaned, also when it is resolved later."""
    ledger = Ledger()
    mail = booking(ledger, "mail", effect="irreversible", compensates=False)

    @tool(effect="read")
    async def slow(ctx: ToolContext) -> None:
        await asyncio.Event().wait()

    agent = make_agent(
        model(asks_for("flight", "mail", "slow")),
        booking(ledger, "flight"),
        mail,
        slow,
        on_failure="rollback",
        timeouts=limits(step=1.0),
        max_attempts=1,
    )
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    worker.client.resolve(run.id, actor="ann", reason="fine as it is")
    assert run.wait(30).state == "resolved"
    counted = worker.counters()
    assert counted["timed_out_runs_total|a|no"] == 1
    assert counted["timed_out_runs_total|a|yes"] == 0
    assert counted["compensations_total|flight|succeeded"] == 1
    assert counted["cleanups_total|a|timeout|failed"] == 1
    assert counted["reviews_total|a|IRREVERSIBLE"] == 1
    assert counted["runs_finished_total|a|resolved"] == 1


def test_a_cleanup_worker_that_shuts_down_hands_the_compensation_on(
    worker: Workers, model: MakeProvider
) -> None:
    """The next one repeats it under its key, and it counts as one try."""
    ledger, began = Ledger(), threading.Event()
    flight = booking(ledger, "flight", compensates=False)
    keys: list[str] = []

    @flight.compensate
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            began.set()
            await asyncio.Event().wait()

    worker.start(agent := failing(model, flight))
    first = worker.start_cleaner(grace_s=2.0)
    run = worker.enqueue(agent)
    assert began.wait(30)
    worker.start_cleaner()
    first.drain()
    worker.pump.detach(first)
    result = run.wait(30)
    assert (result.state, result.effects.compensated) == ("failed", 1)
    assert len(set(keys)) == 1
    (row,) = [row for row in run.journal() if row["tool"] == "flight"]
    assert row["compensation"] == {"status": "succeeded", "tries": 1, "error": None}

"""`verify`: had the run that timed out in fact finished? Asked once, before anything is undone (CONTRACT A8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from contract.test_cleanup_pipeline import Ledger, asks_for, booking, give_up
from makegood import Conflict, RecordedCall, Result, ToolContext, tool
from makegood.cleanup import bodies
from makegood.testing import Reply, Stall
from support.engine import (
    LONG_S,
    MakeProvider,
    Workers,
    begun_anew,
    events_of,
    eventually,
    limits,
    make_agent,
)
from support.timing_out import Clock, Gate, MakeTimingOut, clock, counted, timing_out, verdict_of

__all__ = ["clock", "timing_out"]


@pytest.fixture
def bugs(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What was reported as a bug."""
    seen: list[BaseException] = []
    monkeypatch.setattr("makegood.workers.runtime.sentry.report_bug", lambda error, tags: seen.append(error))
    return seen


@pytest.mark.contract("A8")
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("says", "verdict", "reported"),
    [
        (lambda: True, "false_kill", 0),
        (lambda: False, "true_kill", 0),
        (lambda: None, "unknown", 0),
        (lambda: "yes", "unknown", 1),
        (lambda: 1 / 0, "unknown", 1),
        (lambda: exec("raise SystemExit"), "unknown", 1),
    ],
    ids=["true", "false", "none", "no_answer", "raises", "exits"],
)
def test_what_verify_says_is_the_verdict(
    worker: Workers,
    timing_out: MakeTimingOut,
    bugs: list[BaseException],
    says: Callable[[], Any],
    verdict: str,
    reported: int,
    is_async: bool,
) -> None:
    """Whatever is no answer is unknown; what it raises is a bug of its own, and the run still ends timed_out."""
    asked: list[tuple[str, Result]] = []

    async def verify(ctx: ToolContext, run: Result) -> Any:
        asked.append((ctx.idempotency_key, run))
        return says()

    def verify_sync(ctx: ToolContext, run: Result) -> Any:
        asked.append((ctx.idempotency_key, run))
        return says()

    result, run = worker.run(timing_out(verify if is_async else verify_sync))
    assert (result.state, result.error and result.error.code) == ("timed_out", "STEP_TIMEOUT")
    assert verdict_of(run) == verdict
    assert counted(worker) == {verdict: 1}
    assert len(bugs) == reported
    ((key, seen),) = asked
    assert key == f"{run.id}:verify"
    assert (seen.run_id, seen.state, seen.error, seen.attempts) == (run.id, "timed_out", result.error, 1)
    assert seen.ended_at is not None
    (entry,) = worker.client.audit(run.id)
    assert (entry["action"], entry["actor"]) == ("timeout_verdict", "verify")
    assert worker.counters()["timed_out_runs_total|a|yes"] == 1


@pytest.mark.contract("A8")
def test_a_verify_that_does_not_end_is_cut_at_the_limit_of_a_compensation(
    worker: Workers, timing_out: MakeTimingOut, bugs: list[BaseException]
) -> None:
    """Unknown, and no bug report: what it asked may be slow; the effect is undone in the same pass."""
    ledger = Ledger()

    async def verify(ctx: ToolContext, run: Result) -> bool:
        await asyncio.Event().wait()
        return True

    made = timing_out(verify, booking(ledger, "flight"), timeouts=limits(compensation=0.3))
    result, run = worker.run(made)
    assert (result.state, result.effects.compensated) == ("timed_out", 1)
    assert verdict_of(run) == "unknown"
    assert bugs == []
    assert len(events_of(run, "cleanup.started")) == 1


@pytest.mark.contract("A8")
def test_a_verify_that_hangs_in_its_thread_is_judged_before_its_process_is_replaced(
    worker: Workers, timing_out: MakeTimingOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process does not ask again, or it would hang too: it undoes what is to be undone."""
    monkeypatch.setattr(bodies, "HANG_S", 0.2)
    gate = Gate()
    made = timing_out(gate.verify, booking(Ledger(), "flight"), timeouts=limits(compensation=0.3))
    run, first = gate.enqueue(worker, made, grace_s=2.0)
    assert worker.recycled.wait(LONG_S)
    eventually(lambda: counted(worker) == {"unknown": 1}, "it is judged")
    assert run.status() == "cleaning"
    worker.start_cleaner()
    worker.pump.detach(first)
    first.drain()
    gate.go.set()
    result = run.wait(LONG_S)
    assert (result.state, result.effects.compensated) == ("timed_out", 1)
    assert gate.asked == [run.id]
    assert (verdict_of(run), counted(worker)) == ("unknown", {"unknown": 1})


@pytest.mark.contract("A8")
def test_verify_is_asked_before_anything_is_undone_and_changes_nothing_of_it(
    worker: Workers, timing_out: MakeTimingOut
) -> None:
    """Also when it says that the run had finished."""
    ledger = Ledger()

    async def verify(ctx: ToolContext, run: Result) -> bool:
        ledger.note(f"verify with {run.effects.committed}")
        return True

    made = timing_out(verify, booking(ledger, "flight"), booking(ledger, "hotel"))
    result, run = worker.run(made)
    assert ledger.lines == ["flight", "hotel", "verify with 2", "undo hotel", "undo flight"]
    assert (result.state, result.effects.compensated, verdict_of(run)) == ("timed_out", 2, "false_kill")


@pytest.mark.contract("A8")
def test_verify_is_not_asked_between_two_attempts_but_when_there_is_no_other(
    worker: Workers, timing_out: MakeTimingOut
) -> None:
    """Each attempt times out and is undone; only the end of the run is asked about."""
    ledger = Ledger()

    async def verify(ctx: ToolContext, run: Result) -> bool:
        ledger.note(f"verify {run.attempts}")
        return False

    result, run = worker.run(timing_out(verify, booking(ledger, "flight"), max_attempts=2))
    assert (result.state, result.attempts) == ("timed_out", 2)
    assert ledger.lines == ["flight", "undo flight", "flight", "verify 2", "undo flight"]
    assert (verdict_of(run), counted(worker)) == ("true_kill", {"true_kill": 1})


@pytest.mark.contract("A8")
def test_verify_is_asked_when_the_total_passes_while_an_attempt_is_undone(
    worker: Workers, timing_out: MakeTimingOut, clock: Clock
) -> None:
    """The next attempt cannot begin any more: the run ends in its cleanup."""
    ledger = Ledger()

    async def verify(ctx: ToolContext, run: Result) -> bool:
        ledger.note(f"verify {run.error and run.error.code}")
        return False

    flight = booking(ledger, "flight", compensates=False)

    @flight.compensate
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        clock.total_is_over = True
        ledger.note("undo flight")

    made = timing_out(verify, flight, max_attempts=2)
    result, run = worker.run(made)
    assert (result.state, result.attempts) == ("timed_out", 1)
    assert ledger.lines == ["flight", "undo flight", "verify STEP_TIMEOUT"]
    assert verdict_of(run) == "true_kill"


@pytest.mark.contract("A8")
@pytest.mark.parametrize("limit", [{"total": 0.6}, {"run": 0.6}, {"step": 0.6}])
def test_verify_is_asked_whichever_limit_ended_the_run(
    worker: Workers, model: MakeProvider, limit: dict[str, float]
) -> None:
    """Also when there is nothing to clean up."""

    async def verify(ctx: ToolContext, run: Result) -> bool:
        return bool(run.error and run.error.code == f"{next(iter(limit)).upper()}_TIMEOUT")

    made = make_agent(model(lambda _: Stall()), verify=verify, timeouts=limits(**limit), max_attempts=1)
    result, run = worker.run(made)
    assert (result.state, verdict_of(run)) == ("timed_out", "false_kill")


@pytest.mark.contract("A8")
def test_verify_is_asked_when_the_total_passed_while_the_run_waited_for_a_worker(
    worker: Workers, timing_out: MakeTimingOut, clock: Clock
) -> None:
    """Its worker drained in the middle; the next one finds that its time is over."""
    asked: list[Any] = []

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        worker.runtimes[0].drain()
        return "seen"

    async def verify(ctx: ToolContext, run: Result) -> bool:
        asked.append(run.error and run.error.code)
        return False

    made = timing_out(verify, look)
    first = worker.start(made)
    run = worker.enqueue(made)
    eventually(lambda: events_of(run, "run.handed_over"), "it is handed over")
    worker.stop(first)
    clock.total_is_over = True
    worker.start(made)
    assert run.wait(LONG_S).state == "timed_out"
    assert (asked, verdict_of(run)) == (["TOTAL_TIMEOUT"], "true_kill")


@pytest.mark.contract("A8")
def test_verify_is_not_asked_again_by_a_retry_nor_by_a_later_cleanup(
    worker: Workers, timing_out: MakeTimingOut
) -> None:
    """The run comes to a person, is cleaned up once more and ends; then its cleanup is asked for again."""
    ledger, asked = Ledger(), []
    ledger.fails["undo flight"] = 3

    async def verify(ctx: ToolContext, run: Result) -> bool:
        asked.append(run.run_id)
        return False

    made = timing_out(verify, booking(ledger, "flight"), booking(ledger, "hotel", on_failure="keep"))
    result, run = worker.run(made)
    assert (result.state, verdict_of(run)) == ("requires_manual_review", "true_kill")
    worker.client.retry_cleanup(run.id, actor="ann", reason="it is back")
    eventually(lambda: run.status() == "timed_out", "the retry finishes it")
    assert ledger.lines.count("undo hotel") == 0
    (asked_for,) = worker.client.cleanup(run.id, actor="ann", reason="undo all of it")
    assert asked_for["result"] == "requested"
    eventually(lambda: ledger.lines.count("undo hotel") == 1 and run.status() == "timed_out", "it is undone")
    assert asked == [run.id]
    assert counted(worker) == {"true_kill": 1}


@pytest.mark.contract("A8")
def test_runs_that_do_not_time_out_are_not_verified(
    worker: Workers, model: MakeProvider, timing_out: MakeTimingOut
) -> None:
    """One that fails in its cleanup, and one that is cancelled while it is cleaned up after a timeout."""
    ledger, asked, began, go = Ledger(), [], threading.Event(), threading.Event()

    async def verify(ctx: ToolContext, run: Result) -> bool:
        asked.append(run.state)
        return False

    flight = booking(ledger, "flight", compensates=False)

    @flight.compensate
    def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        began.set()
        go.wait(LONG_S)

    made = timing_out(verify, flight, max_attempts=2)
    fails = make_agent(
        model(asks_for("flight", "give_up")),
        flight,
        give_up,
        name="fails",
        verify=verify,
        on_failure="rollback",
    )
    worker.start(made, fails)
    run = worker.enqueue(made)  # it times out, and its effect is undone before the next attempt
    assert began.wait(LONG_S)
    run.cancel()
    go.set()
    assert run.wait(LONG_S).state == "cancelled"
    assert worker.run(fails)[0].state == "failed"
    assert (asked, verdict_of(run), counted(worker)) == ([], None, {})


@pytest.mark.contract("A8")
def test_without_verify_a_run_with_nothing_to_clean_up_ends_at_once(
    worker: Workers, timing_out: MakeTimingOut
) -> None:
    """And nobody has judged it until a person does."""
    result, run = worker.run(timing_out(None))
    assert (result.state, verdict_of(run)) == ("timed_out", None)
    assert events_of(run, "cleanup.started") == []
    judged = worker.client.judge_timeout(run.id, "false_kill", actor="ada", reason="the report was there")
    assert run.info()["timeout_verdict"] == {"verdict": "false_kill", "by": "ada", "at": judged["at"]}
    assert counted(worker) == {"false_kill": 1}


@pytest.mark.contract("A8")
def test_a_second_attempt_that_succeeds_is_never_asked_about(
    worker: Workers, model: MakeProvider, clock: Clock
) -> None:
    """Its first one timed out."""
    asked: list[str] = []

    async def verify(ctx: ToolContext, run: Result) -> bool:
        asked.append(run.run_id)
        return True

    provider = model(lambda request: Reply("done") if begun_anew(request) else Stall())
    made = make_agent(provider, verify=verify, timeouts=limits())
    clock.stalls = True
    result, run = worker.run(made)
    assert (result.state, result.attempts, asked, verdict_of(run)) == ("succeeded", 2, [], None)


@pytest.mark.contract("A8")
def test_a_cleanup_worker_that_shuts_down_lets_the_next_one_ask_again(
    worker: Workers, timing_out: MakeTimingOut
) -> None:
    """Nothing was recorded, so it is asked once more; it counts once."""
    gate = Gate()

    async def verify(ctx: ToolContext, run: Result) -> bool:
        gate.asked.append(run.run_id)
        if len(gate.asked) == 1:
            gate.began.set()
            await asyncio.Event().wait()
        return False

    run, first = gate.enqueue(worker, timing_out(verify), grace_s=2.0)
    assert run.info()["activity"] == "verifying"
    worker.start_cleaner()
    first.drain()
    worker.pump.detach(first)
    assert run.wait(LONG_S).state == "timed_out"
    assert gate.asked == [run.id] * 2
    assert (verdict_of(run), counted(worker)) == ("true_kill", {"true_kill": 1})


@pytest.mark.contract("A8")
def test_a_person_who_judges_while_verify_is_asked_has_the_last_word(
    worker: Workers, timing_out: MakeTimingOut
) -> None:
    """What verify says after that is a conflict, and breaks nothing."""
    gate = Gate()
    run, _ = gate.enqueue(worker, timing_out(gate.verify))
    worker.client.judge_timeout(run.id, "false_kill", actor="ada", reason="seen downstream")
    gate.go.set()
    assert run.wait(LONG_S).state == "timed_out"
    assert run.info()["timeout_verdict"]["by"] == "ada"
    assert counted(worker) == {"false_kill": 1}
    with pytest.raises(Conflict, match="was judged false_kill by ada"):
        worker.client.judge_timeout(run.id, "true_kill", actor="bob")

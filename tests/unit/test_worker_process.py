"""Parts of a worker process alone: its ears, its heartbeat's log, its start, its intake."""

from __future__ import annotations

import logging
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Reject

from makegood.errors import NotAllowed, StoreUnreachable
from makegood.settings import Settings
from makegood.store import keys
from makegood.store.async_store import AsyncStore
from makegood.store.ops.numbers import WorkerFacts
from makegood.store.scripts import Op
from makegood.tasks.wakeup import CLEANUP_QUEUE, QUARANTINE_QUEUE, RUNS_QUEUE
from makegood.workers import boot as boot_module
from makegood.workers import intake
from makegood.workers.boot import Boot
from makegood.workers.duties.deaf import ROUNDS, Hearing, is_deaf, look
from makegood.workers.exits import GAVE_UP
from makegood.workers.heartbeat import Heartbeat
from makegood.workers.runtime import Runtime
from makegood.workers.server_check import Finding
from makegood.workers.wakes import Wakes


def test_a_process_whose_threads_all_wait_for_a_claim_is_not_deaf() -> None:
    """The store is slow: there are no attempts yet, but nothing could be heard either."""
    runtime = Runtime(Settings(), {}, slots=2)
    hearing = Hearing()
    with runtime.hearing(), runtime.hearing():
        assert not runtime.attempts
        for _ in range(2 * ROUNDS):
            hearing = look(hearing, received=runtime.received, in_queue=9, free_slots=runtime.free_slots)
        assert not is_deaf(hearing)
    for _ in range(2 * ROUNDS):
        hearing = look(hearing, received=runtime.received, in_queue=9, free_slots=runtime.free_slots)
    assert is_deaf(hearing)


@pytest.mark.contract("D8")
async def test_each_run_is_announced_on_the_queue_of_those_who_may_take_it(store_url: str) -> None:
    """Suspects of both kinds to quarantine, whoever lets go of them or finds them; who waits for nobody to none."""
    fields = {
        "suspect": ("state", "queued", "suspect", "1"),
        "other": ("state", "queued"),
        "cleans": ("state", "cleaning"),
        "cleans_alone": ("state", "cleaning", "cl_suspect", "1"),
        "ended": ("state", "succeeded"),
    }
    ids = {name: keys.new_run_id(7) for name in fields}
    suspect, other = ids["suspect"], ids["other"]
    store = AsyncStore(store_url)
    for name, record in fields.items():
        await store.do(Op(None, (), ("HSET", keys.run_key(ids[name]), *record), lambda reply: reply))
    for queue in (RUNS_QUEUE, CLEANUP_QUEUE, QUARANTINE_QUEUE):
        sent: list[tuple[str, str]] = []
        publisher: Any = SimpleNamespace(wake=lambda *wake, sent=sent: sent.append(wake))
        wakes = Wakes(store, publisher, {}, queue)
        await wakes.announce([*ids.values(), keys.new_run_id(7)])
        assert sent == [
            (suspect, QUARANTINE_QUEUE),
            (other, RUNS_QUEUE),
            (ids["cleans"], CLEANUP_QUEUE),
            (ids["cleans_alone"], QUARANTINE_QUEUE),
        ]
        await wakes.released(other)
        assert sent[-1] == (other, RUNS_QUEUE)
    await wakes.released(suspect)
    assert sent[-1] == (suspect, QUARANTINE_QUEUE)
    await store.aclose()


# --- heartbeat ------------------------------------------------------------------------------------------------------


def a_heartbeat(loop_answered_s: float = 0.0) -> Heartbeat:
    """One that was never started."""
    return Heartbeat(
        "redis://127.0.0.1:1",
        "worker",
        10,
        5,
        held=dict,
        loop_answered_s=lambda: loop_answered_s,
        on_beat=lambda _: None,
        facts=lambda: WorkerFacts("w", "runs", 1, 0.0, 0),
    )


def test_an_outage_of_the_store_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """However many beats it costs."""
    heart = a_heartbeat()
    with caplog.at_level(logging.WARNING, "makegood.worker"):
        for _ in range(2):
            for _ in range(20):
                heart._note_failure("The store cannot be reached.")
            heart._note_success()
            heart._note_success()
    words = [record.message.partition(" after ")[0] for record in caplog.records]
    assert words == ["heartbeat: The store cannot be reached.", "heartbeat: it works again"] * 2


def test_a_loop_that_is_stuck_ends_its_process_with_a_code_that_is_no_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor does not count it against the runs."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    a_heartbeat(loop_answered_s=-1e9)._check_loop()
    assert codes == [GAVE_UP]


# --- boot -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the server check finds; a process has agents, and ends by SystemExit."""
    findings: list[Finding] = []

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(boot_module, "load_agents", lambda spec: {})
    monkeypatch.setattr(boot_module, "check_server", lambda client: findings)
    monkeypatch.setattr(os, "_exit", end)
    return findings


def test_a_plain_worker_refuses_a_server_that_cannot_hold_runs(
    found: list[Finding], capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, before anything is connected."""
    found.append(Finding("error", "version", "The store is Redis 6.2; makegood needs 7.0."))
    with pytest.raises(SystemExit, match="2"):
        Boot(Settings()).start(["makegood.cleanup"], 1)
    assert capsys.readouterr().err == "The store is Redis 6.2; makegood needs 7.0.\n"


def test_a_plain_worker_logs_what_its_server_risks(
    found: list[Finding], caplog: pytest.LogCaptureFixture
) -> None:
    """And starts."""
    found += [Finding("warn", "durability", "Nothing is on disk."), Finding("ok", "clock", "Fine.")]
    with caplog.at_level(logging.WARNING, "makegood.worker"):
        Boot(Settings())._check_server()
    assert [record.message for record in caplog.records] == ["Nothing is on disk."]


class Stops:
    """Stands where a runtime stands, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def drain(self) -> None:
        self.told.append("drain")

    def dispose(self) -> None:
        self.told.append("dispose")


def test_the_signal_of_a_process_that_recycles_itself_is_not_the_first_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its runs keep their grace although somebody stops it as well; only a second one from outside ends it now."""
    limits: list[float] = []
    monkeypatch.setattr(boot_module, "end_after", limits.append)
    boot, stops = Boot(Settings(grace_s=30)), Stops()
    boot._runtime = stops  # type: ignore[assignment]
    monkeypatch.setattr(os, "kill", lambda *_: boot.drain())
    boot.recycle("deaf")
    boot.recycle("deaf")
    boot.drain()
    assert stops.told == ["drain", "drain"]
    assert limits == [30 + boot_module.LAST_RESORT_S]
    boot.drain()
    assert stops.told[-1] == "dispose"
    assert limits[1:] == [boot_module.LAST_RESORT_S]


# --- intake ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [NotAllowed("no"), StoreUnreachable("away")])
def test_a_request_that_the_store_does_not_take_goes_back_to_the_queue(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Celery would acknowledge the failed task, and the request would be lost."""
    from makegood.workers import app

    def refuse(*_: Any) -> None:
        raise error

    pauses: list[float] = []
    monkeypatch.setattr(app.boot, "runtime", object)
    monkeypatch.setattr(intake, "accept", refuse)
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(Reject) as rejected:
        app.run.run(agent="support", input="x")
    assert rejected.value.requeue
    assert pauses == [app.REQUEUE_PAUSE_S]

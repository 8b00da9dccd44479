"""The supervisor: what it reports is over, what it restarts, and what becomes of runs when it is gone itself."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime

from makegood.tasks.client import Run
from support.crash import PATIENCE_S, Field, alive
from support.engine import eventually

LONG_LEASE_S = 600
"""Whatever happens within a test happened without a lease."""

WITHIN_S = 10.0
"""Ten times the target of one second."""


def continued_at(run: Run, number: int = 1) -> float:
    """Wall clock of the nth continuation, once it has happened."""

    def look() -> float | None:
        found = [event for event in run.events() if event["type"] == "run.continued"]
        return None if len(found) < number else datetime.fromisoformat(found[number - 1]["at"]).timestamp()

    return eventually(look, "the run is continued", PATIENCE_S)


def test_a_killed_process_is_reported_and_its_run_goes_on_long_before_its_lease_ends(ground: Field) -> None:
    """SIGKILL in the middle of a tool: continued within a second (bound: ten) though the lease is ten minutes."""
    ground.plan.set("mid_tool", "kill")
    ground.worker(2, lease_s=LONG_LEASE_S).ready()
    run = ground.enqueue(["ticket"])
    ground.plan.wait_fired("mid_tool")
    took_s = continued_at(run) - ground.plan.fired_at("mid_tool")
    print(f"killed -> continued: {took_s * 1000:.0f} ms")
    assert took_s <= WITHIN_S
    ground.assert_clean()
    assert run.result().crashes == 1


def test_everything_a_process_had_started_is_dead_before_its_end_is_reported(ground: Field) -> None:
    """A tool in a process of its own, and what that one started, do not work on beside the run's continuation."""
    ground.worker(2, lease_s=LONG_LEASE_S).ready()
    run = ground.enqueue(["boxed"])
    first = boxed_pids(ground)
    os.kill(worker_of(first[0]), signal.SIGKILL)
    eventually(lambda: run.result().crashes, "the end is reported", PATIENCE_S)
    assert not [pid for pid in first if alive(pid)]
    again = eventually(lambda: (found := boxed_pids(ground)) != first and found, "it runs again", PATIENCE_S)
    assert not set(again) & set(first)
    ground.plan.release("boxed")
    ground.assert_clean()


def boxed_pids(field: Field) -> list[int]:
    """The tool's process and the one below it."""
    path = field.plan.folder / "boxed.pids"
    text = eventually(lambda: path.exists() and path.read_text(), "the tool runs", PATIENCE_S)
    return [int(pid) for pid in str(text).split()]


def worker_of(pid: int) -> int:
    """The process that started a process."""
    import psutil

    return int(psutil.Process(pid).ppid())


def test_a_frozen_process_is_killed_and_reaped_and_its_run_goes_on(ground: Field) -> None:
    """SIGSTOP: the supervisor misses its signs of life; that the supervisor killed it is no death of the run's."""
    ground.plan.set("mid_tool", "stop")
    ground.worker(2, lease_s=4).ready()
    run = ground.enqueue(["ticket"])
    pid = ground.plan.wait_fired("mid_tool")
    continued_at(run)
    assert not alive(pid)
    ground.assert_clean()
    assert run.result().crashes == 1


def test_when_the_supervisor_is_killed_its_processes_die_and_another_worker_goes_on_after_the_lease(
    ground: Field,
) -> None:
    """The host's view: nobody reports; the lease is what remains."""
    ground.plan.set("mid_tool", "hold")
    first = ground.worker(lease_s=2).ready()
    run = ground.enqueue(["ticket"])
    pid = ground.plan.wait_fired("mid_tool")
    ground.worker(lease_s=2).ready()
    killed_s = time.time()
    first.signal(signal.SIGKILL)
    eventually(lambda: not alive(pid), "the process dies with its supervisor", PATIENCE_S)
    took_s = continued_at(run) - killed_s
    print(f"supervisor killed -> continued: {took_s:.2f} s at a lease of 2 s")
    assert took_s <= 10 * (2 + 1)
    ground.assert_clean()
    assert run.result().crashes == 1


def test_a_thawed_process_doubles_nothing_and_stops_its_own_work(ground: Field) -> None:
    """Frozen inside a tool, its run taken over and ended elsewhere; thawed it makes no effect and leaves the run alone."""
    ground.plan.set("mid_tool", "stop")
    first = ground.process(lease_s=2).ready()
    run = ground.enqueue(["ticket"], ["ticket"])
    ground.plan.wait_fired("mid_tool")
    ground.process(lease_s=2).ready()
    ground.assert_clean()
    sent = len(ground.shop.requests)
    asked = len(ground.model.requests)
    first.signal(signal.SIGCONT)
    eventually(
        lambda: "executed by" in first.log, "the zombie learns that the run is not its own", PATIENCE_S
    )
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert (len(ground.shop.requests), len(ground.model.requests)) == (sent, asked)
    ground.assert_clean()
    assert run.result().attempts == 1


def test_a_thawed_process_begins_no_effect_that_had_not_begun(ground: Field) -> None:
    """Frozen right before the request: the lease is looked at before it is written, so not even the same key is sent."""
    ground.plan.set("tool_begun", "stop")
    first = ground.process(lease_s=2).ready()
    ground.enqueue(["late_ticket"])
    ground.plan.wait_fired("tool_begun")
    ground.process(lease_s=2).ready()
    ground.assert_clean()
    first.signal(signal.SIGCONT)
    eventually(
        lambda: "executed by" in first.log, "the zombie learns that the run is not its own", PATIENCE_S
    )
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert len(ground.shop.requests) == 1
    ground.assert_clean()


def test_a_process_tool_of_a_frozen_worker_sends_nothing_once_the_lease_is_over(ground: Field) -> None:
    """The child is not frozen with its worker, and asks after another worker did the run: it looks at the lease itself."""
    ground.plan.set("boxed_begun", "hold")
    first = ground.process(lease_s=2).ready()
    ground.enqueue(["boxed_ticket"])
    child = ground.plan.wait_fired("boxed_begun")
    assert worker_of(child) == first.pid
    first.signal(signal.SIGSTOP)
    ground.process(lease_s=2).ready()
    ground.assert_clean()
    ground.plan.release("boxed_begun")
    said = ground.plan.folder / f"{child}.said"
    eventually(lambda: said.exists() and said.read_text(), "the child was refused", PATIENCE_S)
    assert said.read_text().endswith("its worker's lease is over; nothing was sent.")
    first.signal(signal.SIGCONT)
    eventually(
        lambda: "executed by" in first.log, "the zombie learns that the run is not its own", PATIENCE_S
    )
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert len(ground.shop.requests) == 1
    ground.assert_clean()


def test_a_process_that_keeps_dying_is_started_again_with_growing_pauses(ground: Field) -> None:
    """The first restart is immediate, later ones wait longer; the worker stays."""
    worker = ground.worker().ready()
    for number in range(1, 5):
        pid = eventually(lambda: next(iter(worker.children()), None), "a process runs", PATIENCE_S)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda n=number: worker.log.count("it starts again in") == n, "it is noticed", PATIENCE_S)
    pauses = [line.rpartition("again in ")[2] for line in worker.log.splitlines() if "again in" in line]
    assert pauses == ["0 s.", "0.5 s.", "1 s.", "2 s."]
    ground.enqueue(["ticket"])
    ground.assert_clean()

"""The crash matrix: wherever a worker is when it is struck, its run goes on where it was and does nothing twice."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from makegood.tasks.client import Run
from support.crash import PATIENCE_S, Field, MakeField, Worker
from support.engine import eventually
from support.servers import ServerFactory, kill

POINTS = (
    "before_claim",
    "after_claim",
    "after_intent",
    "mid_tool",
    "before_outcome",
    "after_outcome",
    "before_end",
    "after_end",
)

LONG_GRACE_S, LONG_LEASE_S = 120, 600
"""Whatever happens within a test happened without them."""

TWO_STEPS = (["ticket", "look"], ["ticket"])


def assert_went_on(field: Field, run: Run) -> None:
    """The run succeeded in its first attempt, each effect happened once, each step was decided once."""
    field.assert_clean()
    assert run.result().attempts == 1
    assert field.requests_for(run) == Counter({0: 1, 1: 1, 2: 1})


@pytest.mark.contract("D2", "D7")
@pytest.mark.parametrize("point", POINTS)
def test_a_run_whose_process_is_killed_goes_on_in_the_other_process(ground: Field, point: str) -> None:
    """SIGKILL of the worker process, at every point."""
    ground.plan.set(point, "kill")
    ground.worker(2).ready()
    run = ground.enqueue(*TWO_STEPS)
    ground.plan.wait_fired(point)
    assert_went_on(ground, run)


@pytest.mark.parametrize("point", POINTS)
def test_a_run_whose_worker_is_told_to_stop_goes_on_in_the_next_worker(ground: Field, point: str) -> None:
    """SIGTERM of the worker while the run is at a point; another worker is there."""
    ground.plan.set(point, "hold")
    first = ground.worker().ready()
    run = ground.enqueue(*TWO_STEPS)
    ground.plan.wait_fired(point)
    second = ground.worker()
    first.signal(signal.SIGTERM)
    ground.plan.release(point)
    second.ready()
    assert first.wait() == 0
    assert_went_on(ground, run)
    assert run.result().crashes == 0


@pytest.mark.contract("F2")
@pytest.mark.parametrize("point", POINTS)
def test_a_run_whose_worker_is_told_twice_goes_on_although_the_first_process_never_let_go(
    ground: Field, point: str
) -> None:
    """SIGTERM, and again once the process has heard it: it ends long before its grace, wherever it hangs."""
    ground.plan.set(point, "hold")
    first = ground.worker(grace_s=LONG_GRACE_S).ready()
    run = ground.enqueue(*TWO_STEPS)
    ground.plan.wait_fired(point)
    tell_twice(first)
    assert first.wait(LONG_GRACE_S / 4) == 0
    ground.worker().ready()
    assert_went_on(ground, run)


@pytest.mark.contract("F2")
def test_a_process_without_a_supervisor_lets_go_of_its_run_when_it_is_told_twice(ground: Field) -> None:
    """Plain Celery: the body is cancelled, the run is given back in the store, no lease has to end."""
    ground.plan.set("mid_tool", "hold")
    first = ground.process(grace_s=LONG_GRACE_S, lease_s=LONG_LEASE_S).ready()
    run = ground.enqueue(*TWO_STEPS)
    ground.plan.wait_fired("mid_tool")
    tell_twice(first)
    assert first.wait(LONG_GRACE_S / 4) == 0
    ground.process().ready()
    assert_went_on(ground, run)
    assert run.result().crashes == 0


def test_what_a_process_does_is_shown_without_its_values(ground: Field) -> None:
    """SIGUSR1 shows stacks; Celery's handler would show local variables, prompts and keys among them. It goes on."""
    ground.plan.set("mid_tool", "hold")
    worker = ground.process().ready()
    run = ground.enqueue(*TWO_STEPS)
    pid = ground.plan.wait_fired("mid_tool")
    os.kill(pid, signal.SIGUSR1)
    eventually(lambda: "most recent call first" in worker.log, "the stacks are shown", PATIENCE_S)
    ground.plan.release("mid_tool")
    assert_went_on(ground, run)
    assert "LOCAL VARIABLES" not in worker.log


def tell_twice(worker: Worker) -> None:
    """Two signals, the second when the process that executes has taken in the first."""
    worker.signal(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in worker.log, "it has heard the first", PATIENCE_S)
    worker.signal(signal.SIGTERM)


@pytest.mark.parametrize("point", POINTS)
def test_a_run_goes_on_when_its_server_is_killed_and_comes_back(
    make_field: MakeField, fresh_server: ServerFactory, point: str
) -> None:
    """SIGKILL of store and broker, which are one server here, while the run is at a point; the data is on disk."""
    server = fresh_server()
    field = make_field(server.url)
    field.plan.set(point, "hold")
    field.worker().ready()
    run = field.enqueue(*TWO_STEPS)
    field.plan.wait_fired(point)
    kill(server)
    field.plan.release(point)
    server.start()
    assert_went_on(field, run)

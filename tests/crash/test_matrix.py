"""The matrix of STYLE 11: wherever a worker is when it is struck, its run goes on where it was and does nothing twice."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from makegood.tasks.client import Run
from support.crash import Field, MakeField
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
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_a_run_whose_worker_is_told_to_stop_goes_on_in_the_next_worker(
    ground: Field, point: str, times: int
) -> None:
    """SIGTERM of the worker, once or twice, while the run is at a point; another worker is there."""
    ground.plan.set(point, "hold")
    first = ground.worker().ready()
    run = ground.enqueue(*TWO_STEPS)
    ground.plan.wait_fired(point)
    second = ground.worker()
    for _ in range(times):
        first.signal(signal.SIGTERM)
    if times == 1:
        ground.plan.release(point)
    second.ready()
    ground.plan.release(point)
    assert first.wait() == 0
    assert_went_on(ground, run)
    assert run.result().crashes == 0


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

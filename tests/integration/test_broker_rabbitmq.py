"""RabbitMQ as the broker: the same runs, the same hand-over."""

from __future__ import annotations

import signal

import pytest

from support.crash import PATIENCE_S, Field, MakeField
from support.engine import eventually
from support.rabbit import Rabbit, rabbit

__all__ = ["rabbit"]


@pytest.fixture
def over_rabbit(make_field: MakeField, rabbit: Rabbit, store_url: str) -> Field:
    """A field whose messages go through RabbitMQ."""
    return make_field(store_url, rabbit.url)


def test_runs_are_announced_and_executed(over_rabbit: Field) -> None:
    """Before a worker has ever declared the queue, and after."""
    for _ in range(5):
        over_rabbit.enqueue(["ticket"], ["ticket"])
    over_rabbit.worker(2).ready()
    for _ in range(15):
        over_rabbit.enqueue(["ticket"], ["ticket"])
    over_rabbit.assert_clean()
    assert over_rabbit.client.publisher.queue_length() == 0


def test_a_stopped_worker_hands_its_run_over(over_rabbit: Field) -> None:
    """SIGTERM: the run stops at its step boundary and goes on in the next worker."""
    first = over_rabbit.worker().ready()
    run = over_rabbit.enqueue(["ticket", "wait_for_file"], ["ticket"])
    eventually(lambda: over_rabbit.plan.count("waiting") == 1, "it is in a call", PATIENCE_S)
    second = over_rabbit.worker()
    first.signal(signal.SIGTERM)
    (over_rabbit.plan.folder / "r0.0.1.open").touch()
    assert first.wait() == 0
    second.ready()
    over_rabbit.assert_clean()
    kinds = [event["type"] for event in run.events()]
    assert kinds.count("run.handed_over") == 1
    assert over_rabbit.plan.count("waiting") == 1


def test_a_killed_process_is_replaced_and_its_run_goes_on(over_rabbit: Field) -> None:
    """SIGKILL in the middle of a tool."""
    over_rabbit.plan.set("mid_tool", "kill")
    over_rabbit.worker(2).ready()
    over_rabbit.enqueue(["ticket"], ["ticket"])
    over_rabbit.assert_clean()

"""The message is only a wake-up: whatever happens to the broker, no run is lost or doubled and workers recover alone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
import redis

from makegood import BrokerUnreachable, Client
from makegood.tasks.client import Run
from support.crash import AGENT, PATIENCE_S, Field, MakeField, asks
from support.engine import eventually
from support.gate import Gate
from support.servers import ServerFactory, kill


def test_runs_whose_messages_were_lost_are_found(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """The broker is emptied while runs wait: the sweeper announces them again."""
    broker = fresh_server()
    field = make_field(store_url, broker.url)
    for _ in range(10):
        field.enqueue(["ticket"])
    with redis.Redis.from_url(broker.url) as raw:
        raw.flushall()
    field.worker().ready()
    field.assert_clean()


@pytest.mark.contract("D7")
def test_messages_that_come_more_than_once_or_late_change_nothing(ground: Field) -> None:
    """Five messages for each run, and more for runs that have ended."""
    runs = [ground.enqueue(["ticket"], ["ticket"]) for _ in range(5)]
    for run in runs * 4:
        ground.client.publisher.wake(run.id)
    ground.worker(2).ready()
    ground.assert_clean()
    for run in runs:
        ground.client.publisher.wake(run.id)
    eventually(lambda: ground.client.publisher.queue_length() == 0, "the late messages are taken", PATIENCE_S)
    ground.enqueue(["ticket"])
    ground.assert_clean()
    assert len(ground.shop.requests) == 11


def test_a_broker_that_is_killed_under_load_and_comes_back(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """SIGKILL while runs execute and wait. The enqueue says what happened; nothing has to be enqueued again."""
    broker = fresh_server()
    field = make_field(store_url, broker.url)
    field.worker(2, concurrency=3).ready()
    runs = [field.enqueue(["ticket", "wait_for_file"], ["ticket"]) for _ in range(12)]
    eventually(lambda: field.plan.count("waiting") >= 6, "the slots are full", PATIENCE_S)
    kill(broker)
    task = asks(["ticket"], name="unannounced")
    with pytest.raises(BrokerUnreachable, match=r"is stored, but the broker at .* cannot be reached") as told:
        field.client.enqueue(AGENT, task, key="unannounced")
    for run in runs:
        (field.plan.folder / f"{field.tasks[run.id]['name']}.0.1.open").touch()
    broker.start()
    stored = field.client.get(next(word for word in str(told.value).split() if "-01" in word))
    field.tasks[stored.id] = task
    field.runs.append(stored)
    field.assert_clean()
    run = field.enqueue(["ticket"])
    assert run.wait(PATIENCE_S).state == "succeeded"
    field.assert_clean()


def test_a_broker_that_is_killed_while_its_workers_are_idle(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """Killed and started again three times; after each time a message arrives."""
    broker = fresh_server()
    field = make_field(store_url, broker.url)
    field.worker().ready()
    for _ in range(3):
        kill(broker)
        broker.start()
        began_s = time.monotonic()
        assert field.enqueue(["ticket"]).wait(PATIENCE_S).state == "succeeded"
        print(f"broker restarted -> run ended: {time.monotonic() - began_s:.1f} s")
    field.assert_clean()


def test_a_broker_that_is_full_refuses_the_announcement_and_recovers(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """At maxmemory the run is stored, the error says so, and the worker executes it once there is room."""
    broker = fresh_server()
    field = make_field(store_url, broker.url)
    field.worker().ready()
    field.enqueue(["ticket"]).wait(PATIENCE_S)
    with redis.Redis.from_url(broker.url) as raw:
        raw.config_set("maxmemory", 1)
        with Client(store_url, broker_url=broker.url) as client:
            with pytest.raises(BrokerUnreachable, match="is stored, but"):
                client.enqueue(AGENT, asks(["ticket"], name="full"), key="full")
            raw.config_set("maxmemory", 0)
            run = client.enqueue(AGENT, asks(["ticket"], name="full"), key="full")
    assert run.wait(PATIENCE_S).state == "succeeded"
    field.tasks[run.id] = asks(["ticket"], name="full")
    field.assert_clean()


@pytest.fixture
def gate(fresh_server: ServerFactory) -> Iterator[Gate]:
    """A broker behind a gate."""
    made = Gate(fresh_server().url)
    yield made
    made.close()


def test_workers_whose_broker_is_half_open_go_on_when_it_is_back(
    make_field: MakeField, gate: Gate, store_url: str
) -> None:
    """Every connection stays open and nothing passes; then they are all reset and everything passes again."""
    field = make_field(store_url, gate.url)
    field.worker().ready()
    run = field.enqueue(["ticket", "wait_for_file"])
    eventually(lambda: field.plan.count("waiting") == 1, "it is in a call", PATIENCE_S)
    gate.freeze()
    (field.plan.folder / "r0.0.1.open").touch()
    assert run.wait(PATIENCE_S).state == "succeeded"
    gate.cut()
    gate.thaw()
    field.enqueue(["ticket"])
    field.assert_clean()


def test_a_process_whose_connections_to_the_broker_lead_nowhere_hears_again(
    make_field: MakeField, gate: Gate, store_url: str
) -> None:
    """The network forgets the connections and tells nobody. (With the real limits it takes 50 s, and a new process.)"""
    field = make_field(store_url, gate.target)
    sooner = {"tasks.wakeup.BROKER_SOCKET_S": 1, "workers.maintenance.REPUBLISH_S": 0.5}
    field.worker(broker_url=gate.url, constants=sooner).ready()
    assert field.enqueue(["ticket"]).wait(PATIENCE_S).state == "succeeded"
    gate.deafen()
    began_s = time.monotonic()
    assert field.enqueue(["ticket"]).wait(PATIENCE_S).state == "succeeded"
    print(f"deaf -> run ended: {time.monotonic() - began_s:.1f} s")
    field.assert_clean()


def test_connections_to_the_broker_that_are_reset_again_and_again(
    make_field: MakeField, gate: Gate, store_url: str
) -> None:
    """Ten resets while runs are enqueued and executed."""
    field = make_field(store_url, gate.url)
    field.worker(2).ready()
    for number in range(10):
        for part in range(2):
            task = asks(["ticket"], name=f"n{number}.{part}")
            run = enqueue_somehow(field, task, key=f"n{number}.{part}")
            field.tasks[run.id] = task
            field.runs.append(run)
        gate.cut()
    field.assert_clean()
    assert gate.cuts >= 10


def enqueue_somehow(field: Field, task: dict[str, object], key: str) -> Run:
    """What the error tells a producer to do: again, with the same key."""
    while True:
        try:
            return field.client.enqueue(AGENT, task, key=key)
        except BrokerUnreachable:
            time.sleep(0.05)


def test_a_stopped_worker_ends_although_its_broker_is_gone(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """SIGTERM while the broker is away: the run is handed over in the store, the worker ends within its grace."""
    broker = fresh_server()
    field = make_field(store_url, broker.url)
    worker = field.worker(grace_s=10).ready()
    run = field.enqueue(["ticket", "wait_for_file"], ["ticket"])
    eventually(lambda: field.plan.count("waiting") == 1, "it is in a call", PATIENCE_S)
    kill(broker)
    worker.signal(signal.SIGTERM)
    (field.plan.folder / "r0.0.1.open").touch()
    worker.wait()
    assert run.status() in ("queued", "succeeded")
    broker.start()
    field.worker().ready()
    field.assert_clean()

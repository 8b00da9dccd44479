"""Real worker processes under Celery, a real broker, and messages of all kinds."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from makegood import KeyConflict, UnknownAgent
from makegood.store.keys import new_run_id, prefix_of, run_key
from makegood.tasks.wakeup import CLEANUP_QUEUE, RUNS_QUEUE
from makegood.testing import Behaviour, Reply, RequestRecord, Signal, Stall, Status
from makegood.urls import broker_url_for
from support.celery_site import Site, answer, site_factory
from support.engine import LONG_S, calls, events_of, eventually


@pytest.fixture
def make_site() -> Iterator[Callable[[], Site]]:
    """A factory of sites of the test's own."""
    with site_factory() as make:
        yield make


@pytest.fixture(scope="module")
def shared_site() -> Iterator[Site]:
    """One site for the tests that leave its worker running."""
    with site_factory() as make:
        yield make()


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The shared site with a running worker."""
    if not any(process.poll() is None for process in shared_site.processes):
        shared_site.start()
    return shared_site


def stopping(run: Any) -> Any:
    """The run's info once it is stopping."""
    info = run.info()
    return info if info["state"] == "stopping" else None


def foreign_app(site: Site) -> Celery:
    """A Celery application that knows nothing of makegood."""
    app = Celery("foreign", broker=broker_url_for(site.server.url), set_as_current=False)
    app.conf.task_ignore_result = True
    return app


def test_a_run_goes_from_enqueue_through_celery_to_its_result(site: Site) -> None:
    """Store, queue, process, model and shop over real HTTP; nothing is left in the queue."""
    run = site.client.enqueue("support", "act:1 look:2", key="first")
    result = run.wait(LONG_S)
    assert result.state == "succeeded"
    assert result.output == 'done: {"did":"/act/1"} seen 2'
    assert (result.steps, result.calls, result.attempts, result.effects.committed) == (3, 2, 1, 1)
    assert site.shop.requests[-1].headers["x-run-id"] == run.id
    eventually(lambda: site.waiting == 0, "the queue is empty")


@pytest.mark.contract("D7")
def test_doubled_and_late_messages_change_nothing(site: Site) -> None:
    """The wake-up comes five times while the run works and again after its end."""
    gate = site.gate("/act/77")
    run = site.client.enqueue("support", "act:77")
    for _ in range(5):
        site.client.publisher.wake(run.id)
    eventually(lambda: run.info()["calls"] == 1, "the call has begun")
    gate.set()
    assert run.wait(LONG_S).calls == 1
    before = run.info()
    for _ in range(3):
        site.client.publisher.wake(run.id)
    site.client.publisher.wake(new_run_id())
    eventually(lambda: site.waiting == 0, "the late messages are taken")
    assert site.client.enqueue("support", "look:1").wait(LONG_S).state == "succeeded"
    assert run.info() == before
    assert [r.path for r in site.shop.requests].count("/act/77") == 1


def test_a_plain_celery_message_from_any_client_is_a_request(site: Site) -> None:
    """By key once, however often it is sent; without a key its task id is the key."""
    app = foreign_app(site)
    request = {"agent": "support", "input": {"text": "look:5"}}
    for _ in range(3):
        app.send_task("makegood.run", kwargs={**request, "key": "plain-1"}, queue=RUNS_QUEUE)
        app.send_task("makegood.run", kwargs=request, queue=RUNS_QUEUE, task_id="the-task-id")
    app.send_task("makegood.run", args=("support", "look:6", "plain-2"), queue=RUNS_QUEUE)
    eventually(lambda: site.waiting == 0, "the messages are taken")
    with pytest.raises(KeyConflict):
        site.client.enqueue("support", "other", key="plain-1")
    for key, value in (
        ("plain-1", {"text": "look:5"}),
        ("the-task-id", {"text": "look:5"}),
        ("plain-2", "look:6"),
    ):
        run = site.client.enqueue("support", value, key=key)
        assert run.wait(LONG_S).output == f"done: seen {'6' if key == 'plain-2' else '5'}"
        assert run.result().calls == 1


def test_plain_messages_that_are_no_good_request_are_set_aside_with_their_reason(site: Site) -> None:
    """Unknown agent, invalid input, another type, an unknown argument, an oversized one: one sentence each."""
    app = foreign_app(site)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"agent": "suport", "input": "x"}, "suport"),
        ({"agent": "orders", "input": {"order": "many"}}, "order"),
        ({"agent": "support", "input": 7}, "int"),
        ({"agent": "support", "input": "x", "sesion": "s"}, "sesion"),
        ({"agent": "support", "input": "x" * (1024 * 1024 + 1)}, "1 MiB"),
        ({"agent": None, "input": "x"}, "name"),
        ({}, "name"),
    ]
    before = len(site.aside())
    for kwargs, _ in wrong:
        app.send_task("makegood.run", kwargs=kwargs, queue=RUNS_QUEUE)
    eventually(lambda: len(site.aside()) == before + len(wrong), "all are set aside")
    reasons = [entry["reason"] for entry in site.aside()]
    for _, word in wrong:
        assert any(word in reason for reason in reasons), word
    with pytest.raises(UnknownAgent):
        site.client.enqueue("suport", "x")
    assert site.client.enqueue("support", "look:1").wait(LONG_S).state == "succeeded"


class Evil:
    """Would run a command if anybody unpickled it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_messages_that_are_no_tasks_are_set_aside_and_nothing_is_lost(site: Site, tmp_path: Path) -> None:
    """Pickled, foreign, undecodable, unknown: each is kept with a reason; runs between them all end."""
    app = foreign_app(site)
    before = len(site.aside())
    evil = pickle.dumps(((), {"agent": Evil(str(tmp_path / "owned"))}, {}))
    good = site.client.enqueue("support", "look:1")
    with app.connection_for_write() as connection, connection.channel() as channel:
        producer = connection.Producer(channel, serializer="json")

        def send(body: Any, **how: Any) -> None:
            producer.publish(body, exchange="", routing_key=RUNS_QUEUE, **how)

        task = {"task": "makegood.run", "id": "1", "lang": "py"}
        send(evil, content_type="application/x-python-serialize", content_encoding="binary", headers=task)
        send(b"{never json", content_type="application/json", content_encoding="utf-8", headers=task)
        send({"hello": "world"})
        send([[], {}, {}], headers={"task": "shop.unknown_task", "id": "2", "lang": "py"})
        send({"no": "list"}, headers=task)
        send([["one", "two", "three", "four", "five"], {}, {}], headers={**task, "id": "3"})
    other = site.client.enqueue("support", "look:2")
    assert good.wait(LONG_S).state == other.wait(LONG_S).state == "succeeded"
    eventually(lambda: len(site.aside()) >= before + 6, "all six are set aside")
    entries = site.aside()[: len(site.aside()) - before]
    reasons = " | ".join(entry["reason"] for entry in entries)
    for word in ("pickle", "not accepted", "no Celery task", "shop.unknown_task", "not valid"):
        assert word in reasons, (word, reasons)
    assert not (tmp_path / "owned").exists()
    eventually(lambda: site.waiting == 0, "nothing is left behind")
    assert len(entries) == 6


@pytest.mark.parametrize("raw", [b"\x00garbage", b"[]", b'{"body": 7}'])
def test_bytes_in_the_queue_that_are_no_message_do_not_stop_the_worker(site: Site, raw: bytes) -> None:
    """Somebody pushed garbage into the broker's list: it is set aside, runs go on, the process lives."""
    before = len(site.aside())
    site.client.store.redis.lpush(RUNS_QUEUE, raw)
    run = site.client.enqueue("support", "look:3")
    assert run.wait(LONG_S).state == "succeeded"
    assert site.processes[-1].poll() is None
    assert len(site.aside()) == before + 1


@pytest.mark.contract("F5")
def test_a_running_run_is_cancelled_and_its_request_closed(site: Site) -> None:
    """The shop sees the end of the connection, the journal says that it may have happened."""
    gate = site.gate("/act/88")
    run = site.client.enqueue("support", "act:88")
    request = eventually(
        lambda: [r for r in site.shop.requests if r.path == "/act/88"], "the call has begun"
    )[0]
    run.cancel()
    assert request.connection.peer_closed.wait(LONG_S)
    eventually(lambda: run.status() == "cleaning", "the run waits to be cleaned up")
    (row,) = run.journal()
    assert (row["status"], row["error"]["code"]) == ("unknown", "ABORTED")
    gate.set()


@pytest.mark.contract("C2")
def test_a_parked_run_goes_on_when_it_is_due(site: Site) -> None:
    """Retry-After of 100 s; back-dated, the sweeper finds it and another wake-up continues it."""
    waits: Iterator[Behaviour] = iter([Status(429, headers={"retry-after": "100"}), Reply("after the wait")])
    site.script = lambda request: next(waits)
    try:
        run = site.client.enqueue("support", "parked")
        eventually(lambda: run.status() == "parked", "the run is parked")
        site.client.store.redis.zadd(prefix_of(run.id) + "due", {run.id: 1})
        result = run.wait(LONG_S)
    finally:
        site.script = answer
    assert result.output == "after the wait"
    assert result.attempts == 1
    assert len(events_of(run, "run.continued")) == 1


@pytest.mark.contract("D7", "F4", "A1")
def test_sigterm_hands_a_run_over_at_its_step_boundary_and_a_second_process_goes_on(
    make_site: Callable[[], Site],
) -> None:
    """Same attempt, same history byte for byte, what was used of L3 stays used; the first process exits with 0."""
    site = make_site()
    first = site.start()
    gate = site.gate("/act/1")
    run = site.client.enqueue("support", "act:1 act:2")
    eventually(lambda: site.shop.requests, "the call has begun")
    first.send_signal(signal.SIGTERM)
    eventually(lambda: run.info()["worker"] and first.poll() is None, "it waits for the boundary")
    second, ready = site.launch()
    assert os.read(ready, 1)
    assert run.status() == "running"
    assert len(site.model.requests) == 1
    gate.set()
    assert first.wait(LONG_S) == 0
    result = run.wait(LONG_S)
    assert (result.state, result.attempts, result.steps, result.calls) == ("succeeded", 1, 3, 2)
    one, two, three = (list(request.messages) for request in site.model.requests)
    assert two[: len(one)] == one
    assert three[: len(two)] == two
    assert [r.path for r in site.shop.requests] == ["/act/1", "/act/2"]
    assert int(site.client.store.redis.hget(run_key(run.id), "l3_used_ms")) > 1000  # type: ignore[arg-type]
    assert len(events_of(run, "run.handed_over")) == len(events_of(run, "run.continued")) == 1
    assert second.poll() is None


@pytest.mark.contract("A6", "F8")
def test_two_hundred_runs_in_flight_go_on_while_as_many_sync_tools_hang_as_there_are_threads(
    make_site: Callable[[], Site],
) -> None:
    """The hung runs are stopping and say what they called; the process drains and ends; nothing is lost or forgotten."""
    site = make_site()
    threads = 4
    release = Signal()

    def script(request: RequestRecord) -> Behaviour:
        words = request.messages[1]["content"].split()
        if words[0] == "flight" and not request.results:
            landed = calls(("look", {"n": 1})) if "look" in words else Reply("landed")
            return landed if release.is_set() else Stall(release=release, reply=landed)
        return answer(request)

    site.script = script
    process = site.start(concurrency=250, sync_threads=threads, grace_s=10)
    flights = [
        site.client.enqueue("support", f"flight {n}" + (" look" if n % 4 == 0 else "")) for n in range(200)
    ]
    assert site.model.arrived(200).wait(2 * LONG_S)
    hung = [site.client.enqueue("support", f"hang:{n}") for n in range(threads)]
    for run in hung:
        info = eventually(partial(stopping, run), "the run is stopping")
        (row,) = run.journal()
        assert info["activity_detail"]["call"] == "hang"
        assert info["activity_detail"]["call_key"] == row["call_key"]
        assert row["status"] == "started"
        assert row["tool"] == "hang"
    late = site.client.enqueue("support", "look:9")
    release.set()
    landed = [run for n, run in enumerate(flights) if n % 4]
    assert {run.wait(2 * LONG_S).output for run in landed} == {"landed"}
    assert process.wait(2 * LONG_S) == 0, "it drained and ended by itself"
    site.start(concurrency=250)
    results = [run.wait(2 * LONG_S) for run in (*flights, late)]
    assert {result.state for result in results} == {"succeeded"}
    assert {result.attempts for result in results} == {1}
    site.start(queue=CLEANUP_QUEUE, concurrency=4)
    for run in hung:
        result = run.wait(LONG_S)
        assert result.state == "requires_manual_review", "their writes may have happened"
        assert result.effects.unknown == 1
        assert len(run.journal()) == 1
        assert run.journal()[0]["status"] == "unknown"

"""Nothing ends by time that was not watched (invariant 5): restarts, freezes and old dates take over nothing."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from typing import Any

import redis

from makegood.store.keys import prefix_of
from makegood.store.ops.runs import claim_run
from makegood.tasks.client import Run
from support.crash import AGENT, PATIENCE_S, Field, MakeField
from support.engine import eventually
from support.servers import ServerFactory, kill

LEASE_S = 2


def kinds(run: Run) -> list[str]:
    """The types of a run's events."""
    return [event["type"] for event in run.events()]


def event_at(run: Run, kind: str) -> float | None:
    """Wall clock of the first event of a type."""
    found: Any = [event["at"] for event in run.events() if event["type"] == kind]
    return datetime.fromisoformat(found[0]).timestamp() if found else None


def held_by_a_ghost(field: Field, run: Run) -> None:
    """The run is claimed by a worker that does not exist, whose lease ended an hour ago."""
    claim = field.client.store.do(
        claim_run(shard_prefix=prefix_of(run.id), nonce="ghost", worker="ghost", agents=[AGENT])
    )
    assert claim is not None
    with redis.Redis.from_url(field.url) as raw:
        raw.zadd(f"{prefix_of(run.id)}lease", {"ghost": 1})


def test_a_new_worker_watches_for_a_lease_before_it_takes_over(ground: Field) -> None:
    """A lease that ended long ago, and a run that expired long ago: nothing happens before the watch is over."""
    run, old = ground.enqueue(["ticket"]), ground.enqueue(["ticket"], expires_in=0.001)
    held_by_a_ghost(ground, run)
    began_s = time.time()
    ground.worker(lease_s=LEASE_S).ready()
    continued_s = eventually(lambda: event_at(run, "run.continued"), "the run is taken over", PATIENCE_S)
    ended_s = eventually(lambda: event_at(old, "run.ended"), "the other has expired", PATIENCE_S)
    assert continued_s - began_s >= LEASE_S
    assert ended_s - began_s >= LEASE_S
    ground.assert_clean(only=("succeeded", "expired"))


def test_a_server_that_was_away_longer_than_a_lease_takes_over_nothing(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """SIGKILL of the store, back after more than a lease; its leases are all over, its workers all live."""
    server = fresh_server()
    field = make_field(server.url, store_url)
    runs = waiting_runs(field)
    kill(server)
    time.sleep(LEASE_S * 1.5)  # as long as it is away
    server.start()
    assert_nothing_was_taken_over(field, runs)


def test_a_store_that_was_frozen_longer_than_a_lease_takes_over_nothing(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """SIGSTOP of the store: the same server, the same clock, and no renewal could be written."""
    server = fresh_server()
    field = make_field(server.url, store_url)
    runs = waiting_runs(field)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(LEASE_S * 1.5)  # as long as it is frozen
    os.kill(server.pid, signal.SIGCONT)
    assert_nothing_was_taken_over(field, runs)


def waiting_runs(field: Field) -> list[Run]:
    """Runs that are in a call, on two workers that have watched for a lease."""
    for worker in [field.worker(lease_s=LEASE_S), field.worker(lease_s=LEASE_S)]:
        worker.ready()
    field.enqueue(["look"]).wait(PATIENCE_S)
    time.sleep(LEASE_S * 1.2)  # a watch that is over is what could do harm
    runs = [field.enqueue(["wait_for_file"], ["ticket"], name=f"w{number}") for number in range(6)]
    eventually(lambda: field.plan.count("waiting") == 6, "all are in their call", PATIENCE_S)
    return runs


def assert_nothing_was_taken_over(field: Field, runs: list[Run]) -> None:
    """Each run goes on in the process that has it, and ends there."""
    eventually(
        lambda: [run.status() for run in runs] == ["running"] * len(runs), "the store answers", PATIENCE_S
    )
    time.sleep(LEASE_S * 1.5)  # a takeover would need this long
    for run in runs:
        (field.plan.folder / f"{field.tasks[run.id]['name']}.0.0.open").touch()
    field.assert_clean()
    assert field.plan.count("waiting") == len(runs)
    for run in runs:
        assert kinds(run).count("run.claimed") == 1

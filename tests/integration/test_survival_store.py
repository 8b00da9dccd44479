"""Store trouble: killed, frozen, full, failed over, cut off. No run is lost or doubled; workers recover by themselves."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from makegood import Client, MakegoodError, StoreUnreachable
from support.crash import AGENT, PATIENCE_S, Field, MakeField, asks
from support.engine import eventually
from support.gate import Gate
from support.redis7 import RedisServer, redis7
from support.servers import ServerFactory, kill

__all__ = ["redis7"]

LOAD = 50


def loaded(field: Field, runs: int = LOAD, *, processes: int = 2, **settings: Any) -> None:
    """Workers with many runs of three steps, a tenth of which have ended."""
    field.worker(processes, **settings).ready()
    for _ in range(runs):
        field.enqueue(["ticket"], ["ticket", "look"], ["ticket"])
    eventually(lambda: len(field.shop.tickets) >= runs // 10, "the load is under way", PATIENCE_S)


def test_a_store_that_is_killed_under_load_and_comes_back(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """SIGKILL twice; what was acknowledged is on its disk."""
    server = fresh_server()
    field = make_field(server.url, store_url)
    loaded(field)
    for _ in range(2):
        kill(server)
        with pytest.raises(StoreUnreachable, match="cannot be reached"):
            field.client.enqueue(AGENT, asks(["ticket"], name="away"))
        server.start()
        assert field.enqueue(["ticket"]).wait(PATIENCE_S).state == "succeeded"
    field.assert_clean()


def test_a_store_that_is_frozen_for_ten_seconds(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """SIGSTOP under load; leases last ten seconds, too."""
    server = fresh_server()
    field = make_field(server.url, store_url)
    loaded(field)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(10)  # as long as it is frozen
    os.kill(server.pid, signal.SIGCONT)
    field.assert_clean()
    assert all(run.result().crashes == 0 for run in field.runs)


def test_a_store_that_is_full_refuses_what_is_new_and_recovers(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """At maxmemory an enqueue says so; when there is room again everything goes on, without a restart."""
    server = fresh_server()
    field = make_field(server.url, store_url)
    loaded(field, lease_s=4)
    with redis.Redis.from_url(server.url) as raw:
        raw.config_set("maxmemory", 1)
        with (
            Client(server.url, broker_url=store_url) as client,
            pytest.raises(MakegoodError, match="is full"),
        ):
            client.enqueue(AGENT, asks(["ticket"], name="full"))
        time.sleep(6)  # as long as it is full: more than a lease
        raw.config_set("maxmemory", 0)
    field.enqueue(["ticket"])
    field.assert_clean()


def test_a_store_that_is_away_longer_than_a_worker_waits(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """The runs are given up by the process and found again by its heartbeat, under the claim that they have."""
    server = fresh_server()
    field = make_field(server.url, store_url)
    loaded(field, 20, processes=1, constants={"workers.runtime.STORE_PATIENCE_S": 2})
    kill(server)
    time.sleep(5)  # as long as it is away
    server.start()
    field.assert_clean()
    assert all(run.result().attempts == 1 for run in field.runs)


def test_a_worker_that_is_stopped_while_its_store_is_away_ends_within_its_grace(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """Nobody can be told; another worker goes on after the lease."""
    server = fresh_server()
    field = make_field(server.url, store_url)
    first = field.worker(lease_s=2, grace_s=3).ready()
    for number in range(4):
        field.enqueue(["ticket", "wait_for_file"], ["ticket"], name=f"n{number}")
    eventually(lambda: field.plan.count("waiting") == 4, "they are in their calls", PATIENCE_S)
    kill(server)
    began_s = time.monotonic()
    first.signal(signal.SIGTERM)
    first.wait()
    print(f"SIGTERM -> ended: {time.monotonic() - began_s:.1f} s at a grace of 3 s")
    server.start()
    for number in range(4):
        (field.plan.folder / f"n{number}.0.1.open").touch()
    field.worker(lease_s=2).ready()
    field.assert_clean()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is pointed at a server by its test."""
    made = Gate("")
    yield made
    made.close()


def test_a_store_that_fails_over_to_its_replica(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str, gate: Gate
) -> None:
    """A planned failover under load: the old server answers READONLY on the connections that are open."""
    old, new = fresh_server(unix_socket=False), fresh_server(unix_socket=False)
    gate.point_to(old.url)
    field = make_field(gate.url, store_url)
    with redis.Redis.from_url(old.url) as before, redis.Redis.from_url(new.url) as after:
        port = before.connection_pool.connection_kwargs["port"]
        before.config_set("repl-diskless-sync-delay", 0)
        after.execute_command("REPLICAOF", "127.0.0.1", str(port))
        eventually(
            lambda: after.info("replication")["master_link_status"] == "up", "it replicates", PATIENCE_S
        )
        loaded(field)
        before.execute_command(
            "FAILOVER", "TO", "127.0.0.1", str(after.connection_pool.connection_kwargs["port"])
        )
        eventually(lambda: after.info("replication")["role"] == "master", "it has failed over", PATIENCE_S)
        time.sleep(1)  # as long as the network needs to follow
        gate.point_to(new.url)
        commands = before.info("commandstats").get("cmdstat_script|load", {"calls": 0})["calls"]
    field.enqueue(["ticket"])
    field.assert_clean()
    print(f"scripts loaded into the old server: {commands}")


def replicating(primary: Any, replica: Any) -> None:
    """Make one server the replica of another, and wait until it has everything."""
    primary.config_set("repl-diskless-sync-delay", 0)
    replica.execute_command("REPLICAOF", "127.0.0.1", str(primary.connection_pool.connection_kwargs["port"]))
    eventually(lambda: replica.info("replication")["master_link_status"] == "up", "it replicates", PATIENCE_S)
    eventually(lambda: replica.dbsize() == primary.dbsize(), "it has everything", PATIENCE_S)


@pytest.mark.contract("D6", "D9")
def test_a_failover_that_loses_acknowledged_writes_doubles_no_effect(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str, gate: Gate
) -> None:
    """The replica that takes over has never heard of a claim; an effect was made under it meanwhile, and is asked about.

    Runs whose calls may be repeated under their key go on as if nothing had been.
    """
    old, new = fresh_server(unix_socket=False), fresh_server(unix_socket=False)
    gate.point_to(old.url)
    field = make_field(gate.url, store_url)
    field.plan.set("mid_tool", "hold", nth=1)
    charged = field.enqueue(["charge"], name="charged")
    with redis.Redis.from_url(old.url) as before, redis.Redis.from_url(new.url) as after:
        replicating(before, after)
        after.execute_command("REPLICAOF", "NO", "ONE")  # from here on it hears of nothing
        field.worker(2, cleaners=1).ready()
        field.plan.wait_fired("mid_tool")
        assert [row["status"] for row in charged.journal()] == ["started"]
        others = [field.enqueue(["late_ticket", "look"]) for _ in range(3)]
        assert {run.wait(PATIENCE_S).state for run in others} == {"succeeded"}
        kill(old)
        began_s = time.monotonic()
        gate.point_to(new.url)
    result = charged.wait(PATIENCE_S)
    print(f"failover -> with a person: {time.monotonic() - began_s:.1f} s")
    assert result.state == "requires_manual_review"
    assert (result.effects.unknown, result.effects.committed) == (1, 0)
    assert [ticket["title"] for ticket in field.shop.tickets].count("charged.0.0") == 1
    assert len(field.shop.keys("POST", "/tickets")) == 4
    assert field.requests_for(charged) == {0: 1}
    (row,) = charged.journal()
    assert (row["status"], row["idempotency_key"]) == ("unknown", field.shop.keys("POST", "/tickets")[0])
    (item,) = field.client.review(charged.id)["items"]
    assert (item["kind"], item["tool"]) == ("unknown", "charge")
    assert field.enqueue(["ticket"]).wait(PATIENCE_S).state == "succeeded"


def test_connections_to_the_store_that_are_cut_at_random(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str, gate: Gate
) -> None:
    """Thirty cuts at random moments, most of them with commands under way."""
    gate.point_to(fresh_server().url)
    field = make_field(gate.url, store_url)
    rnd = random.Random(7)
    over = threading.Event()

    def cutting() -> None:
        while not over.wait(rnd.uniform(0.0, 0.3)):
            gate.cut()

    cutter = threading.Thread(target=cutting)
    field.worker(2).ready()
    cutter.start()
    for number in range(LOAD):
        field.enqueue(["ticket"], ["ticket", "look"], ["ticket"], key=f"k{number}")
    eventually(lambda: gate.cuts >= 60, "there were many cuts", PATIENCE_S)
    over.set()
    cutter.join()
    field.assert_clean()


def test_a_claim_whose_reply_is_lost_is_executed_by_its_process(
    make_field: MakeField, fresh_server: ServerFactory, store_url: str
) -> None:
    """The store has given the run to the process, which never hears of it: the heartbeat finds the run."""
    server = fresh_server()
    field = make_field(server.url, store_url)
    field.process(lease_s=6).ready()
    from makegood.store.keys import prefix_of
    from makegood.store.ops.runs import claim_run

    known = field.enqueue(["ticket"])
    known.wait(PATIENCE_S)
    worker = next(event["data"]["worker"] for event in known.events() if event["type"] == "run.claimed")
    task = asks(["ticket"], name="unheard")
    run_id = stored_only(field, task)
    claim = field.client.store.do(
        claim_run(
            shard_prefix=prefix_of(run_id), nonce="unheard", worker=worker, agents=[AGENT], lease_ms=600_000
        )
    )
    assert claim is not None
    field.assert_clean()
    kinds = [event["type"] for event in field.client.get(run_id).events()]
    assert kinds.count("run.claimed") == 1
    assert "run.continued" not in kinds


def stored_only(field: Field, task: dict[str, object]) -> str:
    """A run that is recorded and not announced."""
    from makegood.tasks.queries import checked_request, enqueue

    made = field.client.run_flow(enqueue(checked_request(AGENT, task, None, None)))
    field.tasks[made.run_id] = task
    return made.run_id


def test_redis_seven_as_store_and_broker(make_field: MakeField, redis7: RedisServer) -> None:
    """Debian's Redis: the same runs, a killed process, a hand-over."""
    assert redis7.version.startswith("7.")
    field = make_field(redis7.url)
    field.plan.set("mid_tool", "kill")
    first = field.worker(2).ready()
    for _ in range(10):
        field.enqueue(["ticket"], ["ticket", "look", "boxed"][:2])
    field.plan.wait_fired("mid_tool")
    second = field.worker()
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    second.ready()
    field.assert_clean()

"""The two doors to the store when the server forgets scripts, is full, or is not there (invariants 6, 7)."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from makegood.errors import MakegoodError, NotAllowed, StoreUnreachable
from makegood.store import keys
from makegood.store.async_store import AsyncStore
from makegood.store.connect import open_sync
from makegood.store.ops import breakers, catalog, reads, runs
from makegood.store.ops.blobs import spill
from makegood.store.scripts import Op
from makegood.store.states import State
from makegood.store.sync_store import SyncStore
from support.servers import ServerFactory, free_port
from support.store import AGENT, SHARD, World, open_door, real_world
from support.store_ops import end, intent, note, outcome, release

FLUSH: Op[Any] = Op(None, (), ("SCRIPT", "FLUSH", "SYNC"), lambda reply: None)


# --- the server forgets its scripts ---------------------------------------------------------------------------------


def test_scripts_forgotten_within_a_pipeline_are_loaded_again(real: World) -> None:
    """All operations are done, in order, each once; replies stand in their places."""
    held = real.running()
    ops: list[Any] = [
        intent(held, "1", rows=[("a", "started"), ("b", "planned")]),
        note(held, "2"),
        FLUSH,
        note(held, "3"),
        outcome(held, "4", "a"),
        outcome(held, "5", "b", ends=1, status="aborted_before_dispatch"),
        reads.read_state(held.run_id),
        intent(held, "6", step=2, rows=[]),
        outcome(held, "7", ends=2),
        end(held, "8"),
        reads.read_state(held.run_id),
    ]
    answers = real.door.do_all(ops)
    assert (answers[6], answers[9], answers[10]) == ("running", State.SUCCEEDED, "succeeded")
    assert real.events(held.run_id)[3:] == [
        "step.started", "llm.retry", "llm.retry", "tool.ended", "tool.ended", "step.started", "attempt.ended",
        "run.ended",
    ]  # fmt: skip
    assert real.number(held.run_id, "version") == 3
    assert real.counters()[f"runs_finished_total|{AGENT}|succeeded"] == 1


def test_a_server_that_never_saw_a_script_is_served(real: World) -> None:
    """Right after its start, by both doors, also for the first single operation."""
    real.raw.script_flush()
    run_id = real.enqueue()
    real.raw.script_flush()
    assert real.claim().run_id == run_id


def test_an_unknown_script_is_not_overtaken_by_known_ones(real: World) -> None:
    """A body goes ahead of the run that refers to it, also where the server knows only how to record the run."""
    real.raw.script_flush()
    real.enqueue()
    run_id = keys.new_run_id(SHARD)
    stored, digests, ahead = spill(run_id, b"x" * 100_000)
    new = {"agent": AGENT, "session": None, "key": None, "input_digest": "d", "expires_in_ms": None}
    op = runs.enqueue_run(run_id=run_id, body=stored, blob_digests=digests, **new)  # type: ignore[arg-type]
    real.door.do_all([*ahead, op])
    assert real.raw.ttl(keys.blob_key(run_id, digests[0])) == -1


# --- bad input of one does not harm the others ----------------------------------------------------------------------


def test_text_that_has_no_utf8_form_is_stored_escaped(world: World) -> None:
    """An error message of the operating system may hold a lone surrogate."""
    held, other = world.running(agent="one"), world.running(agent="two")
    bad = end(held, world.op(), State.FAILED, code="BUG", message="no such file: \udcff")
    answers = world.door.do_all([bad, end(other, world.op())])
    assert answers == [State.FAILED, State.SUCCEEDED]
    assert world.record(held.run_id)["error_message"] == "no such file: \\udcff"


async def test_an_operation_that_cannot_be_sent_fails_and_the_store_goes_on(store_url: str) -> None:
    """The error reaches whoever waits; the next operation is served."""
    store = AsyncStore(store_url)
    with pytest.raises(TypeError):
        await store.do(Op(None, (), ("GET", None), lambda reply: reply))  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        await store.do(Op(None, (), ("PING",), lambda reply: 1 // 0))
    assert await store.do(reads.ping())
    await store.aclose()


def test_a_wrong_command_is_refused_with_a_sentence(real: World) -> None:
    """And the others of its pipeline are executed."""
    run_id = real.enqueue()
    wrong: Op[Any] = Op(None, (), ("HGET", run_id), lambda reply: reply)
    with pytest.raises(MakegoodError, match=r"refused the operation: .*wrong number of arguments"):
        real.door.do_all([wrong, runs.cancel_run(run_id=run_id, cause="user", actor="a", reason="")])
    assert real.state(run_id) == State.CANCELLED


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    "lacks",
    [("-eval", "-evalsha", "-script"), ("-time", "-xadd"), ("-hset",)],
    ids=["scripts", "a command", "a command within a script"],
)
def test_what_a_user_may_not_do_is_said_as_such(kind: str, lacks: tuple[str, ...], store_url: str) -> None:
    """Through both doors, for one operation and in a pipeline; other users are not concerned."""
    world = real_world("sync", store_url)
    world.raw.execute_command("ACL", "SETUSER", "less", "on", ">s3cret", "~*", "+@all", *lacks)
    door = open_door(kind, store_url.replace("unix://", "unix://less@") + "?password=s3cret")
    held = world.running()
    cancel = runs.cancel_run(run_id=held.run_id, cause="user", actor="a", reason="")
    try:
        for ops in ([cancel], [breakers.server_time(), cancel]):
            with pytest.raises(
                NotAllowed, match=r"does not allow the operation to this user \(.*(permission|can't run)"
            ) as error:
                door.do_all(ops)
            assert "s3cret" not in str(error.value)
    finally:
        door.close()
        world.raw.execute_command("ACL", "DELUSER", "less")
        world.door.close()
        world.raw.close()


# --- the server is not there, or full -------------------------------------------------------------------------------


async def test_a_server_that_is_away_is_named_without_its_password() -> None:
    """One sentence that says what to do, through both doors."""
    url = f"redis://ada:hunter2@127.0.0.1:{free_port()}/0"
    sync = SyncStore(url, client=open_sync(url, 0))
    store = AsyncStore(url, patience_s=0.1)
    with pytest.raises(StoreUnreachable) as first:
        sync.do(reads.ping())
    with pytest.raises(StoreUnreachable) as second:
        await store.do(reads.ping())
    for error in (str(first.value), str(second.value)):
        assert "hunter2" not in error
        assert "redis://ada:***@127.0.0.1" in error
        assert "MAKEGOOD_REDIS_URL" in error
    sync.close()
    await store.aclose()


def test_a_url_of_something_else_is_refused_with_a_sentence() -> None:
    """Before anything connects, and without its password."""
    for make in (SyncStore, AsyncStore):
        with pytest.raises(MakegoodError, match="is no URL of a Redis or Valkey server") as error:
            make("http://ada:hunter2@host/0")
        assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_password_is_used_and_a_wrong_one_is_said_so(fresh_server: ServerFactory, kind: str) -> None:
    """At once, and without showing it; another database of the server can be chosen."""
    server = fresh_server(unix_socket=False)
    with redis.Redis.from_url(server.url) as raw:
        raw.config_set("requirepass", "hunter2")
    place = server.url.removeprefix("redis://").removesuffix("/0")
    door = open_door(kind, f"redis://:hunter2@{place}/3")
    door.do(catalog.publish_agents({"a": {}}))
    door.close()
    with redis.Redis.from_url(f"redis://:hunter2@{place}/3") as raw:
        assert raw.exists(keys.CATALOG)
    for url in (f"redis://:wr0ng@{place}/0", f"redis://:hunter2@{place}/99"):
        door = open_door(kind, url)
        with pytest.raises(MakegoodError, match=r"password|out of range") as error:
            door.do(reads.ping())
        door.close()
        assert "wr0ng" not in str(error.value)
        assert "hunter2" not in str(error.value)


async def test_a_server_that_comes_back_is_used_again(fresh_server: ServerFactory) -> None:
    """Nothing is remembered of the failure: the same doors work again, with the data of before."""
    server = fresh_server()
    world = real_world("sync", server.url)
    held = world.running()
    store = AsyncStore(server.url, patience_s=0.1)
    assert await store.do(reads.ping())
    server.stop()
    with pytest.raises(StoreUnreachable):
        await store.do(note(held, "n1"))
    server.start()
    await store.do(note(held, "n2"))
    assert world.events(held.run_id).count("llm.retry") == 1
    await store.aclose()
    world.door.close()
    world.raw.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_full_server_refuses_clearly_and_lets_runs_end(fresh_server: ServerFactory, kind: str) -> None:
    """At maxmemory nothing half is written, earlier data is whole; runs can still be let go of and end."""
    server = fresh_server(maxmemory=8 * 1024 * 1024)
    world = real_world(kind, server.url)
    held, waiting, leaving = world.running(), world.enqueue(agent="waiting"), world.running(agent="leaving")
    fill(world.raw)
    before = world.dump_of(held.run_id)
    for op in (intent(held, "i"), note(held, "n")):
        with pytest.raises(MakegoodError, match=r"is full \(its maxmemory is reached\).*raise maxmemory"):
            world.do(op)
        assert world.dump_of(held.run_id) == before
    with pytest.raises(MakegoodError, match="is full"):
        world.enqueue()
    assert world.do(release(leaving, "r", max_continuations=9)) == State.QUEUED
    assert world.do(end(held, "e", State.FAILED)) == State.FAILED
    assert world.do(runs.cancel_run(run_id=waiting, cause="user", actor="a", reason="")).accepted
    assert world.state(held.run_id) == State.FAILED
    assert world.counters()[f"runs_finished_total|{AGENT}|failed"] == 1
    world.door.close()
    world.raw.close()


def fill(raw: redis.Redis) -> None:
    """Write until the server takes no more."""
    for size in (16_384, 1):
        full, number = False, 0
        while not full:
            number += 1
            try:
                raw.set(f"filler:{size}:{number}", b"x" * size)
            except redis.exceptions.OutOfMemoryError:
                full = True

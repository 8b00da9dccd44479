"""The two doors to the store when the server forgets scripts, loses replies, is full, or is not there (invariants 6, 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from makegood.errors import MakegoodError, StoreUnreachable
from makegood.store import keys
from makegood.store.async_store import AsyncStore
from makegood.store.connect import open_sync
from makegood.store.ops import breakers, catalog, reads, runs
from makegood.store.ops.args import NewEvent
from makegood.store.ops.blobs import spill
from makegood.store.scripts import Op
from makegood.store.states import State
from makegood.store.sync_store import SyncStore
from support.proxy import LossyProxy, lossy
from support.servers import ServerFactory, free_port
from support.store import AGENT, PREFIX, SHARD, World, open_door, real_world
from support.store_ops import FENCED, Fenced, end, intent, note, outcome, plain, release

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
        "step.started", "llm.retry", "llm.retry", "tool.ended", "tool.ended", "step.started", "run.ended",
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


# --- replies get lost -----------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(store_url: str) -> Iterator[LossyProxy]:
    """A proxy in front of the session's Valkey."""
    with lossy(store_url) as made:
        yield made


def shape_after(
    kind: str, url: str, store_url: str, fenced: Fenced, proxy: LossyProxy | None
) -> tuple[Any, list[str]]:
    """Answer of an operation and what it left, with its reply lost when there is a proxy."""
    world = real_world(kind, store_url)
    world.raw.flushdb()
    held = fenced.ready(world)
    door = open_door(kind, url)
    door.do(reads.ping())
    if proxy is not None:
        proxy.cut(b"EVALSHA")
    answer = door.do(fenced.make(held, "op-x"))
    left = world.shape()
    door.close()
    world.door.close()
    world.raw.close()
    return plain(answer), left


@pytest.mark.contract("D2")
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("fenced", FENCED, ids=str)
def test_a_lost_reply_leaves_what_a_heard_one_leaves(
    proxy: LossyProxy, store_url: str, kind: str, fenced: Fenced
) -> None:
    """The server executed, the connection broke: the repetition answers, and not one byte is different."""
    heard = shape_after(kind, store_url, store_url, fenced, None)
    assert shape_after(kind, proxy.url, store_url, fenced, proxy) == heard
    assert proxy.lost == 1


def others(world: World) -> dict[str, Op[Any]]:
    """Operations without a fence, each on a world of its own."""
    waiting, told = world.enqueue(key="known"), world.running(agent="told")
    parked = world.running(agent="parked")
    world.do(release(parked, "p", "parked", due_in_ms=0))
    new = {"agent": AGENT, "session": None, "body": b"1", "input_digest": "digest-a", "expires_in_ms": None}
    return {
        "enqueue": runs.enqueue_run(run_id=keys.new_run_id(SHARD), key=None, **new),  # type: ignore[arg-type]
        "enqueue again": runs.enqueue_run(run_id=keys.new_run_id(SHARD), key="known", **new),  # type: ignore[arg-type]
        "claim": runs.claim_run(shard_prefix=PREFIX, nonce="nonce-9", worker="w", agents=[AGENT]),
        "cancel waiting": runs.cancel_run(run_id=waiting, cause="user", actor="ada", reason=""),
        "cancel running": runs.cancel_run(run_id=told.run_id, cause="user", actor="ada", reason=""),
        "breaker failure": breakers.report(
            "b", "owner", "failure", failures=3, window_ms=1000, open_for_ms=1000
        ),
        "publish": catalog.publish_agents({AGENT: {"name": AGENT}}),
        "piece": spill(waiting, b"x" * 100_000)[2][0],
    }


OTHERS = (
    "enqueue", "enqueue again", "claim", "cancel waiting", "cancel running", "breaker failure", "publish", "piece",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_survive_a_lost_reply_too(
    proxy: LossyProxy, store_url: str, kind: str, name: str
) -> None:
    """Done once, and answered as if nothing had happened."""
    left = []
    for url in (store_url, proxy.url):
        world = real_world(kind, store_url)
        world.raw.flushdb()
        op = others(world)[name]
        door = open_door(kind, url)
        door.do(reads.ping())
        if url == proxy.url:
            proxy.cut(b"HSET" if name == "publish" else b"EVALSHA")
        answer = door.do(op)
        accepted = (
            getattr(answer, "created", None),
            getattr(answer, "accepted", None),
            getattr(answer, "fence", None),
        )
        left.append((accepted, world.shape()))
        for each in (door, world.door, world.raw):
            each.close()
    assert left[0] == left[1]
    assert proxy.lost == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("letting_through", [0, 30, 60, 200])
def test_a_pipeline_cut_anywhere_goes_on_in_order(
    proxy: LossyProxy, store_url: str, kind: str, letting_through: int
) -> None:
    """Some replies arrived, some did not: everything is done once, in order, and everybody gets an answer."""
    world = real_world(kind, store_url)
    held = world.running()
    door = open_door(kind, proxy.url)
    door.do(reads.ping())
    world.do(note(held, "warm"))
    ops: list[Any] = []
    for step in range(1, 9):
        ops.append(intent(held, f"i{step}", step=step, rows=[(f"r{step}", "started")]))
        ops.append(note(held, f"n{step}", new_events=[NewEvent("llm.retry", {}, step)]))
        ops.append(
            outcome(held, f"o{step}", f"r{step}", ends=step, new_events=[NewEvent("step.ended", {}, step)])
        )
    proxy.cut(b"i3", letting_through=letting_through)
    proxy.cut(b"i4", letting_through=letting_through)
    answers = door.do_all(ops)
    assert proxy.lost == 2
    assert len(answers) == len(ops)
    page = world.do(reads.read_events(held.run_id, "0"))
    told = [(event["type"], event["step"]) for event in page.events][4:]
    assert told == [
        (kind, step) for step in range(1, 9) for kind in ("step.started", "llm.retry", "step.ended")
    ]
    assert (world.number(held.run_id, "steps"), world.number(held.run_id, "fx_committed")) == (8, 8)
    assert world.samples("tool:mail") == 8
    for each in (door, world.door, world.raw):
        each.close()


async def test_operations_of_many_turns_keep_their_order_over_a_reconnect(
    proxy: LossyProxy, store_url: str
) -> None:
    """Some are on their way and some still wait when the connection breaks: what was sent first is done first."""
    world = real_world("sync", store_url)
    held = world.running()
    store = AsyncStore(proxy.url)
    await store.do(reads.ping())
    proxy.cut(b"n5")
    count = 200
    replies = []
    for number in range(count):
        replies.append(store.send(note(held, f"n{number}", new_events=[NewEvent("llm.retry", {}, number)])))
        if number % 20 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*replies)
    page = world.do(reads.read_events(held.run_id, "0"))
    assert [event["step"] for event in page.events if event["type"] == "llm.retry"] == list(range(count))
    assert proxy.lost == 1
    await store.aclose()
    world.door.close()
    world.raw.close()


async def test_a_caller_that_gives_up_does_not_take_its_operation_back(store_url: str) -> None:
    """It may be on its way; what others sent is not touched."""
    world = real_world("sync", store_url)
    held = world.running()
    store = AsyncStore(store_url)
    mine, theirs = (asyncio.ensure_future(store.do(note(held, name))) for name in ("mine", "theirs"))
    await asyncio.sleep(0)
    mine.cancel()
    assert (await theirs).cancel is None
    with pytest.raises(asyncio.CancelledError):
        await mine
    await store.aclose()
    assert world.events(held.run_id).count("llm.retry") == 2
    world.door.close()
    world.raw.close()


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
    """At maxmemory nothing half is written, earlier data is whole, and what frees memory still works."""
    server = fresh_server(maxmemory=8 * 1024 * 1024)
    world = real_world(kind, server.url)
    held, waiting = world.running(), world.enqueue(agent="waiting")
    fill(world.raw)
    before = world.dump_of(held.run_id)
    for op in (intent(held, "i"), note(held, "n"), release(held, "r", max_continuations=9)):
        with pytest.raises(MakegoodError, match=r"is full \(its maxmemory is reached\).*raise maxmemory"):
            world.do(op)
        assert world.dump_of(held.run_id) == before
    with pytest.raises(MakegoodError, match="is full"):
        world.enqueue()
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

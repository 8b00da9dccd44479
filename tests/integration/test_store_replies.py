"""Replies that get lost: the server has executed, the client sends again, and everything is done once (invariant 6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from makegood.errors import StoreUnreachable
from makegood.store import keys
from makegood.store.async_store import AsyncStore
from makegood.store.ops import breakers, catalog, reads, runs
from makegood.store.ops.args import NewEvent
from makegood.store.ops.blobs import spill
from makegood.store.scripts import Op
from support.proxy import LossyProxy, lossy
from support.servers import ServerFactory, kill
from support.store import AGENT, PREFIX, SHARD, World, open_door, real_world
from support.store_ops import FENCED, Fenced, intent, note, outcome, plain, release


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


async def test_a_command_at_which_the_server_always_hangs_up_fails_in_the_end(
    proxy: LossyProxy, store_url: str
) -> None:
    """After the patience of the store, with a sentence; the commands behind it are served."""
    store = AsyncStore(proxy.url, patience_s=0.3)
    for _ in range(1000):
        proxy.cut(b"poison")
    with pytest.raises(StoreUnreachable, match="closed"):
        await store.do(Op(None, (), ("ECHO", "poison"), lambda reply: reply))
    proxy.cuts.clear()
    assert await store.do(reads.ping())
    await store.aclose()


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


@pytest.mark.contract("D2")
async def test_a_server_killed_in_the_middle_of_a_pipeline_loses_nothing(fresh_server: ServerFactory) -> None:
    """Killed and brought back: what was acknowledged is there, the rest is sent again, all of it once and in order."""
    server = fresh_server()
    world = real_world("sync", server.url)
    held = world.running()
    store = AsyncStore(server.url, patience_s=30)
    replies = [
        store.send(note(held, f"n{number}", new_events=[NewEvent("llm.retry", {}, number)]))
        for number in range(400)
    ]
    await replies[20]
    acknowledged = sum(reply.done() for reply in replies)
    await asyncio.to_thread(kill, server)
    await asyncio.to_thread(server.start)
    page = world.do(reads.read_events(held.run_id, "0"))
    assert len(page.events) - 3 >= acknowledged
    await asyncio.gather(*replies)
    page = world.do(reads.read_events(held.run_id, "0"))
    assert [event["step"] for event in page.events[3:]] == list(range(400))
    await store.aclose()
    world.door.close()
    world.raw.close()

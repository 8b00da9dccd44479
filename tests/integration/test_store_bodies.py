"""Large bodies, events, messages set aside, and measured durations (CONTRACT A7, invariant 7)."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest

from makegood.store import keys
from makegood.store.ops import catalog, reads
from makegood.store.ops.args import NewEvent, Sample
from makegood.store.ops.blobs import ORPHAN_S, PIECE_BYTES, read_blob, reference, spill
from makegood.store.ops.runs import enqueue_run
from makegood.store.ops.steps import Ack, RowOutcome
from makegood.store.scripts import Op
from makegood.tasks.latencies import DAY_MS, LatencyBoard, sample, spread_of
from support.store import AGENT, PREFIX, SHARD, World
from support.store_ops import Held, end, intent, note, outcome

BIG = orjson.dumps("ä€😀\0" * 60_000)


# --- bodies ---------------------------------------------------------------------------------------------------------


def test_a_small_body_stands_where_it_is() -> None:
    """Up to 64 KiB nothing goes ahead."""
    assert spill("r", b"x" * PIECE_BYTES) == (b"x" * PIECE_BYTES, [], [])
    assert len(spill(keys.new_run_id(), b"x" * (PIECE_BYTES + 1))[2]) == 2
    assert reference(b'"@blob:no"') is None


def test_a_large_body_goes_ahead_in_pieces_and_is_kept_when_something_refers_to_it(world: World) -> None:
    """No single write above 64 KiB; an orphan goes by itself; what was read is what was written."""
    held = world.running()
    stored, digests, ahead = spill(held.run_id, BIG)
    assert len(BIG) > 8 * PIECE_BYTES
    assert max(len(arg) for op in ahead for arg in op.args if isinstance(arg, bytes)) <= PIECE_BYTES
    assert len(stored) < 100
    world.door.do_all(ahead)
    name = keys.blob_key(held.run_id, digests[0])
    assert 0 < world.raw.ttl(name) <= ORPHAN_S
    world.do(outcome_with(world, held, stored, digests))
    assert world.raw.ttl(name) == -1
    assert reference(stored) == digests[0]
    assert world.do(read_blob(held.run_id, digests[0])) == BIG


def outcome_with(world: World, held: Held, stored: bytes, digests: list[str]) -> Op[Ack]:
    """An outcome whose body went ahead."""
    world.do(intent(held, world.op()))
    bodies = [RowOutcome("a", "succeeded", stored, 1, True)]
    return outcome(held, world.op(), outcomes=bodies, blob_digests=digests)


@pytest.mark.parametrize("refers", ["enqueue", "intent", "outcome", "end"])
def test_every_operation_that_refers_to_a_body_keeps_it(world: World, refers: str) -> None:
    """Input, decision, response and output."""
    held = world.running()
    if refers == "enqueue":
        run_id = keys.new_run_id(SHARD)
        stored, digests, ahead = spill(run_id, BIG)
        given = {"agent": AGENT, "session": None, "key": None, "input_digest": "d", "expires_in_ms": None}
        op = enqueue_run(run_id=run_id, body=stored, blob_digests=digests, **given)  # type: ignore[arg-type]
    else:
        run_id = held.run_id
        stored, digests, ahead = spill(run_id, BIG)
        makes: dict[str, Callable[[], Op[Any]]] = {
            "intent": lambda: intent(held, "x", decision=stored, blob_digests=digests),
            "outcome": lambda: outcome_with(world, held, stored, digests),
            "end": lambda: end(held, "x", output=stored, blob_digests=digests),
        }
        op = makes[refers]()
    world.door.do_all([*ahead, op])
    assert world.raw.ttl(keys.blob_key(run_id, digests[0])) == -1


def test_a_piece_written_again_leaves_a_kept_body_kept(world: World) -> None:
    """The same body twice in a run, or a repetition after the reference was stored: it does not begin to expire."""
    held = world.running()
    stored, digests, ahead = spill(held.run_id, BIG)
    world.door.do_all([*ahead, end(held, "x", output=stored, blob_digests=digests)])
    before = world.dump()
    world.door.do_all(ahead)
    assert world.dump() == before


def test_pieces_in_any_order_make_the_body(world: World) -> None:
    """More than ten of them: the order is by number, not by text."""
    run_id = keys.new_run_id(SHARD)
    body = random.Random(1).randbytes(13 * PIECE_BYTES - 7)
    _, digests, ahead = spill(run_id, body)
    world.door.do_all(list(reversed(ahead)))
    assert world.do(read_blob(run_id, digests[0])) == body


# --- events, messages, declarations ---------------------------------------------------------------------------------


def test_events_are_read_in_pages(world: World) -> None:
    """From the beginning, and on from the last id; nothing new is an empty page at the same place."""
    held = world.running()
    world.do(
        note(held, "n", new_events=[NewEvent("llm.retry", {"n": n, "ä": "€"}, 1, "k") for n in range(5)])
    )
    first = world.do(reads.read_events(held.run_id, "0", count=4))
    rest = world.do(reads.read_events(held.run_id, first.last_id))
    assert [event["type"] for event in first.events] == [
        "run.enqueued",
        "run.claimed",
        "attempt.started",
        "llm.retry",
    ]
    assert [event["data"]["n"] for event in rest.events] == [1, 2, 3, 4]
    assert rest.events[0]["data"]["ä"] == "€"
    assert world.do(reads.read_events(held.run_id, rest.last_id)) == reads.Page([], rest.last_id)
    event = first.events[1]
    assert set(event) == {"id", "type", "at", "attempt", "step", "call_key", "data"}
    assert event["at"].endswith("Z")
    assert (event["attempt"], event["step"], event["call_key"]) == (1, None, None)


def test_messages_are_set_aside_with_their_reason(world: World) -> None:
    """Newest first, undecodable bytes shown escaped."""
    world.do(catalog.set_aside("no json", b"\x80pickle"))
    world.do(catalog.set_aside("no run", b"{}"))
    rows = world.do(catalog.read_aside(10))
    assert [(row["reason"], row["raw"]) for row in rows] == [("no run", "{}"), ("no json", "\\x80pickle")]
    assert len(world.do(catalog.read_aside(1))) == 1


def test_declarations_are_published_together_and_read_back(world: World) -> None:
    """Empty before any worker came; a second worker adds to the first one's."""
    assert world.do(catalog.read_catalog()) == {}
    world.do(catalog.publish_agents({"a": {"model": "m"}, "b": {"tools": []}}))
    world.do(catalog.publish_agents({"b": {"tools": ["x"]}}))
    assert world.do(catalog.read_catalog()) == {"a": {"model": "m"}, "b": {"tools": ["x"]}}


def test_reads_of_what_is_not_there_are_empty(world: World) -> None:
    """No error, nothing made up."""
    run_id = keys.new_run_id(SHARD)
    assert world.do(reads.read_record(run_id)) == {}
    assert world.do(reads.read_state(run_id)) is None
    assert world.do(reads.read_journal(run_id)) == world.do(reads.read_steps(run_id)) == {}
    assert world.do(reads.read_events(run_id, "0")) == reads.Page([], "0")
    assert world.do(reads.read_cancels(PREFIX)) == world.do(reads.read_counters(PREFIX)) == {}
    assert world.do(reads.newest_runs(PREFIX, AGENT, "queued", 5)) == []


# --- durations ------------------------------------------------------------------------------------------------------


def day_of(world: World, series: str) -> dict[str, int]:
    """The only day that a series has, as long as no midnight passes."""
    (name,) = world.raw.keys(f"{PREFIX}lat:{series}:*")
    return world.do(reads.read_latency(PREFIX, series, int(name.rpartition(b":")[2])))


@pytest.mark.contract("A7")
def test_percentiles_are_right_within_five_percent_and_the_maximum_exactly(world: World) -> None:
    """Over all shards' parts; several thousand durations over four orders of magnitude."""
    rnd = random.Random(7)
    durations_s = sorted(rnd.lognormvariate(0, 1.5) for _ in range(1000))
    held = world.running()
    for start in range(0, 1000, 100):
        taken = [sample("tool:mail", duration_s) for duration_s in durations_s[start : start + 100]]
        world.do(note(held, world.op(), latencies=taken))
    part = day_of(world, "tool:mail")
    spread = spread_of([part, {}])
    assert spread.samples == 1000
    for quantile, value_s in ((0.5, spread.p50_s), (0.95, spread.p95_s), (0.99, spread.p99_s)):
        assert value_s == pytest.approx(durations_s[round(quantile * 1000) - 1], rel=0.05)
    assert spread.max_s == pytest.approx(durations_s[-1], abs=0.001)


@pytest.mark.contract("A7")
def test_what_every_operation_measures_is_counted(world: World) -> None:
    """Calls with their outcome, attempts with the end of the run or its release; nothing twice."""
    held = world.in_step()
    for op in (
        outcome(held, "o", "a", latencies=[Sample("tool:a", 5, 40), Sample("tool:b", 6, 50)]),
        end(held, "e"),
    ):
        world.do(op)
        world.do(op)
    assert [world.samples(name) for name in ("tool:a", "tool:b", "run:support", "none")] == [1, 1, 1, 0]
    assert day_of(world, "tool:a") == {"5": 1, "max": 40}


@pytest.mark.contract("A7")
def test_durations_do_not_pile_up(world: World) -> None:
    """One key per series and day, and every one of them goes by itself after nine days."""
    world.do(end(world.in_step(), "e"))
    (name,) = world.raw.keys(f"{PREFIX}lat:*")
    assert int(name.rpartition(b":")[2]) == pytest.approx(world.now_ms() / DAY_MS, abs=1)
    assert 8 * 86_400 < world.raw.ttl(name) <= 9 * 86_400


def test_parts_without_a_sample_give_no_number() -> None:
    """Counts of the same bucket add up, and the longest of all is the maximum."""
    spread = spread_of([{"20": 1, "max": 80}, {}, {"20": 2, "21": 1, "max": 75}])
    assert (spread.samples, spread.max_s) == (4, 0.08)
    assert spread_of([]) == spread_of([{}, {}])
    assert spread_of([{}]).p50_s is None


@pytest.mark.contract("A7")
def test_a_refresh_reads_seven_days_once_and_then_the_present_one(fake: World) -> None:
    """An eighth day no longer counts; a day that is over is not read again; a new day is."""
    today = fake.now_ms() // DAY_MS
    for ago in range(9):
        fake.raw.hset(f"{PREFIX}lat:tool:a:{today - ago}", mapping={"20": 1, "max": 100 + ago})
    board = LatencyBoard(cast("Any", None))

    def days_read(now_ms: int) -> list[int]:
        """Refresh at this moment; the days that were read, each in all shards."""
        flow = board.refreshed(["tool:a"])
        next(flow)
        ops = flow.send([now_ms])
        with contextlib.suppress(StopIteration):
            flow.send([fake.do(op) for op in ops])
        days = Counter(int(str(op.args[1]).rpartition(":")[2]) for op in ops)
        assert set(days.values()) == {keys.SHARDS}
        return sorted(days)

    assert days_read(today * DAY_MS) == list(range(today - 6, today + 1))
    assert (board.get("tool:a").samples, board.get("tool:a").max_s) == (7, 0.106)
    fake.raw.hincrby(f"{PREFIX}lat:tool:a:{today}", "20", 5)
    assert days_read((today + 1) * DAY_MS - 1) == [today]
    assert board.get("tool:a").samples == 12
    assert days_read((today + 1) * DAY_MS) == [today, today + 1]
    assert (board.get("tool:a").samples, board.get("tool:a").max_s) == (11, 0.105)

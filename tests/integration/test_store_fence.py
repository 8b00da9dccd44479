"""Fenced operations: each answers its repetition, and refuses everything else without a trace (invariants 6 and 7)."""

from __future__ import annotations

from typing import Any

import pytest

from makegood.errors import RunNotFound, StaleFence
from makegood.store import keys
from makegood.store.ops.args import NewEvent
from makegood.store.ops.runs import Cleaning
from makegood.store.states import State
from support.store import SHARD, World
from support.store_ops import FENCED, Fenced, Held, end, intent, note, outcome, plain, release, start

every_operation = pytest.mark.parametrize("fenced", FENCED, ids=str)


@every_operation
def test_a_repetition_gives_the_first_answer_and_writes_nothing(world: World, fenced: Fenced) -> None:
    """What redis-py does when a reply is lost."""
    held = fenced.ready(world)
    op = fenced.make(held, "op-x")
    first = world.do(op)
    before = world.dump()
    assert plain(world.do(op)) == plain(first)
    assert world.dump() == before


@every_operation
def test_repetitions_in_one_pipeline_are_done_once(world: World, fenced: Fenced) -> None:
    """The same operation three times in a row."""
    held = fenced.ready(world)
    answers = world.door.do_all([fenced.make(held, "op-x")] * 3)
    assert len({plain(answer) for answer in answers}) == 1
    single = World(world.door, world.raw)
    assert world.events(held.run_id).count("run.ended") <= 1
    assert single.number(held.run_id, "continuations") <= 1


@pytest.mark.contract("D9")
@every_operation
def test_a_stale_fence_is_refused_before_anything_is_written(world: World, fenced: Fenced) -> None:
    """A zombie's write changes nothing at all; neither an older number nor another nonce passes."""
    held = fenced.ready(world)
    before = world.dump()
    number, _, nonce = held.fence.partition(":")
    for fence in (f"{number}:other", f"{int(number) - 1}:{nonce}", nonce, ""):
        with pytest.raises(StaleFence, match=held.run_id):
            world.do(fenced.make(Held(held.run_id, fence), world.op()))
    assert world.dump() == before


@pytest.mark.contract("D9")
@every_operation
def test_after_a_new_claim_the_old_fence_is_refused(world: World, fenced: Fenced) -> None:
    """Handed over and claimed by another worker: the first one's writes no longer count."""
    held = fenced.ready(world)
    world.do(release(held, world.op()))
    taken = world.claim(worker="worker-2")
    assert (taken.run_id, taken.fence.partition(":")[0]) == (held.run_id, "2")
    before = world.dump()
    with pytest.raises(StaleFence):
        world.do(fenced.make(held, world.op()))
    assert world.dump() == before


@every_operation
def test_an_unknown_run_is_not_found_and_leaves_nothing(world: World, fenced: Fenced) -> None:
    """No half of a record comes into being."""
    world.running()
    before = world.dump()
    with pytest.raises(RunNotFound):
        world.do(fenced.make(Held(keys.new_run_id(SHARD), "1:x"), world.op()))
    assert world.dump() == before


@every_operation
def test_a_run_that_ended_takes_no_more(world: World, fenced: Fenced) -> None:
    """Its fence ended with it."""
    held = fenced.ready(world)
    if world.number(held.run_id, "open_calls"):
        world.do(outcome(held, world.op(), "a"))
    assert world.do(end(held, world.op())) == State.SUCCEEDED
    before = world.dump()
    with pytest.raises(StaleFence, match=held.run_id):
        world.do(fenced.make(held, world.op()))
    assert world.dump() == before


@every_operation
def test_a_run_that_is_to_be_cleaned_up_takes_no_more(world: World, fenced: Fenced) -> None:
    """The fence of the attempt ended with the attempt: what hangs on in its worker adds nothing to what is undone."""
    held = fenced.ready(world)
    dirty = Cleaning("failure", State.FAILED, "policy")
    assert world.do(end(held, world.op(), State.FAILED, cleaning=dirty)) == State.CLEANING
    before = world.dump()
    with pytest.raises(StaleFence, match=held.run_id):
        world.do(fenced.make(held, world.op()))
    assert world.dump() == before


def test_a_repetition_is_known_also_after_later_operations(world: World) -> None:
    """A pipeline whose replies were lost comes again as a whole: every part of it has been done already."""
    held = world.running()
    ops: list[Any] = [
        intent(held, "1", rows=[("a", "started"), ("b", "planned"), ("c", "started")]),
        note(held, "2"),
        note(held, "3", sends=3),
        start(held, "4", "b"),
        outcome(held, "5", "a"),
        outcome(held, "6", "b", status="unknown"),
        outcome(held, "7", "c", ends=1),
        intent(held, "8", step=2, rows=[("d", "started")]),
        outcome(held, "9", "d", ends=2),
        intent(held, "10", step=3, rows=[]),
        outcome(held, "11", ends=3, new_events=[NewEvent("step.ended", {}, 3)]),
        note(held, "12", activity=b"", sends=None, new_events=[]),
    ]
    first = world.door.do_all(ops)
    before = world.dump()
    again = world.door.do_all(ops)
    assert [plain(answer) for answer in again] == [plain(answer) for answer in first]
    assert world.dump() == before
    for op in reversed(ops):
        world.do(op)
    assert world.dump() == before


def test_a_release_is_known_also_after_the_next_claim(world: World) -> None:
    """The first answer again, though the run is executed elsewhere by now."""
    held = world.running()
    op = release(held, "op-r")
    assert world.do(op) == State.QUEUED
    world.claim(worker="worker-2")
    before = world.dump()
    assert world.do(op) == State.QUEUED
    assert world.dump() == before


def test_an_end_is_known_also_after_the_run_went_on(world: World) -> None:
    """The first answer again, though cleanup has the run by now."""
    held = world.running()
    op = end(held, "op-e", State.FAILED)
    assert world.do(op) == State.FAILED
    world.put_in_state(held.run_id, State.CLEANING)
    before = world.dump()
    assert world.do(op) == State.FAILED
    assert world.dump() == before


def test_more_notes_than_are_remembered_do_not_grow_without_bound(world: World) -> None:
    """256 ids are kept, and they go by themselves."""
    held = world.running()
    world.door.do_all([note(held, f"n{number}") for number in range(300)])
    remembered = keys.prefix_of(held.run_id) + f"o:{held.run_id}"
    assert world.raw.zcard(remembered) == 256
    assert world.raw.ttl(remembered) > 0


@pytest.mark.parametrize(
    "broken",
    [
        lambda held: outcome(held, "x", "a", "missing"),
        lambda held: start(held, "x", "b", "missing"),
        lambda held: start(held, "x", "b", "a"),
        lambda held: outcome(held, "x", "a", ends=2),
    ],
    ids=[
        "an outcome without a row",
        "a start without a row",
        "a start of what runs",
        "the end of a later step",
    ],
)
def test_one_bad_row_spoils_the_whole_operation(world: World, broken: Any) -> None:
    """Everything is checked before the first write: the good row next to it stays as it was."""
    held = world.in_step()
    before = world.dump()
    with pytest.raises(Exception, match=held.run_id):
        world.do(broken(held))
    assert world.dump() == before

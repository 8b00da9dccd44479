"""Declared resources: durable before the effect, the first prior state stays, rolled back once (CONTRACT E2)."""

from __future__ import annotations

import pytest

from makegood.errors import Conflict, RunNotFound, StaleFence
from makegood.store import keys
from makegood.store.ops.blobs import reference, spill
from makegood.store.ops.resources import Settled, StoredResource, read_declared, read_resources
from makegood.store.ops.runs import cancel_run
from makegood.store.states import State
from support.review import claim_cleanup
from support.store import World
from support.store_ops import Held, declare, end, note, release, settle


def stored(world: World, held: Held) -> list[StoredResource]:
    return world.do(read_resources(held.run_id))


def cleaning(world: World) -> Held:
    """A run in cleaning with resources k and l."""
    held = world.running()
    world.do(declare(held, world.op()))
    world.do(declare(held, world.op(), "l", b'{"prior":2}'))
    world.put_in_state(held.run_id, State.CLEANING)
    return held


@pytest.mark.contract("E2")
def test_a_declaration_is_there_when_it_was_acknowledged(world: World) -> None:
    """In order, with its body, and counted in the record."""
    held = world.running()
    before_ms = world.now_ms()
    assert world.do(declare(held, "op-d")).cancel is None
    world.do(declare(held, world.op(), "l", b'{"prior":2}'))
    first, second = stored(world, held)
    assert (first.key, first.body, first.status, first.tries, first.error) == (
        "k",
        b'{"prior":1}',
        "declared",
        0,
        None,
    )
    assert first.since_ms == first.at_ms >= before_ms
    assert (second.key, second.seq > first.seq) == ("l", True)
    assert world.number(held.run_id, "resources") == 2
    assert world.do(read_declared(held.run_id, "k"))
    assert not world.do(read_declared(held.run_id, "m"))


@pytest.mark.contract("E2")
def test_the_first_prior_state_stays_until_it_was_brought_back(world: World) -> None:
    """A repeat in a later attempt finds its own work there; that must not become what is restored."""
    held = world.running()
    world.do(declare(held, world.op()))
    world.do(release(held, world.op(), max_continuations=10))
    again = world.claim()
    world.do(declare(again, world.op(), body=b'{"prior":"my own work"}'))
    assert [each.body for each in stored(world, held)] == [b'{"prior":1}']
    assert world.number(held.run_id, "resources") == 1


def test_after_it_was_rolled_back_it_is_declared_anew(world: World) -> None:
    """The prior state of the next attempt is the one that it finds."""
    held = cleaning(world)
    world.do(settle(held, world.op()))
    world.put_in_state(held.run_id, State.RUNNING)
    world.do(declare(held, world.op(), body=b'{"prior":"new"}'))
    second, third = stored(world, held)
    assert (third.key, third.body, third.status, third.tries) == ("k", b'{"prior":"new"}', "declared", 0)
    assert third.seq > second.seq
    assert world.number(held.run_id, "resources") == 2


def test_one_whose_roll_back_failed_keeps_its_first_prior_state(world: World) -> None:
    """What was there before is still what the first declaration says; it counts once."""
    held = cleaning(world)
    world.do(settle(held, world.op(), "failed", detail=b'{"error":null}'))
    assert world.do(read_declared(held.run_id, "k"))
    world.put_in_state(held.run_id, State.RUNNING)
    world.do(declare(held, world.op(), body=b'{"prior":"later"}'))
    first = stored(world, held)[0]
    assert (first.body, first.status, first.tries, first.error) == (b'{"prior":1}', "declared", 0, None)
    assert world.number(held.run_id, "resources") == 2


def test_a_large_prior_state_is_kept_in_pieces(world: World) -> None:
    """One write stays small; the pieces no longer go by themselves."""
    held = world.running()
    body, digests, ahead = spill(held.run_id, b'"' + b"x" * 200_000 + b'"')
    world.door.do_all(ahead)
    name = keys.blob_key(held.run_id, digests[0])
    assert world.raw.ttl(name) > 0
    world.do(declare(held, world.op(), body=body, blob_digests=digests))
    assert world.raw.ttl(name) == -1
    assert reference(stored(world, held)[0].body) == digests[0]


def test_a_declaration_tells_of_a_cancel(world: World) -> None:
    """As every operation of a step does."""
    held = world.running()
    world.do(cancel_run(run_id=held.run_id, cause="user", actor="ada", reason=""))
    op = declare(held, "op-d")
    assert [world.do(op).cancel, world.do(op).cancel] == ["user", "user"]


# --- rolling back ---------------------------------------------------------------------------------------------------


@pytest.mark.contract("E2")
def test_a_roll_back_is_recorded_once(world: World) -> None:
    """A repetition gets the first answer; a later try changes nothing any more."""
    held = cleaning(world)
    op = settle(held, "op-s")
    assert world.do(op) == Settled(1, "rolled_back")
    before = world.dump()
    assert world.do(op) == Settled(1, "rolled_back")
    assert world.do(settle(held, world.op(), "failed")) == Settled(1, "rolled_back")
    assert world.dump() == before
    assert [each.status for each in stored(world, held)] == ["rolled_back", "declared"]
    assert world.number(held.run_id, "resources") == 1
    assert world.events(held.run_id).count("cleanup.rolled_back") == 1


def test_tries_count_per_round(world: World) -> None:
    """An operator's retry begins anew; the error of the last failed try stays until one succeeds."""
    held = cleaning(world)
    answers = [
        world.do(settle(held, world.op(), "failed", round_=round_, detail=b'{"error":"e"}'))
        for round_ in (1, 1, 2)
    ]
    assert [answer.tries for answer in answers] == [1, 2, 1]
    first = stored(world, held)[0]
    assert (first.status, first.tries, first.round_, first.error) == ("failed", 1, 2, b'{"error":"e"}')
    assert world.number(held.run_id, "resources") == 2
    assert world.do(settle(held, world.op(), round_=2)) == Settled(2, "rolled_back")
    assert stored(world, held)[0].error is None


def test_only_a_cleanup_with_its_fence_records_a_roll_back(world: World) -> None:
    """Not a running attempt, not an older claim, not for what was never declared; nothing is written then."""
    held = world.running()
    world.do(declare(held, world.op()))
    before = world.dump()
    with pytest.raises(Conflict, match="is running"):
        world.do(settle(held, world.op()))
    assert world.dump() == before
    world.put_in_state(held.run_id, State.CLEANING)
    before = world.dump()
    with pytest.raises(StaleFence):
        world.do(settle(Held(held.run_id, "0:x"), world.op()))
    for strange in (Held(keys.new_run_id(7), "1:x"), held):
        with pytest.raises(RunNotFound):
            world.do(settle(strange, world.op(), key="never"))
    assert world.dump() == before


@pytest.mark.contract("D9")
def test_the_attempt_of_a_run_in_cleaning_declares_nothing(world: World) -> None:
    """A body of its attempt that hangs on cannot add to what is being rolled back."""
    held = world.running()
    world.do(declare(held, world.op()))
    assert world.do(end(held, world.op(), State.FAILED)) == State.CLEANING
    cleaner = claim_cleanup(world)
    with pytest.raises(StaleFence):
        world.do(declare(held, world.op(), "late"))
    world.do(declare(cleaner, world.op(), "l"))
    assert len(stored(world, held)) == 2, "a call that cleanup repeats does declare"


def test_a_run_that_is_stopping_still_declares(world: World) -> None:
    """Another call of it hangs; this one goes on."""
    held = world.running()
    world.do(note(held, world.op(), stopping=True))
    world.do(declare(held, world.op()))
    assert len(stored(world, held)) == 1

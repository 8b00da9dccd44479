"""Locks on the server: exclusive, owned by run and fence, with a token that grows (CONTRACT E7, invariant 13)."""

from __future__ import annotations

import pytest

from makegood.errors import StaleFence
from makegood.store.keys import lock_key, prefix_of
from makegood.store.ops.locks import (
    Taking,
    extend_lock,
    free_lock,
    read_lock,
    read_locks,
    read_registrations,
    release_lock,
)
from makegood.store.scripts import Op
from makegood.store.states import State
from support.review import claim_cleanup
from support.store import World
from support.store_ops import Held, acquire, end, register, release, unregister


def give_back(held: Held, holder: str, name: str = "account") -> Op[bool]:
    return release_lock(run_id=held.run_id, fence=held.fence, holder=holder, name=name)


def extend(held: Held, holder: str, lifetime_ms: int = 60_000) -> Op[bool]:
    return extend_lock(
        run_id=held.run_id, fence=held.fence, holder=holder, name="account", lifetime_ms=lifetime_ms
    )


def free(held: Held, name: str = "account") -> Op[None]:
    return free_lock(run_id=held.run_id, fence=held.fence, name=name)


def taken(world: World, op: Op[Taking]) -> int:
    token = world.do(op).token
    assert token is not None
    return token


def continued(world: World, held: Held) -> Held:
    """The run under its next fence."""
    world.do(release(held, world.op(), max_continuations=10))
    again = world.claim(worker="worker-2")
    assert again.run_id == held.run_id
    return again


@pytest.mark.contract("E7")
def test_a_lock_excludes_other_runs_until_it_is_given_back(world: World) -> None:
    """Whoever waits is told for how long at the most."""
    one, other = world.running(), world.running()
    first = taken(world, acquire(one, "h1"))
    waits = world.do(acquire(other, "h2"))
    assert waits.token is None
    assert 0 < waits.wait_ms <= 60_000
    assert world.do(give_back(one, "h1"))
    assert taken(world, acquire(other, "h2")) > first
    fields = world.do(read_lock("account"))
    assert (fields["owner"], fields["fence"]) == (other.run_id, other.fence)


@pytest.mark.contract("E7")
def test_an_acquisition_answers_its_own_repetition(world: World) -> None:
    """The same token, and nothing is written; one of another call of the same run waits like anybody's."""
    held = world.running()
    token = taken(world, acquire(held, "h1"))
    before = world.dump()
    assert taken(world, acquire(held, "h1")) == token
    assert world.do(acquire(held, "h2")).token is None
    assert world.dump() == before


def test_an_old_send_of_an_acquisition_that_was_given_back_takes_nothing(world: World) -> None:
    """Commands whose replies were lost come again in order, or late."""
    held, other = world.running(), world.running()
    token = taken(world, acquire(held, "h1"))
    assert [world.do(give_back(held, "h1")), world.do(give_back(held, "h1"))] == [True, True]
    before = world.dump()
    assert taken(world, acquire(held, "h1")) == token
    assert world.dump() == before
    assert taken(world, acquire(other, "h2")) > token


@pytest.mark.contract("E7")
def test_a_lock_that_has_run_out_is_free(world: World) -> None:
    """Its holder can neither release nor extend it once somebody else has it; until then it may still extend it."""
    one, other = world.running(), world.running()
    taken(world, acquire(one, "h1", lifetime_ms=1))
    world.wait_until_ms(world.now_ms() + 2)
    assert world.do(extend(one, "h1", 1))
    world.wait_until_ms(world.now_ms() + 2)
    taken(world, acquire(other, "h2"))
    before = world.do(read_lock("account"))
    assert not world.do(give_back(one, "h1"))
    assert not world.do(extend(one, "h1"))
    assert world.do(read_lock("account")) == before


@pytest.mark.contract("E7", "D9")
def test_a_newer_fence_of_the_run_takes_its_lock_over(world: World) -> None:
    """And the old one can neither release, extend nor take it again."""
    old = world.running()
    first = taken(world, acquire(old, "h1"))
    new = continued(world, old)
    second = taken(world, acquire(new, "h2"))
    assert second > first
    before = world.do(read_lock("account"))
    assert not world.do(give_back(old, "h1"))
    assert not world.do(extend(old, "h1"))
    with pytest.raises(StaleFence):
        world.do(acquire(old, "h1"))
    assert world.do(read_lock("account")) == before
    assert world.do(give_back(new, "h2"))


@pytest.mark.contract("E7", "J26")
def test_cleanup_frees_a_lock_at_once_and_for_good(world: World) -> None:
    """The next run has it right away; a stale release does not free it, and no older fence takes it again."""
    held, other = world.running(), world.running()
    taken(world, acquire(held, "h1"))
    cleanup = continued(world, held)
    world.do(free(cleanup))
    world.do(free(cleanup))
    taken(world, acquire(other, "h2"))
    assert not world.do(give_back(held, "h1"))
    assert world.do(read_lock("account"))["owner"] == other.run_id
    assert world.do(give_back(other, "h2"))
    with pytest.raises(StaleFence):
        world.do(acquire(held, "h1"))
    with pytest.raises(StaleFence):
        world.do(acquire(held, "h9"))
    again = continued(world, cleanup)
    taken(world, acquire(again, "h3"))


def test_cleanup_leaves_what_is_not_its_run_s(world: World) -> None:
    """Neither another run's lock nor one that a newer fence of its own run holds."""
    held, other = world.running(), world.running()
    taken(world, acquire(other, "h2"))
    world.do(free(held))
    assert world.do(read_lock("account"))["owner"] == other.run_id
    world.do(give_back(other, "h2"))
    new = continued(world, held)
    taken(world, acquire(new, "h3"))
    with pytest.raises(StaleFence):
        world.do(free(held))
    assert world.do(read_lock("account"))["fence"] == new.fence


def test_the_token_grows_even_when_the_clock_steps_back(world: World) -> None:
    """The last one outlives the lock for a while."""
    held = world.running()
    token = taken(world, acquire(held, "h1"))
    world.raw.hset(lock_key("account"), "token", token + 3_600_000_000)
    world.do(give_back(held, "h1"))
    assert 0 < world.raw.ttl(lock_key("account")) <= 3600
    assert taken(world, acquire(held, "h2")) == token + 3_600_000_001


def test_locks_of_other_names_are_other_locks(world: World) -> None:
    """Each in a slot of its own, also under names that look alike or are no plain text."""
    held, other = world.running(), world.running()
    names = ["a", "a ", "A", "a|b", "ü\n|x", "a:held", "\ud800"]
    for number, name in enumerate(names):
        taken(world, acquire(held, f"h{number}", name))
        assert world.do(acquire(other, "x", name)).token is None
    assert len({lock_key(name) for name in names}) == len(names)


# --- registrations --------------------------------------------------------------------------------------------------


@pytest.mark.contract("E7")
def test_a_lock_is_registered_until_it_is_given_back(world: World) -> None:
    """The record says how many there are; names are told once, whatever is in them."""
    held = world.running()
    for holder, name in (("h1", "account"), ("h2", "account"), ("h3", "ü|\nx")):
        world.do(register(held, world.op(), name, holder))
    assert world.do(read_locks(held.run_id)) == ["account", "ü|\nx"]
    assert world.number(held.run_id, "locks") == 3
    world.do(unregister(held, world.op(), "account", "h1"))
    assert [each.holder for each in world.do(read_registrations(held.run_id))] == ["h2", "h3"]
    world.do(unregister(held, world.op(), "ü|\nx", "h3"))
    world.do(unregister(held, world.op(), "account", "h2"))
    assert world.number(held.run_id, "locks") == 0
    assert world.do(read_locks(held.run_id)) == []


def test_a_registration_that_comes_again_after_it_was_taken_back_is_known(world: World) -> None:
    """Else a lost reply would leave a run with a lock that nobody holds."""
    held = world.running()
    world.do(register(held, "op-r"))
    world.do(unregister(held, "op-u"))
    before = world.dump()
    world.do(register(held, "op-r"))
    world.do(unregister(held, "op-u"))
    assert world.dump() == before


def test_who_gives_a_lock_back_takes_back_what_older_fences_registered(world: World) -> None:
    """They cannot hold it any more; a parallel call of the same fence may wait for it."""
    old = world.running()
    world.do(register(old, world.op(), holder="h1"))
    new = continued(world, old)
    world.do(register(new, world.op(), holder="h2"))
    world.do(register(new, world.op(), holder="h3"))
    world.do(unregister(new, world.op(), holder="h2"))
    assert [each.holder for each in world.do(read_registrations(new.run_id))] == ["h3"]


def test_cleanup_takes_back_every_registration_of_a_name(world: World) -> None:
    """A run with a lock is cleaned up before it ends; what its attempt would register from now on is refused."""
    held = world.running()
    for holder in ("h1", "h2"):
        world.do(register(held, world.op(), holder=holder))
    world.do(register(held, world.op(), "other", "h3"))
    assert world.do(end(held, world.op())) == State.CLEANING
    with pytest.raises(StaleFence):
        world.do(register(held, world.op(), holder="h4"))
    cleaner = claim_cleanup(world)
    world.do(unregister(cleaner, world.op(), holder=None))
    assert world.do(read_locks(held.run_id)) == ["other"]
    assert world.number(held.run_id, "locks") == 1
    assert world.raw.scard(f"{prefix_of(held.run_id)}l:{held.run_id}") == 1

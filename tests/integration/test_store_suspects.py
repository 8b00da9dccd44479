"""Suspects in the store: they wait apart, whatever else happens in their shard, until they have proved themselves."""

from __future__ import annotations

import pytest

from makegood.store.ops import leases, reads, sweep
from support.store import AGENT, PREFIX, World
from support.store_ops import Held, intent, outcome, release


def a_suspect(world: World) -> str:
    """A run whose process died twice with a call in flight; it waits for quarantine."""
    held = world.running()
    world.do(intent(held, world.op()))
    for _ in range(2):
        world.do(leases.lose_worker(PREFIX, "worker-1", only_expired=False, death=True))
        if world.do(reads.read_whereabouts(held.run_id)).alone:
            return held.run_id
        assert world.claim().run_id == held.run_id
    raise AssertionError("two deaths make a suspect")


def alone(world: World) -> Held:
    """A quarantine process takes it."""
    return world.claim(quarantine=True)


@pytest.mark.contract("D8")
@pytest.mark.parametrize("target", ["queued", "parked"])
def test_a_suspect_that_is_let_go_of_without_a_proof_stays_one(world: World, target: str) -> None:
    """A drain of the quarantine process, or a wait for the model: only quarantine may go on with it."""
    run_id = a_suspect(world)
    world.do(release(alone(world), world.op(), target, due_in_ms=0))
    if target == "parked":
        world.wait_until_ms(world.now_ms())
        assert world.do(sweep.sweep_parked(PREFIX)) == [run_id]
    assert world.do(reads.read_whereabouts(run_id)).alone
    assert world.try_claim() is None
    assert alone(world).run_id == run_id


@pytest.mark.contract("D8")
def test_a_suspect_whose_step_ended_in_quarantine_is_one_no_more(world: World) -> None:
    """It was handed over with the outcome recorded: it waits among the others."""
    run_id = a_suspect(world)
    held = alone(world)
    world.do(outcome(held, world.op(), "a", ends=1))
    world.do(release(held, world.op()))
    assert not world.do(reads.read_whereabouts(run_id)).alone
    assert world.try_claim(quarantine=True) is None
    assert world.claim().run_id == run_id


def test_steps_from_before_the_quarantine_prove_nothing(world: World) -> None:
    """A second step is the one in which it died."""
    held = world.running()
    world.do(intent(held, world.op()))
    world.do(outcome(held, world.op(), "a", ends=1))
    world.do(intent(held, world.op(), step=2, rows=(("b", "started"),)))
    for _ in range(2):
        world.do(leases.lose_worker(PREFIX, "worker-1", only_expired=False, death=True))
        world.try_claim()
    world.do(release(alone(world), world.op()))
    assert world.try_claim() is None
    assert alone(world).run_id == held.run_id


def test_a_suspect_is_found_in_a_shard_in_which_others_are_claimed_all_the_time(world: World) -> None:
    """Its lost message is sent again although nothing is quiet there."""
    run_id = a_suspect(world)
    world.raw.zadd(f"{PREFIX}suspects:{AGENT}", {run_id: 0})
    world.running()
    assert world.do(sweep.sweep_queued(PREFIX, [AGENT])) == []
    assert world.do(sweep.sweep_queued(PREFIX, [AGENT], quarantine=True)) == [run_id]


def test_only_suspects_of_served_agents_call_for_a_quarantine_process(world: World) -> None:
    """Those of other agents wait for a worker that has them."""
    a_suspect(world)
    assert world.do(leases.count_suspects(PREFIX, [AGENT])) == 1
    assert world.do(leases.count_suspects(PREFIX, ["other"])) == 0

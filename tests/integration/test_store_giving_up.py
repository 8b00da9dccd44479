"""A worker that lives gives up one run that it cannot end: it counts as lost, and is bounded like every loss."""

from __future__ import annotations

from makegood.store.ops import leases
from makegood.store.ops.cleanup import claim_cleanup
from makegood.store.states import State
from support.store import AGENT, PREFIX, World
from support.store_ops import Held, end, intent, outcome


def give_up(world: World, run_id: str, worker: str = "worker-1") -> leases.Lost:
    """The worker gives up one run."""
    return world.do(leases.lose_worker(PREFIX, worker, only_expired=False, death=False, run_id=run_id))


def test_one_run_goes_back_and_the_others_stay(world: World) -> None:
    """Its worker keeps its lease; a repetition finds nothing to give up."""
    held, other = world.running(), world.running()
    assert give_up(world, held.run_id) == leases.Lost((held.run_id,), 0)
    assert (world.state(held.run_id), world.state(other.run_id)) == (State.QUEUED, State.RUNNING)
    assert (world.number(held.run_id, "crashes"), world.number(held.run_id, "continuations")) == (1, 1)
    assert world.raw.zcard(f"{PREFIX}lease") == 1
    before = world.dump()
    assert give_up(world, held.run_id).run_ids == ()
    assert give_up(world, other.run_id, "worker-2").run_ids == ()
    assert world.dump() == before
    assert world.claim().run_id == held.run_id


def test_one_that_nobody_can_end_reaches_a_person_in_the_end(world: World) -> None:
    """Ten continuations, then the claim that was to end it: given up once more, cleanup has it."""
    held = world.running()
    world.do(intent(held, world.op()))
    world.do(outcome(held, world.op(), "a", ends=1))
    for _ in range(leases.MAX_CONTINUATIONS + 1):
        assert give_up(world, held.run_id).run_ids == (held.run_id,)
        held = world.claim()
    assert world.record(held.run_id)["cannot_continue"] == "1"
    assert give_up(world, held.run_id).run_ids == (held.run_id,)
    assert world.state(held.run_id) == State.CLEANING
    record = world.record(held.run_id)
    assert (record["cl_target"], record["cl_end"], record["cl_code"]) == (
        "requires_manual_review",
        "failed",
        "CRASHED",
    )


def cleanup(world: World) -> Held | None:
    """Claim what is due."""
    op = claim_cleanup(
        shard_prefix=PREFIX, nonce=world.op(), worker="worker-1", agents=[AGENT], lease_ms=60_000
    )
    claim = world.do(op)
    return None if claim is None else Held(claim.run_id, claim.fence)


def test_a_cleanup_that_cannot_even_reach_a_person_waits_for_an_hour(world: World) -> None:
    """It neither spins nor vanishes: it stays in cleaning, and is tried again."""
    held = world.in_step()
    world.do(end(held, world.op(), State.FAILED))
    tries = 0
    while cleanup(world) is not None:
        assert give_up(world, held.run_id).run_ids == (held.run_id,)
        tries += 1
    assert tries == leases.MAX_CONTINUATIONS + 2
    assert world.state(held.run_id) == State.CLEANING
    due_ms = world.raw.zscore(f"{PREFIX}cleaning:{AGENT}", held.run_id)
    assert 0 < due_ms - world.now_ms() <= 3_600_000

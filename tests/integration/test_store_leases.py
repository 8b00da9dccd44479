"""Leases in the store: one per worker and shard, renewed with the set of its runs, and what is left of a lost worker."""

from __future__ import annotations

import pytest

from makegood.errors import StaleFence
from makegood.store.ops import leases
from makegood.store.ops.runs import cancel_run
from makegood.store.states import State
from support.store import AGENT, PREFIX, World
from support.store_ops import Held, end, intent, note, outcome, release


def beat(world: World, *run_ids: str, worker: str = "worker-1", lease_ms: int = 60_000) -> leases.Beat:
    """A heartbeat that names the runs that the worker believes to hold."""
    return world.do(leases.renew_lease(PREFIX, worker, lease_ms, run_ids))


def lose(
    world: World, *, worker: str = "worker-1", only_expired: bool = False, death: bool = True
) -> leases.Lost:
    """The worker is lost."""
    return world.do(leases.lose_worker(PREFIX, worker, only_expired=only_expired, death=death))


def crash(world: World, held: Held) -> Held:
    """The process dies and another one claims the run."""
    assert lose(world).run_ids == (held.run_id,)
    return world.claim()


def test_a_heartbeat_reconciles_what_is_held(world: World) -> None:
    """Runs of which the claim's reply was lost are found; runs that are someone else's are named."""
    known, unheard, gone = world.running(), world.running(), world.running()
    world.do(end(gone, world.op()))
    answer = beat(world, known.run_id, gone.run_id)
    assert (answer.lost, answer.found) == ((gone.run_id,), (unheard.run_id,))
    assert beat(world, known.run_id, gone.run_id) == answer
    assert world.do(leases.sweep_leases(PREFIX)) == []


def test_a_lease_runs_out_unless_it_is_renewed(world: World) -> None:
    """The sweep names the worker; a late heartbeat takes it back as long as nobody took over."""
    held = world.running()
    beat(world, held.run_id, lease_ms=1)
    world.wait_until_ms(world.now_ms() + 1)
    assert world.do(leases.sweep_leases(PREFIX)) == ["worker-1"]
    assert beat(world, held.run_id).lost == ()
    assert world.do(leases.sweep_leases(PREFIX)) == []
    before = world.dump()
    assert lose(world, only_expired=True).run_ids == ()
    assert world.dump() == before
    world.do(note(held, world.op()))


@pytest.mark.contract("D9")
def test_runs_of_a_lost_worker_are_continued_before_others(world: World) -> None:
    """Same attempt, new fence; what the lost worker still writes is refused; it learns so from its heartbeat."""
    held, fresh = world.running(), world.enqueue()
    world.do(intent(held, world.op()))
    assert lose(world).run_ids == (held.run_id,)
    assert lose(world).run_ids == ()
    assert world.state(held.run_id) == State.QUEUED
    with pytest.raises(StaleFence):
        world.do(outcome(held, world.op(), "a"))
    assert beat(world, held.run_id) == leases.Beat((held.run_id,), ())
    again = world.claim(worker="worker-2")
    assert (again.run_id, again.fence.partition(":")[0]) == (held.run_id, "2")
    assert (world.number(held.run_id, "attempt"), world.number(held.run_id, "step")) == (1, 1)
    assert world.events(held.run_id)[-1] == "run.continued"
    assert world.counters()["recoveries_total|continued"] == 1
    world.do(outcome(again, world.op(), "a", ends=1))
    assert world.claim().run_id == fresh


def test_nothing_of_a_lease_stays_when_nothing_is_held(world: World) -> None:
    """An idle worker has no lease that could expire."""
    for leave in (end, release):
        held = world.running(agent=leave.__name__)
        world.do(leave(held, world.op()))
        beat(world)
        left = {
            name
            for name in world.dump()
            if name in (f"{PREFIX}lease", f"{PREFIX}beats", f"{PREFIX}held:worker-1")
        }
        assert left == set()


def test_a_run_that_was_told_to_stop_ends_with_its_worker(world: World) -> None:
    """Nobody continues it only to cancel it."""
    held = world.running()
    world.do(cancel_run(run_id=held.run_id, cause="user", actor="ada", reason=""))
    assert lose(world).run_ids == ()
    assert world.state(held.run_id) == State.CANCELLED
    assert world.events(held.run_id)[-1] == "run.ended"


@pytest.mark.contract("D8")
def test_a_run_that_kills_its_process_twice_with_a_call_in_flight_goes_on_alone(world: World) -> None:
    """It waits apart from the others, and only a quarantine process may take it; after three deaths there it is a person's."""
    held = world.running()
    held = crash(world, held)
    world.do(intent(held, world.op()))
    assert lose(world) == leases.Lost((held.run_id,), 1)
    assert world.try_claim() is None
    assert world.do(leases.count_suspects(PREFIX, [AGENT])) == 1
    for _ in range(2):
        assert world.claim(quarantine=True).run_id == held.run_id
        assert lose(world) == leases.Lost((held.run_id,), 1)
    assert world.claim(quarantine=True).run_id == held.run_id
    assert lose(world) == leases.Lost((held.run_id,), 0)
    assert world.state(held.run_id) == State.CLEANING
    record = world.record(held.run_id)
    assert (record["error_code"], record["cl_target"]) == ("CRASHED", "requires_manual_review")
    assert world.try_claim() is world.try_claim(quarantine=True) is None
    assert world.do(leases.count_suspects(PREFIX, [AGENT])) == 0


@pytest.mark.contract("D8")
def test_a_lost_host_or_an_idle_run_makes_no_suspect(world: World) -> None:
    """Only a process that died by itself counts for poison, and only with a call in flight; each is a loss."""
    held = world.running()
    world.do(intent(held, world.op()))
    for _ in range(3):
        assert lose(world, death=False).suspects == 0
        held = world.claim()
    world.do(outcome(held, world.op(), "a", ends=1))
    for _ in range(3):
        assert lose(world).suspects == 0
        held = world.claim()
    assert world.number(held.run_id, "crashes") == 6


@pytest.mark.contract("I2")
def test_every_loss_of_a_worker_counts_whoever_was_at_fault(world: World) -> None:
    """A lost host alone makes a run one that was retried; one that is let go of in order does not."""
    held = world.running()
    lose(world, death=False)
    world.do(end(world.claim(), world.op()))
    assert world.number(held.run_id, "crashes") == 1
    world.do(release(world.running(), world.op()))
    world.do(end(world.claim(), world.op()))
    assert world.counters()[f"retried_runs_total|{AGENT}|succeeded"] == 1
    assert world.counters()[f"runs_finished_total|{AGENT}|succeeded"] == 2


def test_an_attempt_is_continued_only_so_often(world: World) -> None:
    """Ten losses and hand-overs together; after the eleventh whoever claims it has to decide, and begins anew."""
    held = world.running()
    for turn in range(leases.MAX_CONTINUATIONS):
        if turn % 2:
            world.do(release(held, world.op(), max_continuations=leases.MAX_CONTINUATIONS))
        else:
            lose(world, death=False)
        held = world.claim()
    continued = world.counters()["recoveries_total|continued"]
    for _ in range(2):  # also when the one that had to decide is lost
        assert lose(world, death=False).run_ids == (held.run_id,)
        held = world.claim()
        record = world.record(held.run_id)
        assert (record["cannot_continue"], record["attempt"]) == ("1", "1")
        assert world.events(held.run_id)[-1] == "run.claimed"
    world.do(release(held, world.op(), continued=False))
    held = world.claim()
    record = world.record(held.run_id)
    assert ("cannot_continue" in record, record["attempt"], record["continuations"]) == (False, "2", "0")
    assert world.events(held.run_id)[-1] == "attempt.started"
    counted = world.counters()
    assert (counted["recoveries_total|continued"], counted["recoveries_total|restarted"]) == (continued, 1)
    assert lose(world, death=False).run_ids == (held.run_id,)
    world.claim()
    assert world.counters()["recoveries_total|continued"] == continued + 1


def test_a_sweep_of_a_lost_worker_does_a_bounded_amount_of_work(world: World) -> None:
    """Until fewer come back than were asked for."""
    for _ in range(5):
        world.running()
    sizes = []
    while not sizes or sizes[-1] == 2:
        op = leases.lose_worker(PREFIX, "worker-1", only_expired=False, death=False, limit=2)
        sizes.append(len(world.do(op).run_ids))
    assert sizes == [2, 2, 1]
    assert world.raw.zcard(f"{PREFIX}lease") == 0

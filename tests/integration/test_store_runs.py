"""Runs in the store: how they are recorded, and who gets them."""

from __future__ import annotations

import threading

import pytest

from makegood.errors import KeyConflict
from makegood.store import keys
from makegood.store.ops import reads, sweep
from makegood.store.ops.runs import claim_run, enqueue_run
from makegood.store.states import State
from makegood.store.sync_store import SyncStore
from support.store import AGENT, PREFIX, SHARD, World
from support.store_ops import Held, intent, outcome, release

# --- enqueue --------------------------------------------------------------------------------------------------------


def test_a_run_is_recorded_with_its_gauge_counter_and_event(world: World) -> None:
    """Everything that an enqueue means, in one operation."""
    run_id = world.enqueue(session="s-1", key="k-1", body=b'{"a":1}')
    record = world.record(run_id)
    wanted = {
        "id": run_id,
        "agent": AGENT,
        "session": "s-1",
        "key": "k-1",
        "input": '{"a":1}',
        "attempt": "0",
    }
    assert {name: record[name] for name in wanted} == wanted
    assert world.state(run_id) == State.QUEUED
    assert world.counters() == {f"runs_enqueued_total|{AGENT}": 1}
    assert world.events(run_id) == ["run.enqueued"]
    assert world.do(reads.read_agents_seen(PREFIX)) == [AGENT]
    assert world.do(reads.newest_runs(PREFIX, AGENT, "queued", 5))[0][0] == run_id


@pytest.mark.contract("D1")
def test_a_key_names_one_run_per_agent_and_session(world: World) -> None:
    """The same key and input: the same run, counted once as enqueued; another agent or session: another run."""
    first = world.enqueue(key="k")
    assert world.enqueue(key="k") == first
    assert world.enqueue(key="k", session="s") != first
    assert world.enqueue(key="k", agent="other") != first
    assert world.enqueue(key="k2") != first
    assert world.counters()[f"runs_enqueued_total|{AGENT}"] == 3
    assert world.counters()[f"runs_deduplicated_total|{AGENT}"] == 1


def test_a_key_with_another_input_is_a_conflict_that_names_the_run(world: World) -> None:
    """Nothing is written."""
    first = world.enqueue(key="k", input_digest="one")
    before = world.dump()
    with pytest.raises(KeyConflict, match=first):
        world.enqueue(key="k", input_digest="two")
    assert world.dump() == before


@pytest.mark.parametrize("key", [None, "k"])
def test_a_repeated_enqueue_is_the_same_run(world: World, key: str | None) -> None:
    """With and without a key; also a second enqueue of a known key counts as seen again once."""
    given = {
        "agent": AGENT,
        "session": None,
        "key": key,
        "body": b"1",
        "input_digest": "d",
        "expires_in_ms": None,
    }
    op = enqueue_run(run_id=keys.new_run_id(SHARD), **given)  # type: ignore[arg-type]
    first = world.do(op)
    before = world.dump()
    assert world.do(op) == first
    assert world.dump() == before
    if key is not None:
        again = enqueue_run(run_id=keys.new_run_id(SHARD), **given)  # type: ignore[arg-type]
        assert [world.do(again), world.do(again)] == [type(first)(first.run_id, False, State.QUEUED)] * 2
        assert world.counters()[f"runs_deduplicated_total|{AGENT}"] == 1


# --- claim ----------------------------------------------------------------------------------------------------------


def test_a_claim_takes_a_run_with_a_fresh_fence(world: World) -> None:
    """State, attempt, fence, worker and time in the record that the worker gets."""
    run_id = world.enqueue(expires_in_ms=60_000)
    claim = world.try_claim(nonce="abc", worker="w-9")
    assert claim is not None
    assert (claim.run_id, claim.fence) == (run_id, "1:abc")
    assert claim.record == world.record(run_id)
    assert (claim.record["attempt"], claim.record["worker"]) == ("1", "w-9")
    assert claim.record["started_at"] == claim.record["claimed_at"] == str(claim.now_ms)
    assert "expires_at" not in claim.record
    assert world.state(run_id) == State.RUNNING
    assert world.events(run_id)[1:] == ["run.claimed", "attempt.started"]
    assert world.try_claim() is None


def test_a_claim_answers_its_repetition(world: World) -> None:
    """The same nonce gets the same run, though another one waits; after the run was let go of it gets nothing."""
    world.enqueue()
    world.enqueue()
    first = world.try_claim(nonce="abc")
    before = world.dump()
    again = world.try_claim(nonce="abc")
    assert first is not None
    assert again is not None
    assert (again.run_id, again.fence, again.record) == (first.run_id, first.fence, first.record)
    assert world.dump() == before
    world.do(release(Held(first.run_id, first.fence), "r"))
    assert world.try_claim(nonce="abc") is None


def test_the_oldest_run_goes_first_whatever_its_message(world: World) -> None:
    """A message is a hint: runs are claimed in the order of their enqueue."""
    ids = []
    for _ in range(3):
        ids.append(world.enqueue())
        world.wait_until_ms(world.now_ms())
    assert [world.claim().run_id for _ in ids] == ids


def test_a_continued_run_goes_before_those_that_never_ran(world: World) -> None:
    """A handed over run and a parked one that is due; a next attempt queues up at the end."""
    handed, parked, again = (world.running() for _ in range(3))
    fresh = world.enqueue()
    world.wait_until_ms(world.now_ms())
    world.do(release(again, world.op(), continued=False))
    world.do(release(parked, world.op(), "parked", due_in_ms=0))
    world.wait_until_ms(world.now_ms())
    assert world.do(sweep.sweep_parked(PREFIX)) == [parked.run_id]
    world.wait_until_ms(world.now_ms())
    world.do(release(handed, world.op()))
    order = [world.claim().run_id for _ in range(4)]
    assert order == [parked.run_id, handed.run_id, fresh, again.run_id]
    assert world.events(handed.run_id)[-1] == "run.continued"
    assert world.events(again.run_id)[-1] == "attempt.started"
    assert [world.number(each, "attempt") for each in order] == [1, 1, 1, 2]


def test_only_served_agents_are_claimed_and_the_oldest_among_them(world: World) -> None:
    """A worker that knows two agents takes turns by age; what nobody serves waits."""
    waits = world.enqueue(agent="unknown")
    ids = []
    for agent in ("billing", "support", "billing"):
        ids.append(world.enqueue(agent=agent))
        world.wait_until_ms(world.now_ms())
    agents = ["support", "billing", "never-seen"]
    assert [world.claim(agents=agents).run_id for _ in ids] == ids
    assert world.try_claim(agents=agents) is None
    assert world.try_claim(agents=[]) is None
    assert world.state(waits) == State.QUEUED


def test_an_expired_run_is_not_claimed(world: World) -> None:
    """It is left to the sweeper, and the next one is taken."""
    old = world.enqueue(expires_in_ms=1)
    fresh = world.enqueue()
    world.wait_until_ms(world.number(old, "expires_at"))
    assert world.claim().run_id == fresh
    assert world.try_claim() is None
    assert world.state(old) == State.QUEUED


def test_a_continuation_keeps_its_attempt_and_a_next_attempt_begins_anew(world: World) -> None:
    """What is charged to the attempt goes on in one case and is zero in the other."""
    held = world.running()
    world.do(intent(held, world.op()))
    world.do(outcome(held, world.op(), "a", ends=1))
    world.wait_until_ms(world.number(held.run_id, "claimed_at"))
    world.do(release(held, world.op(), sends=3, l2_used_ms=40, max_continuations=10))
    held = world.claim()
    kept = ("attempt", "step", "ended_step", "sends", "l2_used_ms", "continuations")
    assert [world.number(held.run_id, name) for name in kept] == [1, 1, 1, 3, 40, 1]
    assert world.number(held.run_id, "l3_used_ms") >= 1
    started = world.record(held.run_id)["started_at"]
    world.do(release(held, world.op(), continued=False))
    held = world.claim()
    assert [world.number(held.run_id, name) for name in kept] == [2, 0, 0, 0, 0, 0]
    assert world.number(held.run_id, "l3_used_ms") == 0
    assert world.record(held.run_id)["started_at"] == started
    assert held.fence.startswith("3:")


@pytest.mark.contract("D9")
def test_two_workers_at_once_never_get_the_same_run(store_url: str) -> None:
    """Eight threads claim 200 runs on a real server: each run goes to exactly one of them."""
    setup = SyncStore(store_url)
    given = {
        "agent": AGENT,
        "session": None,
        "key": None,
        "body": b"1",
        "input_digest": "d",
        "expires_in_ms": None,
    }
    setup.do_all([enqueue_run(run_id=keys.new_run_id(SHARD), **given) for _ in range(200)])  # type: ignore[arg-type]
    gate = threading.Barrier(8)
    claimed: list[str] = []

    def work(number: int) -> None:
        store = SyncStore(store_url)
        gate.wait()
        for turn in range(200):
            op = claim_run(shard_prefix=PREFIX, nonce=f"{number}-{turn}", worker=f"w{number}", agents=[AGENT])
            claim = store.do(op)
            if claim is None:
                break
            claimed.append(claim.run_id)
        store.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    setup.close()
    assert len(claimed) == len(set(claimed)) == 200


def test_a_worker_that_serves_other_agents_keeps_no_run_waiting(world: World) -> None:
    """Each agent is swept for itself: neither a look at another agent nor its claims hide a run."""
    mine = world.enqueue()
    world.enqueue(agent="other")
    world.raw.zadd(f"{PREFIX}queued:{AGENT}", {mine: world.now_ms() - sweep.QUIET_MS - 1000})
    assert world.do(sweep.sweep_queued(PREFIX, ["other"])) == []
    assert world.do(claim_run(shard_prefix=PREFIX, nonce="n1", worker="w", agents=["other"])) is not None
    assert world.do(sweep.sweep_queued(PREFIX, [AGENT])) == [mine]

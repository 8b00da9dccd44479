"""Runs in the store: how they are let go of, woken, cancelled and ended, and what is counted."""

from __future__ import annotations

import pytest

from makegood.errors import Conflict, RunNotFound
from makegood.store import keys
from makegood.store.codes import TooManyContinuations
from makegood.store.ops import reads, sweep
from makegood.store.ops.cleanup import end_cleanup, open_review
from makegood.store.ops.review import read_audit, request_cleanup
from makegood.store.ops.runs import Cleaning, cancel_run
from makegood.store.states import State
from support.review import claim_cleanup
from support.store import AGENT, PREFIX, SHARD, World
from support.store_ops import end, note, release


def end_cleanup_of(world: World, state: State) -> None:
    """The cleanup that is due is claimed and finds everything made good."""
    held = claim_cleanup(world)
    world.do(end_cleanup(run_id=held.run_id, fence=held.fence, op=world.op(), target=state))
    assert world.state(held.run_id) == state


def cancel(world: World, run_id: str, actor: str = "ada") -> tuple[bool, str]:
    """Ask a run to stop: whether that changed anything, and its state."""
    answer = world.do(cancel_run(run_id=run_id, cause="user", actor=actor, reason="r"))
    return answer.accepted, str(answer.state)


# --- release and park -----------------------------------------------------------------------------------------------


def test_an_attempt_is_continued_only_so_often(world: World) -> None:
    """The limit refuses with nothing written; a park does not count."""
    world.enqueue()
    for _ in range(2):
        world.do(release(world.claim(), world.op(), max_continuations=2))
    held = world.claim()
    before = world.dump()
    with pytest.raises(TooManyContinuations, match="2 times"):
        world.do(release(held, world.op(), max_continuations=2))
    assert world.dump() == before
    world.do(release(held, world.op(), "parked"))
    assert world.state(held.run_id) == State.PARKED


def test_a_parked_run_waits_until_it_is_due(world: World) -> None:
    """No worker holds it, nobody can claim it, and the sweeper wakes it once."""
    held = world.running()
    world.do(release(held, world.op(), "parked", due_in_ms=150))
    record = world.record(held.run_id)
    assert "worker" not in record
    assert world.try_claim() is None
    if world.now_ms() < int(record["due_at"]):
        assert world.do(sweep.sweep_parked(PREFIX)) in ([], [held.run_id])
    world.wait_until_ms(int(record["due_at"]))
    world.do(sweep.sweep_parked(PREFIX))
    assert world.state(held.run_id) == State.QUEUED
    assert world.do(sweep.sweep_parked(PREFIX)) == []
    assert world.claim().run_id == held.run_id


def test_a_run_is_let_go_of_to_the_queue_or_parked_and_nowhere_else(world: World) -> None:
    """An end has an operation of its own."""
    held = world.running()
    before = world.dump()
    with pytest.raises(Conflict):
        world.do(release(held, world.op(), "succeeded"))
    assert world.dump() == before


# --- sweeps ---------------------------------------------------------------------------------------------------------


def test_expired_runs_end_once(world: World) -> None:
    """Those that waited too long; others stay, and so does a run that was claimed in time."""
    taken = world.running(expires_in_ms=30)
    old = world.enqueue(expires_in_ms=30)
    stays = [world.enqueue(expires_in_ms=60_000), world.enqueue()]
    world.wait_until_ms(world.number(old, "expires_at"))
    assert world.do(sweep.sweep_expired(PREFIX)) == [old]
    assert world.do(sweep.sweep_expired(PREFIX)) == []
    assert world.state(old) == State.EXPIRED
    assert world.record(old)["error_code"] == "EXPIRED"
    assert world.events(old) == ["run.enqueued", "run.ended"]
    assert [world.state(each) for each in stays] == [State.QUEUED] * 2
    assert world.state(taken.run_id) == State.RUNNING
    assert world.counters()[f"runs_finished_total|{AGENT}|expired"] == 1


def test_a_sweep_does_a_bounded_amount_of_work(world: World) -> None:
    """The rest waits for the next sweep."""
    ids = [world.enqueue(expires_in_ms=1) for _ in range(5)]
    world.wait_until_ms(world.number(ids[-1], "expires_at"))
    assert [len(world.do(sweep.sweep_expired(PREFIX, limit=2))) for _ in range(4)] == [2, 2, 1, 0]
    parked = [world.running() for _ in range(3)]
    for held in parked:
        world.do(release(held, world.op(), "parked", due_in_ms=0))
    world.wait_until_ms(world.now_ms())
    assert [len(world.do(sweep.sweep_parked(PREFIX, limit=2))) for _ in range(3)] == [2, 1, 0]


def quiet_time_passes(world: World) -> None:
    """Nobody has looked at the shard for a while."""
    for name in world.raw.keys(f"{PREFIX}sweep:*"):
        world.raw.delete(name)


def test_queued_runs_that_nobody_claims_are_found(world: World) -> None:
    """Once per quiet time and shard, only served agents, and not while runs are being claimed."""
    ids = [world.enqueue(), world.enqueue()]
    world.enqueue(agent="other")
    assert world.do(sweep.sweep_queued(PREFIX, [AGENT])) == []
    quiet_time_passes(world)
    for run_id in ids:
        world.raw.zadd(f"{PREFIX}queued:{AGENT}", {run_id: world.now_ms() - sweep.QUIET_MS - 1000})
    assert sorted(world.do(sweep.sweep_queued(PREFIX, [AGENT]))) == sorted(ids)
    assert world.do(sweep.sweep_queued(PREFIX, [AGENT])) == []
    quiet_time_passes(world)
    world.claim()
    assert world.do(sweep.sweep_queued(PREFIX, [AGENT])) == []
    assert world.raw.keys(f"{PREFIX}sweep:*") == []


# --- cancel ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", ["queued", "parked", "handed over"])
def test_a_waiting_run_ends_at_once(world: World, waits: str) -> None:
    """It leaves every queue; nobody can claim it any more."""
    if waits == "queued":
        run_id = world.enqueue(expires_in_ms=1)
    else:
        held = world.running()
        run_id = held.run_id
        world.do(release(held, world.op(), "parked" if waits == "parked" else "queued", due_in_ms=0))
    assert cancel(world, run_id) == (True, "cancelled")
    assert world.state(run_id) == State.CANCELLED
    assert world.events(run_id)[-1] == "run.ended"
    world.wait_until_ms(world.now_ms() + 2)
    assert world.do(sweep.sweep_parked(PREFIX)) == world.do(sweep.sweep_expired(PREFIX)) == []
    assert world.try_claim() is None
    assert cancel(world, run_id) == (False, "cancelled")
    assert world.counters()[f"runs_finished_total|{AGENT}|cancelled"] == 1


@pytest.mark.contract("F2")
def test_a_running_run_is_told_and_only_the_audit_log_says_who_asked(world: World) -> None:
    """The worker reads it from the shard's list, and ends the run itself."""
    held = world.running()
    assert cancel(world, held.run_id, actor="ada") == (True, "running")
    assert cancel(world, held.run_id, actor="bob") == (False, "running")
    assert world.do(reads.read_cancels(PREFIX)) == {held.run_id: "user"}
    assert [(each["action"], each["actor"]) for each in world.do(read_audit(held.run_id))] == [
        ("cancel", "ada")
    ]
    shown = repr(world.raw.xrange(keys.events_key(held.run_id))) + repr(world.record(held.run_id))
    assert "ada" not in shown
    world.do(end(held, world.op(), State.CANCELLED))
    assert world.do(reads.read_cancels(PREFIX)) == {}


def test_a_repeated_cancel_is_answered_and_written_down_once(world: World) -> None:
    """The client's repetition, of a queued and of a running run."""
    for run_id in (world.enqueue(), world.running(agent="other").run_id):
        op = cancel_run(run_id=run_id, cause="user", actor="ada", reason="")
        first = world.do(op)
        before = world.dump()
        assert world.do(op) == first
        assert world.dump() == before
        assert first.accepted


def test_a_cancel_is_not_lost_when_the_run_is_let_go_of_at_that_moment(world: World) -> None:
    """A run that was told and parked meanwhile is due at once, and may be cancelled again where it waits."""
    held = world.running()
    cancel(world, held.run_id)
    world.do(release(held, world.op(), "parked", due_in_ms=3_600_000))
    assert world.number(held.run_id, "due_at") <= world.now_ms()
    assert world.do(reads.read_cancels(PREFIX)) == {}
    assert world.record(held.run_id)["cancel"] == "user"
    assert cancel(world, held.run_id) == (True, "cancelled")
    assert world.state(held.run_id) == State.CANCELLED


def test_a_run_in_review_cannot_be_cancelled(world: World) -> None:
    """A conflict, and nothing is written (invariant 18)."""
    run_id = world.enqueue()
    world.put_in_state(run_id, State.REVIEW)
    before = world.dump()
    with pytest.raises(Conflict, match="requires_manual_review"):
        cancel(world, run_id)
    assert world.dump() == before


def test_a_cancel_during_cleaning_sets_the_verdict_and_stops_nothing(world: World) -> None:
    """Once; who asked stands in the audit log (invariant 18)."""
    run_id = world.enqueue()
    world.put_in_state(run_id, State.CLEANING)
    assert cancel(world, run_id) == (True, "cleaning")
    assert world.state(run_id) == State.CLEANING
    assert world.record(run_id)["cl_cancelled"] == "1"
    assert world.do(reads.read_cancels(PREFIX)) == {}
    before = world.dump()
    assert cancel(world, run_id) == (False, "cleaning")
    assert world.dump() == before


def test_cancelling_an_unknown_run_says_so(world: World) -> None:
    """One sentence, nothing written."""
    with pytest.raises(RunNotFound, match="There is no run"):
        cancel(world, keys.new_run_id(SHARD))
    assert world.dump() == {}


# --- end and counters -----------------------------------------------------------------------------------------------


def test_an_end_leaves_nothing_behind_in_the_indexes(world: World) -> None:
    """State, time, output and error in the record; the run stands in one gauge and in the retention list only."""
    held = world.running()
    world.do(note(held, world.op()))
    world.do(end(held, world.op(), State.FAILED, code="BUG", message="It broke.", output=b"null"))
    record = world.record(held.run_id)
    assert (record["error_code"], record["error_message"], record["output"]) == ("BUG", "It broke.", "null")
    assert abs(int(record["ended_at"]) - world.now_ms()) < 60_000
    assert "activity" not in record
    where = [name for name, (_, content) in world.dump().items() if held.run_id in repr(content)]
    expected = {f"{PREFIX}claim:nonce-1", f"{PREFIX}retain", keys.run_key(held.run_id)}
    assert set(where) - {keys.events_key(held.run_id)} == expected | {
        keys.state_index(PREFIX, AGENT, "failed")
    }
    assert world.try_claim() is None


@pytest.mark.contract("I2")
@pytest.mark.parametrize("state", ["succeeded", "failed", "timed_out", "cancelled"])
def test_a_run_counts_once(world: World, state: str) -> None:
    """Whatever is repeated, and also when an operator has it cleaned up and it ends again."""
    held = world.settled()
    for _ in range(2):
        assert world.do(end(held, "op-e", State(state))) == state
    asked = request_cleanup(run_id=held.run_id, undo_succeeded=True, actor="ada", reason="r")
    world.do(asked)
    assert world.state(held.run_id) == State.CLEANING
    end_cleanup_of(world, state)
    finished = {name: value for name, value in world.counters().items() if name.startswith("runs_finished")}
    assert finished == {f"runs_finished_total|{AGENT}|{state}": 1}


@pytest.mark.contract("I2")
def test_a_timed_out_run_with_nothing_to_clean_counts_as_cleaned(world: World) -> None:
    """So does one that was cleaned up, once it is; one that waits for a person does not."""

    def counted() -> dict[str, int]:
        found = {name: value for name, value in world.counters().items() if name.startswith("timed_out")}
        return {name.rpartition("|")[2]: value for name, value in found.items()}

    dirty = Cleaning("timeout", State.TIMED_OUT, "policy")
    assert world.do(end(world.running(), world.op(), State.TIMED_OUT)) == State.TIMED_OUT
    assert counted() == {"yes": 1}
    assert world.do(end(world.settled(), world.op(), State.TIMED_OUT, cleaning=dirty)) == State.CLEANING
    assert counted() == {"yes": 1}
    end_cleanup_of(world, State.TIMED_OUT)
    assert counted() == {"yes": 2}
    assert world.do(end(world.in_step(), world.op(), State.TIMED_OUT)) == State.CLEANING
    held = claim_cleanup(world)
    world.do(
        open_review(run_id=held.run_id, fence=held.fence, op=world.op(), code="C", message="m", items=b"[]")
    )
    assert counted() == {"yes": 2, "no": 1}


@pytest.mark.contract("I2")
def test_a_retried_run_counts_as_such_once(world: World) -> None:
    """A second attempt does, a continuation does not."""
    held = world.running()
    world.do(release(held, world.op()))
    world.do(end(world.claim(), world.op()))
    assert not [name for name in world.counters() if name.startswith("retried")]
    held = world.running()
    for _ in range(2):
        world.do(release(held, world.op(), continued=False))
        held = world.claim()
    world.do(end(held, world.op()))
    assert world.counters()[f"retried_runs_total|{AGENT}|succeeded"] == 1

"""What arrives a second time when others have come since: from a connection that was given up, or a worker that was."""

from __future__ import annotations

from typing import Any

import pytest

from makegood.errors import StaleFence
from makegood.store.ops import cleanup, leases, locks, review, runs
from makegood.store.ops.cleanup import UndoStart
from makegood.store.scripts import Op
from makegood.store.states import State
from support.review import Made, claim_cleanup, ended, line, worked
from support.store import PREFIX, World
from support.store_ops import Held, acquire, declare, end, intent, outcome, register, settle, unregister

HOTEL = Made("hotel")


def in_cleaning(world: World) -> Held:
    """A run whose hotel is to be undone."""
    ended(world, HOTEL, cause="failure")
    return claim_cleanup(world)


def starting(world: World, held: Held) -> Op[UndoStart]:
    """A try of the hotel's compensation."""
    return cleanup.start_undo(
        run_id=held.run_id,
        fence=held.fence,
        op=world.op(),
        row_id=HOTEL.row_id,
        round_=1,
        tries=3,
        activity=b"{}",
    )


def ending(world: World, held: Held, status: Any) -> Op[int]:
    """How it ended."""
    return cleanup.end_undo(
        run_id=held.run_id,
        fence=held.fence,
        op=world.op(),
        row_id=HOTEL.row_id,
        tool="hotel",
        status=status,
        detail=b"{}",
    )


def late(world: World, op: Op[Any]) -> Any:
    """Send it again: nothing changes."""
    before = world.dump()
    answer = world.do(op)
    assert world.dump() == before
    return answer


@pytest.mark.contract("E9")
def test_the_end_of_a_try_that_comes_again_does_not_end_the_next_one(world: World) -> None:
    """Else the success of that one would be refused, and the compensation run again."""
    held = in_cleaning(world)
    first = ending(world, held, "failed")
    world.do(starting(world, held))
    world.do(first)
    world.do(starting(world, held))
    late(world, first)
    world.do(ending(world, held, "succeeded"))
    assert line(world, held.run_id, HOTEL, "u")[0] == "succeeded"


@pytest.mark.contract("E8", "E9")
def test_the_start_of_a_try_that_comes_again_begins_none(world: World) -> None:
    """There is nothing to do: that try has ended, and another one may be under way."""
    held = in_cleaning(world)
    first = starting(world, held)
    assert world.do(first).number == 1
    world.do(ending(world, held, "failed"))
    assert late(world, first) == UndoStart(None, "failed")
    second = starting(world, held)
    assert world.do(second).number == 2
    assert late(world, first) == UndoStart(None, "started")
    assert late(world, second).number == 2


@pytest.mark.contract("E8")
def test_a_roll_back_that_comes_again_is_no_further_try(world: World) -> None:
    """Each counts once."""
    held = world.running()
    world.do(declare(held, world.op()))
    world.do(end(held, world.op(), State.FAILED))
    held = claim_cleanup(world)
    first = settle(held, world.op(), "failed", round_=1)
    assert world.do(first).tries == 1
    assert world.do(settle(held, world.op(), "failed", round_=1)).tries == 2
    late(world, first)
    assert world.do(settle(held, world.op(), "rolled_back", round_=1)).tries == 3


@pytest.mark.contract("D2")
def test_an_outcome_that_comes_again_says_nothing_about_the_repeat_of_its_call(world: World) -> None:
    """The repeat is under way under the same key, and its own outcome counts."""
    held = world.running()
    world.do(intent(held, world.op()))
    first = outcome(held, world.op(), "a", status="unknown", ends=1)
    world.do(first)
    world.do(intent(held, world.op(), step=2))
    late(world, first)
    world.do(outcome(held, world.op(), "a", ends=2))
    assert world.row(held.run_id, "a")[0] == "succeeded"
    assert world.number(held.run_id, "fx_unknown") == 0


@pytest.mark.contract("E7", "J26")
def test_a_lock_that_was_given_back_is_not_taken_again_by_an_old_send(world: World) -> None:
    """Also when the lock was taken and given back by others since: nobody would release it."""
    held = world.running()
    sends = []
    for holder in ("h1", "h2", "h3"):
        world.do(register(held, world.op(), holder=holder))
        sends.append(acquire(held, holder))
        assert world.do(sends[-1]).token
        back = locks.release_lock(run_id=held.run_id, fence=held.fence, holder=holder, name="account")
        assert world.do(back)
        assert world.do(back)
        world.do(unregister(held, world.op(), holder=holder))
    for send in sends:
        late(world, send)
    assert "owner" not in world.do(locks.read_lock("account"))


@pytest.mark.contract("E7", "J26")
def test_an_acquisition_that_was_given_up_takes_no_lock_later(world: World) -> None:
    """Somebody else had it until its time was over; when it is free nobody waits for it any more."""
    other, held = world.running(), world.running()
    world.do(acquire(other, "theirs"))
    send = acquire(held, "h1")
    assert world.do(send).token is None
    given_up = locks.release_lock(run_id=held.run_id, fence=held.fence, holder="h1", name="account")
    assert not world.do(given_up)
    assert world.do(locks.read_lock("account"))["holder"] == "theirs"
    world.do(locks.release_lock(run_id=other.run_id, fence=other.fence, holder="theirs", name="account"))
    assert late(world, send).token is None
    assert not late(world, given_up)
    assert world.do(acquire(held, "h2")).token


@pytest.mark.contract("D9")
def test_a_run_that_ended_for_a_lost_worker_is_not_ended_again_by_it(world: World) -> None:
    """It was told to stop and its worker was lost, so it is cancelled; that worker is still there and knows of effects."""
    held = world.running()
    world.do(runs.cancel_run(run_id=held.run_id, cause="user", actor="ada", reason=""))
    world.do(leases.lose_worker(PREFIX, "worker-1", only_expired=False, death=True))
    assert world.state(held.run_id) == State.CANCELLED
    before = world.dump()
    with pytest.raises(StaleFence):
        world.do(
            end(held, world.op(), State.FAILED, cleaning=runs.Cleaning("failure", State.FAILED, "policy"))
        )
    assert world.dump() == before


@pytest.mark.contract("E11")
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.TIMED_OUT])
def test_a_cancel_that_came_too_late_is_not_the_verdict_of_a_later_cleanup(
    world: World, state: State
) -> None:
    """The run had ended otherwise, and keeps that end when an operator has it cleaned up."""
    held = worked(world, [HOTEL])
    world.do(runs.cancel_run(run_id=held.run_id, cause="user", actor="ada", reason=""))
    assert world.do(end(held, world.op(), state)) == state
    asked = review.request_cleanup(run_id=held.run_id, undo_succeeded=True, actor="ada", reason="")
    assert world.do(asked).result == "requested"
    held = claim_cleanup(world)
    op = cleanup.end_cleanup(run_id=held.run_id, fence=held.fence, op=world.op(), target=state)
    assert world.do(op) == state

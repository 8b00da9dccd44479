"""Calls that the store has lost are put back by the worker that made them (invariant 3); where nothing is lost nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from makegood.errors import RunNotFound, StaleFence
from makegood.store import keys
from makegood.store.ops.args import NewEvent
from makegood.store.ops.cleanup import claim_cleanup
from makegood.store.ops.leases import lose_worker
from makegood.store.ops.reads import read_journal
from makegood.store.ops.restore import KnownRow, Restored, read_missing, restore_rows
from makegood.store.ops.review import request_cleanup
from makegood.store.states import State
from support.store import AGENT, PREFIX, SHARD, World
from support.store_ops import Held, end, intent, outcome, release

BEGAN_MS = 1_700_000_000_000


def known(name: str = "a", status: str = "unknown", *, effect: bool = True) -> KnownRow:
    """A row as its worker has it."""
    event = NewEvent("tool.ended", {"tool": "mail", "status": status, "restored": True}, 3, name)
    return KnownRow(name, b'{"tool":"mail"}', status, b'{"response":1}', BEGAN_MS, 1, effect, event)


def restore(run_id: str, op: str, *rows: KnownRow, attempt: int = 1) -> Any:
    """The operation."""
    return restore_rows(run_id=run_id, op=op, attempt=attempt, rows=rows or (known(),))


def forget(world: World, run_id: str, *names: str) -> None:
    """The store loses rows."""
    for name in names:
        world.raw.hdel(keys.journal_key(run_id), name, f"{name}.s", f"{name}.o")


@pytest.mark.contract("D1", "D9")
def test_a_call_in_flight_whose_claim_was_lost_sends_its_queued_run_to_cleanup(world: World) -> None:
    """Nobody may claim it and make the call again; the row stands as it was known, under the age of its key."""
    run_id = world.enqueue()
    assert world.do(restore(run_id, "op-r")) == Restored(1, State.CLEANING)
    assert world.state(run_id) == State.CLEANING
    assert world.try_claim() is None
    fields = world.do(read_journal(run_id))
    status, began, ended, op, tries = fields["a.s"].decode().split("|")
    assert (status, int(began), op, tries) == ("unknown", BEGAN_MS, "op-r", "1")
    assert int(ended) > BEGAN_MS
    assert (fields["a"], fields["a.o"]) == (b'{"tool":"mail"}', b'{"response":1}')
    record = world.record(run_id)
    assert {name: record[name] for name in ("cl_cause", "cl_target", "cl_end", "cl_code", "cl_undo")} == {
        "cl_cause": "crash",
        "cl_target": "failed",
        "cl_end": "failed",
        "cl_code": "CRASHED",
        "cl_undo": "policy",
    }
    assert (record["fx_unknown"], record["calls"], record["attempt"]) == ("1", "1", "1")
    assert "started_at" in record
    assert world.events(run_id) == ["run.enqueued", "tool.ended"]
    cleanup = world.do(
        claim_cleanup(shard_prefix=PREFIX, nonce="n", worker="w", agents=[AGENT], lease_ms=60_000)
    )
    assert cleanup is not None
    assert cleanup.run_id == run_id


@pytest.mark.parametrize("waiting", ["queued", "parked"])
def test_a_continued_run_that_waits_goes_to_cleanup_too(world: World, waiting: str) -> None:
    """It was let go of before; the claim after that is what was lost, with what it had done."""
    held = world.in_step()
    world.do(outcome(held, world.op(), "a", "b", ends=1))
    world.do(release(held, world.op(), waiting))
    assert world.do(restore(held.run_id, "op-r", known("c"))) == Restored(1, State.CLEANING)
    assert world.state(held.run_id) == State.CLEANING
    assert world.try_claim() is None
    assert (world.number(held.run_id, "fx_committed"), world.number(held.run_id, "fx_unknown")) == (2, 1)
    assert world.raw.zcard(f"{PREFIX}due") == 0


def test_a_success_that_came_back_is_not_done_again_either(world: World) -> None:
    """A claim of a run that looks as if it had never begun would not even look for it."""
    run_id = world.enqueue()
    assert world.do(restore(run_id, "op-r", known(status="succeeded"))) == Restored(1, State.CLEANING)
    assert world.number(run_id, "fx_committed") == 1
    assert world.number(run_id, "fx_unknown") == 0


@pytest.mark.parametrize(
    "row",
    [known(status="failed"), known(status="failed", effect=False), known(status="succeeded", effect=False)],
)
def test_a_run_of_which_no_effect_came_back_goes_on(world: World, row: KnownRow) -> None:
    """What failed, or only read, may be done again."""
    run_id = world.enqueue()
    assert world.do(restore(run_id, "op-r", row)) == Restored(1, State.QUEUED)
    assert world.claim().run_id == run_id


def test_a_run_that_somebody_executes_stays_there_and_ends_through_cleanup(world: World) -> None:
    """The fence does not matter: neither that of the one who puts back, nor the one in the store changes."""
    held = world.running()
    assert world.do(restore(held.run_id, "op-r")) == Restored(1, State.RUNNING)
    world.do(intent(held, world.op(), rows=(("b", "started"),)))
    world.do(outcome(held, world.op(), "b", ends=1))
    assert world.do(end(held, world.op(), State.SUCCEEDED)) == State.CLEANING
    assert world.number(held.run_id, "fx_unknown") == 1


@pytest.mark.parametrize(
    ("state", "target", "undo"),
    [
        ("succeeded", "succeeded", "none"),
        ("failed", "failed", "policy"),
        ("cancelled", "cancelled", "policy"),
    ],
)
def test_a_run_that_has_ended_meanwhile_is_settled_and_keeps_its_end(
    world: World, state: str, target: str, undo: str
) -> None:
    """Somebody else has made an end of it; what the first one left is not forgotten for that."""
    held = world.running()
    world.do(end(held, world.op(), State(state), code="" if state == "succeeded" else "BUG"))
    assert world.do(restore(held.run_id, "op-r")) == Restored(1, State.CLEANING)
    record = world.record(held.run_id)
    assert (record["cl_target"], record["cl_undo"]) == (target, undo)
    assert record["error_code"] == ("" if state == "succeeded" else "BUG")
    assert world.state(held.run_id) == State.CLEANING


def test_a_run_that_is_cleaned_up_already_stays_so(world: World) -> None:
    """Its cleanup cannot end without what came back."""
    held = world.in_step()
    world.do(outcome(held, world.op(), "a", "b", ends=1))
    world.do(end(held, world.op(), State.FAILED))
    world.do(
        request_cleanup(
            run_id=held.run_id, undo_succeeded=False, actor="ann", reason="x", expected_version=None
        )
    )
    before = world.record(held.run_id)
    assert world.do(restore(held.run_id, "op-r", known("c"))) == Restored(1, State.CLEANING)
    after = world.record(held.run_id)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"calls", "fx_unknown"}


@pytest.mark.contract("D9")
def test_after_a_takeover_nothing_is_missing_and_nothing_changes(world: World) -> None:
    """The lease had expired, and another worker goes on: all rows are there, whatever the first one believes of them."""
    held = world.in_step()
    world.do(lose_worker(PREFIX, "worker-1", only_expired=False, death=False))
    taken = world.claim(worker="worker-2")
    world.do(outcome(taken, world.op(), "a"))
    assert world.do(read_missing(held.run_id, ["a", "b"])) == []
    before = world.dump()
    answer = world.do(restore(held.run_id, "op-r", known("a"), known("b", "succeeded")))
    assert answer == Restored(0, State.RUNNING)
    assert world.dump() == before
    assert world.row(held.run_id, "a")[0] == "succeeded"


def test_only_what_is_missing_comes_back(world: World) -> None:
    """The row beside it stays as it is in the store."""
    held = world.in_step((("a", "started"), ("b", "started")))
    world.do(outcome(held, world.op(), "a"))
    forget(world, held.run_id, "b")
    world.raw.hset(keys.run_key(held.run_id), mapping={"fx_open": 0, "open_calls": 0, "calls": 1})
    assert world.do(read_missing(held.run_id, ["a", "b"])) == ["b"]
    answer = world.do(restore(held.run_id, "op-r", known("a", "failed"), known("b", "succeeded")))
    assert answer == Restored(1, State.RUNNING)
    assert [world.row(held.run_id, name)[0] for name in "ab"] == ["succeeded", "succeeded"]
    assert (world.number(held.run_id, "fx_committed"), world.number(held.run_id, "calls")) == (2, 2)


def test_a_repetition_gives_the_first_answer_and_writes_nothing(world: World) -> None:
    """What a client does when a reply is lost; another worker's knowledge of the same row changes nothing either."""
    run_id = world.enqueue()
    op = restore(run_id, "op-r", known("a"), known("b", "succeeded"))
    first = world.do(op)
    before = world.dump()
    assert world.door.do_all([op, op]) == [first, first]
    assert world.do(restore(run_id, "op-other", known("a", "failed"))) == Restored(0, State.CLEANING)
    assert world.dump() == before


def test_a_run_that_is_lost_itself_is_not_found_and_leaves_nothing(world: World) -> None:
    """No half of a record comes into being."""
    run_id = keys.new_run_id(SHARD)
    with pytest.raises(RunNotFound):
        world.do(restore(run_id, "op-r"))
    assert world.dump() == {}


def test_the_attempt_after_the_cleanup_looks_for_what_was_done(world: World) -> None:
    """It has a number of its own, above that of the worker that made the calls; the old fence is of no use."""
    held = world.running()
    fence = Held(held.run_id, held.fence)
    world.do(lose_worker(PREFIX, "worker-1", only_expired=False, death=False))
    world.do(restore(held.run_id, "op-r", attempt=2))
    assert world.number(held.run_id, "attempt") == 2
    with pytest.raises(StaleFence):
        world.do(end(fence, world.op()))

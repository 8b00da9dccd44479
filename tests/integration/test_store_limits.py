"""Limits that are set by hand, and verdicts on runs that timed out, in the store: once, in order, with an audit log."""

from __future__ import annotations

from typing import Any

import pytest

from makegood.errors import Conflict, RunNotFound, StaleFence
from makegood.store import keys
from makegood.store.ops import limits, review, runs
from makegood.store.ops.breakers import server_time
from makegood.store.ops.cleanup import note_cleanup, open_review
from makegood.store.ops.numbers import HOUR_MS, read_hour
from makegood.store.scripts import Op
from makegood.store.states import State
from support.review import claim_cleanup
from support.store import AGENT, PREFIX, SHARD, World
from support.store_ops import Held, end

CODES = ("STEP_TIMEOUT", "RUN_TIMEOUT", "TOTAL_TIMEOUT")


def judging(run_id: str, verdict: str, **over: Any) -> Op[limits.Judged]:
    """A verdict of the person on call."""
    given = {"actor": "ada", "reason": "looked downstream"} | over
    return limits.judge_timeout(run_id=run_id, verdict=verdict, **given)


def verdicts(world: World) -> dict[str, int]:
    """How often each verdict was counted, for ever and in this hour; both must agree."""
    name = f"timeout_verdicts_total|{AGENT}|"
    found = {key.removeprefix(name): n for key, n in world.counters().items() if key.startswith(name)}
    now_ms = world.do(server_time())
    hours: dict[str, int] = {}
    for hour in (now_ms // HOUR_MS - 1, now_ms // HOUR_MS):
        for key, count in world.do(read_hour(PREFIX, hour)).items():
            if key.startswith(name):
                hours[key.removeprefix(name)] = hours.get(key.removeprefix(name), 0) + count
    assert hours == found
    return found


def timed_out(world: World, code: str = "RUN_TIMEOUT") -> str:
    """A run that ended so, with nothing to clean up."""
    held = world.running()
    world.do(end(held, world.op(), State.TIMED_OUT, code=code, message="It took too long."))
    assert world.state(held.run_id) == State.TIMED_OUT
    return held.run_id


def in_cleaning(world: World, *, target: State = State.TIMED_OUT) -> str:
    """A run that timed out and is to be cleaned up first."""
    held = world.running()
    how = runs.Cleaning("timeout", target, "policy")
    world.do(
        runs.end_run(
            run_id=held.run_id, fence=held.fence, op=world.op(), state=State.TIMED_OUT, code="STEP_TIMEOUT",
            message="It took too long.", cleaning=how,
        )
    )  # fmt: skip
    return held.run_id


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("A7")
def test_a_limit_is_set_changed_and_taken_back_with_an_audit_log(world: World) -> None:
    """Who, what, from, to, why; each answer says what was there before."""
    assert world.do(limits.read_limits()) == {}
    assert world.do(limits.set_limit("call|look", 2.5, "ada", "too slow")) is None
    assert world.do(limits.set_limit("call|look", 0.001, "bob", "")) == 2.5
    assert world.do(limits.set_limit("run|a", 1e9, "bob", "")) is None
    assert world.do(limits.read_limits()) == {"call|look": 0.001, "run|a": 1e9}
    assert world.do(limits.set_limit("call|look", None, "ada", "as before")) == 0.001
    assert world.do(limits.set_limit("call|none", None, "ada", "")) is None
    assert world.do(limits.read_limits()) == {"run|a": 1e9}
    log = [(c.field, c.from_s, c.to_s, c.actor, c.reason) for c in world.do(limits.read_limit_changes())]
    assert log == [
        ("call|look", None, 2.5, "ada", "too slow"),
        ("call|look", 2.5, 0.001, "bob", ""),
        ("run|a", None, 1e9, "bob", ""),
        ("call|look", 0.001, None, "ada", "as before"),
        ("call|none", None, None, "ada", ""),
    ]
    assert world.do(limits.read_limit_changes(world.now_ms() + 1000)) == []


@pytest.mark.contract("A7")
def test_a_change_whose_answer_was_lost_is_made_once(world: World) -> None:
    """The repetition gets the first answer and writes nothing, though another one came between."""
    first = limits.set_limit("step|a", 5, "ada", "")
    assert world.do(first) is None
    world.do(limits.set_limit("step|a", 7, "bob", ""))
    assert world.do(first) is None
    assert world.do(limits.read_limits()) == {"step|a": 7}
    assert len(world.do(limits.read_limit_changes())) == 2


@pytest.mark.parametrize("garbage", ["", "soon", "nan", "inf", "-1", "0"])
def test_what_is_no_limit_is_left_out(world: World, garbage: str) -> None:
    """Somebody wrote into the hash by hand: a worker goes by what was declared."""
    world.raw.hset(keys.LIMITS, mapping={"call|look": garbage, "run|a": "3"})
    assert world.do(limits.read_limits()) == {"run|a": 3}


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.contract("A8")
@pytest.mark.parametrize("code", CODES)
def test_a_verdict_counts_once_and_stays(world: World, code: str) -> None:
    """The same again has the same answer, whoever gives it; it stands in the record and in the audit log."""
    run_id = timed_out(world, code)
    version = world.record(run_id)["version"]
    told = judging(run_id, "false_kill")
    first = world.do(told)
    assert (first.verdict, first.by) == ("false_kill", "ada")
    assert world.do(told) == first
    assert world.do(judging(run_id, "false_kill", actor="bob|b")) == first
    assert verdicts(world) == {"false_kill": 1}
    record = world.record(run_id)
    assert (record["to_verdict"], record["to_by"], int(record["to_at"])) == ("false_kill", "ada", first.at_ms)
    assert (record["version"], world.state(run_id)) == (version, State.TIMED_OUT)
    (entry,) = world.do(review.read_audit(run_id))
    assert (entry["action"], entry["actor"], entry["detail"]) == (
        "timeout_verdict",
        "ada",
        {"verdict": "false_kill"},
    )
    assert world.counters()["operator_actions_total|timeout_verdict|done"] == 1


@pytest.mark.contract("A8")
@pytest.mark.parametrize("known", ["true_kill", "false_kill"])
def test_a_definite_verdict_follows_unknown_and_nothing_follows_it(world: World, known: str) -> None:
    """Both are counted; another one is a conflict that names who judged, and changes nothing."""
    run_id, other = timed_out(world), {"true_kill": "false_kill", "false_kill": "true_kill"}[known]
    world.do(judging(run_id, "unknown"))
    world.do(judging(run_id, known, actor="bob"))
    for verdict in (other, "unknown"):
        with pytest.raises(Conflict, match=f"was judged {known} by bob") as caught:
            world.do(judging(run_id, verdict))
        assert str(caught.value).endswith(".")
    assert verdicts(world) == {"unknown": 1, known: 1}
    assert world.record(run_id)["to_verdict"] == known
    assert len(world.do(review.read_audit(run_id))) == 2


@pytest.mark.contract("A8")
def test_runs_in_cleaning_in_review_and_resolved_can_be_judged(world: World) -> None:
    """As long as they end because of a limit."""
    run_id = in_cleaning(world)
    assert world.do(judging(run_id, "unknown")).verdict == "unknown"
    held = claim_cleanup(world)
    world.do(
        open_review(
            run_id=run_id, fence=held.fence, op=world.op(), code="X", message="It is stuck.", items=b"[]"
        )
    )
    assert world.state(run_id) == State.REVIEW
    assert world.do(judging(run_id, "unknown")).verdict == "unknown"
    world.do(review.decide_review(run_id=run_id, action="resolve", actor="ada", reason="so be it"))
    assert world.do(judging(run_id, "true_kill")).verdict == "true_kill"
    assert verdicts(world) == {"unknown": 1, "true_kill": 1}


def failed(world: World) -> str:
    """A run that failed."""
    held = world.running()
    world.do(end(held, world.op(), State.FAILED, code="BUG", message="It broke."))
    return held.run_id


def cancelled(world: World) -> str:
    """A run whose cancel came while it was cleaned up after a timeout."""
    run_id = in_cleaning(world)
    world.do(runs.cancel_run(run_id=run_id, cause="user", actor="ada", reason=""))
    return run_id


@pytest.mark.contract("A8")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (failed, r"is failed \(BUG\)"),
        (lambda world: world.running().run_id, "is running"),
        (lambda world: world.enqueue(), "is queued"),
        (lambda world: in_cleaning(world, target=State.QUEUED), r"is cleaning \(STEP_TIMEOUT\)"),
        (cancelled, r"is cleaning \(CANCELLED\)"),
    ],
)
def test_only_a_run_that_timed_out_is_judged(world: World, make: Any, says: str) -> None:
    """One that failed, goes on, begins anew or was cancelled is a conflict, and nothing is counted."""
    run_id = make(world)
    with pytest.raises(Conflict, match=f"Run {run_id} {says}"):
        world.do(judging(run_id, "true_kill"))
    assert "to_verdict" not in world.record(run_id)
    assert verdicts(world) == {}


def test_a_run_that_is_not_there_is_not_found(world: World) -> None:
    """By its id."""
    with pytest.raises(RunNotFound):
        world.do(judging(keys.new_run_id(SHARD), "unknown"))


@pytest.mark.contract("A8")
def test_the_verdict_of_verify_needs_the_fence_of_its_cleanup(world: World) -> None:
    """A cleanup that was taken over judges no more; a repetition is answered; what it was doing is over."""
    run_id = in_cleaning(world)
    held = claim_cleanup(world)
    named = {"run_id": run_id, "fence": held.fence}
    world.do(note_cleanup(**named, op=world.op(), activity=b'{"activity":"verifying"}'))
    assert world.record(run_id)["cl_open"] == "1"
    with pytest.raises(StaleFence):
        world.do(judging(run_id, "true_kill", fence="1:older", op=world.op()))
    told = judging(run_id, "true_kill", fence=held.fence, op=world.op(), actor="verify")
    assert world.do(told) == world.do(told)
    assert verdicts(world) == {"true_kill": 1}
    record = world.record(run_id)
    assert "cl_open" not in record
    assert "activity" not in record
    assert "operator_actions_total|timeout_verdict|done" not in world.counters()


def test_a_run_that_is_judged_stays_held_as_it_was(world: World) -> None:
    """A verdict moves nothing: the cleanup that is under way ends as it would have."""
    run_id = in_cleaning(world)
    held = claim_cleanup(world)
    world.do(judging(run_id, "false_kill"))
    assert world.record(run_id)["fence"] == Held(run_id, held.fence).fence
    assert world.state(run_id) == State.CLEANING

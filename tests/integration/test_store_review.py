"""What operators decide, in the store: who may go where, what is counted, written down, and answered once."""

from __future__ import annotations

from typing import Any, Literal

import orjson
import pytest

from makegood.errors import Conflict, RunNotFound
from makegood.store import keys
from makegood.store.ops import cleanup, review, runs
from makegood.store.scripts import Op
from makegood.store.states import State
from makegood.tasks.operate import foresee
from support.review import (
    FAILED,
    Made,
    claim_cleanup,
    effects,
    ended,
    in_review,
    line,
    undo,
    worked,
)
from support.store import AGENT, PREFIX, SHARD, World
from support.store_ops import end, register

WHO: dict[str, Any] = {"actor": "ada", "reason": "checked with the hotel"}

HOTEL = Made("hotel", undo="failed")
FLIGHT = Made("flight", undo="succeeded")
MAIL = Made("mail", status="unknown")
LOST = Made("lost", status="started")
BANNER = Made("banner", effect="irreversible")


def decide(world: World, run_id: str, action: Any, version: int | None = None) -> review.Decided:
    """Decide as the person on call."""
    return world.do(review.decide_review(run_id=run_id, action=action, expected_version=version, **WHO))


def marking(run_id: str, call: Made, mark: Any, version: int | None = None) -> Op[review.Marked]:
    """Mark a call as the person on call."""
    return review.mark_call(
        run_id=run_id, row_id=call.row_id, call_key=call.call_key, tool=call.tool, mark=mark,
        body=b'{"response":null,"response_digest":null,"error":null}', expected_version=version, **WHO,
    )  # fmt: skip


def requesting(run_id: str, *, undo_succeeded: bool = False, version: int | None = None) -> Op[Any]:
    """Ask for a cleanup as the person on call."""
    return review.request_cleanup(
        run_id=run_id, undo_succeeded=undo_succeeded, expected_version=version, **WHO
    )


def end_cleanup(world: World, state: State = State.FAILED) -> State:
    """Claim the cleanup that is due and end it."""
    held = claim_cleanup(world)
    return world.do(cleanup.end_cleanup(run_id=held.run_id, fence=held.fence, op=world.op(), target=state))


def audited(world: World, run_id: str) -> list[tuple[str, str, str]]:
    """Action, actor and reason of what stands in the run's audit log."""
    entries = world.do(review.read_audit(run_id))
    return [(each["action"], each["actor"], each["reason"]) for each in entries]


# --- retry ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11", "E8", "J27")
def test_a_retry_begins_a_new_round_in_which_tries_count_anew(world: World) -> None:
    """What was undone stays undone and is never tried again; the rest has three tries again, and then the run ends."""
    run_id = in_review(world, FLIGHT, HOTEL)
    before = world.record(run_id)
    decided = decide(world, run_id, "retry")
    assert (decided.state, decided.version) == (State.CLEANING, int(before["version"]) + 1)
    after = world.record(run_id)
    assert (after["cl_passes"], int(after["cl_round"])) == ("0", int(before["cl_round"]) + 1)
    kept = ("cl_target", "cl_end", "cl_code", "cl_message", "cl_undo", "cl_cause", "output", "error_code")
    assert {name: after.get(name) for name in kept} == {name: before.get(name) for name in kept}

    held = claim_cleanup(world)
    assert undo(world, held, FLIGHT, "succeeded") is None
    assert [undo(world, held, HOTEL, "failed") for _ in range(4)] == [1, 2, 3, None]
    world.do(cleanup.release_cleanup(run_id=run_id, fence=held.fence, op=world.op()))
    assert end_cleanup(world) == State.FAILED
    assert world.record(run_id)["error_code"] == "BUG"


def test_a_retry_of_a_poison_run_goes_on_to_its_end(world: World) -> None:
    """A run that could end in no other way than in review ends as it would have; its deaths are forgiven."""
    run_id = in_review(world, FLIGHT, code="POISON", target=State.REVIEW)
    world.raw.hset(keys.run_key(run_id), mapping={"cl_suspect": 1, "cl_deaths": 3, "cl_alone": 3})
    assert world.record(run_id)["cl_target"] == State.REVIEW
    decide(world, run_id, "retry")
    record = world.record(run_id)
    assert (record["cl_target"], record["cl_end"]) == ("failed", "failed")
    assert not {"cl_suspect", "cl_deaths", "cl_alone"} & set(record)


def test_a_cancel_that_came_during_the_cleanup_is_the_verdict_also_after_a_retry(world: World) -> None:
    """Invariant 18."""
    run_id = ended(world, HOTEL, cause="failure")
    held = claim_cleanup(world)
    world.do(runs.cancel_run(run_id=run_id, cause="user", actor="bob", reason=""))
    world.do(
        cleanup.open_review(
            run_id=run_id, fence=held.fence, op=world.op(), code="C", message="m", items=b"[]"
        )
    )
    decide(world, run_id, "retry")
    assert end_cleanup(world, State.CANCELLED) == State.CANCELLED


# --- resume ---------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11")
def test_a_resumed_run_begins_a_new_attempt(world: World) -> None:
    """The error, the review and the deaths are forgotten; the journal and the counts stay."""
    run_id = in_review(world, BANNER, code="POISON")
    world.raw.hset(keys.run_key(run_id), mapping={"process_deaths": 4, "quarantine_deaths": 3})
    assert decide(world, run_id, "resume").state == State.QUEUED
    record = world.record(run_id)
    gone = {name for name in record if name.startswith(("cl_", "rv_", "error_"))} - {"cl_round"}
    assert gone == set()
    assert not {"process_deaths", "quarantine_deaths", "suspect"} & set(record)
    assert abs(int(record["resumed_at"]) - world.now_ms()) < 60_000
    assert effects(world, run_id)["committed"] == 1

    assert world.claim().run_id == run_id
    assert world.number(run_id, "attempt") == 2
    assert world.state(run_id) == State.RUNNING


@pytest.mark.parametrize("call", [MAIL, LOST], ids=["unknown", "started"])
def test_no_attempt_begins_while_an_outcome_is_unknown(world: World, call: Made) -> None:
    """The refusal says what to do and writes nothing; once the call is marked the run goes on."""
    run_id = in_review(world, call)
    before = world.dump()
    with pytest.raises(Conflict, match="mark the call done or undone"):
        decide(world, run_id, "resume")
    assert world.dump() == before
    world.do(marking(run_id, call, "undone"))
    assert decide(world, run_id, "resume").state == State.QUEUED


def half_undone(world: World, call: Made, undoing: Any) -> str:
    """A run in review whose undo of the call is under way (its worker was lost), has failed, or is in doubt."""
    run_id = ended(world, call, cause="failure")
    held = claim_cleanup(world)
    named: dict[str, Any] = {"run_id": run_id, "fence": held.fence, "row_id": call.row_id}
    start = cleanup.start_undo(**named, op=world.op(), round_=1, tries=3, activity=b"{}")
    assert [world.do(start).number for _ in range(2)] == [1, 1]
    if undoing != "started":
        end = cleanup.end_undo(
            **named, op=world.op(), tool=call.tool, status=undoing, detail=b'{"error":null}'
        )
        for _ in range(2):
            world.do(end)
    world.do(
        cleanup.open_review(
            run_id=run_id, fence=held.fence, op=world.op(), code="C", message="m", items=b"[]"
        )
    )
    return run_id


@pytest.mark.contract("E11", "E9")
@pytest.mark.parametrize("mark", ["done", "undone"])
@pytest.mark.parametrize("undoing", ["started", "failed", "unknown"])
@pytest.mark.parametrize("call", [Made("hotel"), MAIL, LOST], ids=["succeeded", "unknown", "started"])
def test_no_attempt_begins_while_an_effect_may_be_half_undone(
    fake: World, call: Made, undoing: str, mark: Any
) -> None:
    """It would go on as if the effect stood. A person says what is so, once; then the attempt may begin."""
    run_id = half_undone(fake, call, undoing)
    before = fake.dump()
    with pytest.raises(Conflict, match="undoing was begun and not finished"):
        decide(fake, run_id, "resume")
    assert fake.dump() == before
    assert fake.do(marking(run_id, call, mark)).became == ("kept" if mark == "done" else "undone")
    assert fake.number(run_id, "undo_open") == 0
    assert decide(fake, run_id, "resume").state == State.QUEUED


@pytest.mark.parametrize("undoing", ["started", "failed", "unknown"])
def test_an_undo_that_succeeds_in_a_later_round_is_in_no_doubt_any_more(world: World, undoing: str) -> None:
    """However many tries it took, it counts once."""
    run_id = half_undone(world, HOTEL, undoing)
    decide(world, run_id, "retry")
    held = claim_cleanup(world)
    assert undo(world, held, HOTEL, "failed") == 1
    assert world.number(run_id, "undo_open") == 1
    assert undo(world, held, HOTEL, "succeeded") == 2
    assert world.number(run_id, "undo_open") == 0


def test_a_call_without_effect_whose_undo_was_begun_is_somebodys_question(world: World) -> None:
    """It is there no more because it never was, or because it was undone: a person makes sure, and its key is not used again."""
    run_id = half_undone(world, MAIL, "unknown")
    decide(world, run_id, "retry")
    held = claim_cleanup(world)
    named: dict[str, Any] = {"run_id": run_id, "fence": held.fence}
    world.do(
        cleanup.settle_call(
            **named, op=world.op(), row_id=MAIL.row_id, tool="mail", status="failed", body=b"{}", tries=1
        )
    )
    world.do(cleanup.open_review(**named, op=world.op(), code="C", message="m", items=b"[]"))
    with pytest.raises(Conflict, match="undoing was begun"):
        decide(world, run_id, "resume")
    with pytest.raises(Conflict, match="had no effect, so none may stay"):
        world.do(marking(run_id, MAIL, "done"))
    assert world.do(marking(run_id, MAIL, "undone")).became == "undone"
    assert effects(world, run_id) == {"open": 0, "unknown": 0, "committed": 0, "compensated": 1}
    assert decide(world, run_id, "resume").state == State.QUEUED


def test_no_attempt_begins_while_a_lock_is_registered(world: World) -> None:
    """Cleanup releases it first."""
    held = worked(world, [HOTEL])
    world.do(register(held, world.op()))
    world.do(end(held, world.op(), State.FAILED))
    cleaner = claim_cleanup(world)
    opened = cleanup.open_review(
        run_id=held.run_id, fence=cleaner.fence, op=world.op(), code="C", message="m", items=b"[]"
    )
    world.do(opened)
    with pytest.raises(Conflict, match="or a lock"):
        decide(world, held.run_id, "resume")
    assert decide(world, held.run_id, "retry").state == State.CLEANING


# --- resolve --------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11", "I2")
def test_a_resolved_run_has_ended_for_good(world: World) -> None:
    """With the error it came with and a true verdict on its effects; nothing can be asked of it any more."""
    run_id = in_review(world, HOTEL, MAIL, LOST)
    assert decide(world, run_id, "resolve").state == State.RESOLVED
    record = world.record(run_id)
    assert (record["error_code"], record["error_message"], record["output"]) == (*FAILED, '"the report"')
    assert effects(world, run_id) == {"open": 0, "unknown": 2, "committed": 1, "compensated": 0}
    assert world.events(run_id)[-2:] == ["review.resolved", "run.ended"]
    assert world.raw.zscore(f"{PREFIX}retain", run_id) is not None
    counted = world.counters()
    assert counted[f"runs_finished_total|{AGENT}|resolved"] == 1
    assert counted[f"reviews_resolved_total|{AGENT}|resolve"] == 1
    before = world.dump_of(run_id)
    for action in ("retry", "resume", "resolve"):
        with pytest.raises(Conflict, match="resolved"):
            decide(world, run_id, action)
    assert world.dump_of(run_id) == before
    assert world.do(requesting(run_id, undo_succeeded=True)).result == "refused"


@pytest.mark.contract("I2")
def test_a_timed_out_run_that_came_to_a_person_counts_as_not_cleaned_up(world: World) -> None:
    """Also when it is resolved later: it counts once."""
    run_id = in_review(world, HOTEL, state=State.TIMED_OUT)
    decide(world, run_id, "resolve")
    counted = {name: n for name, n in world.counters().items() if name.startswith("timed_out_runs")}
    assert counted == {f"timed_out_runs_total|{AGENT}|no": 1}


# --- marks ----------------------------------------------------------------------------------------------------------

KEPT = Made("kept", undo="failed")
UNDONE = Made("undone", undo="succeeded")

MARKS = [
    (MAIL, "done", "succeeded", {"committed": 1, "unknown": -1}),
    (MAIL, "undone", "failed", {"unknown": -1}),
    (LOST, "done", "succeeded", {"committed": 1, "open": -1}),
    (LOST, "undone", "failed", {"open": -1}),
    (HOTEL, "done", "kept", {}),
    (HOTEL, "undone", "undone", {"committed": -1, "compensated": 1}),
    (BANNER, "done", "kept", {}),
    (BANNER, "undone", "undone", {"committed": -1, "compensated": 1}),
    (Made("half", undo="unknown"), "undone", "undone", {"committed": -1, "compensated": 1}),
    (Made("sent", status="unknown", undo="failed"), "done", "kept", {"committed": 1, "unknown": -1}),
    (Made("sent", status="unknown", undo="unknown"), "undone", "undone", {"compensated": 1, "unknown": -1}),
    (Made("cut", status="started", undo="failed"), "done", "kept", {"committed": 1, "open": -1}),
    (Made("cut", status="started", undo="failed"), "undone", "undone", {"compensated": 1, "open": -1}),
]


@pytest.mark.contract("E11")
@pytest.mark.parametrize(("call", "mark", "became", "change"), MARKS, ids=lambda each: str(each)[:24])
def test_a_mark_changes_the_row_and_the_counts_together(
    world: World, call: Made, mark: Literal["done", "undone"], became: str, change: dict[str, int]
) -> None:
    """An unknown call is settled; an effect whose undo was begun, or of a call that succeeded, may stay or stands no more."""
    run_id = in_review(world, call)
    before, version = effects(world, run_id), world.number(run_id, "version")
    was_undo = line(world, run_id, call, "u")
    marked = world.do(marking(run_id, call, mark))
    assert (marked.became, marked.version) == (became, version + 1)
    assert effects(world, run_id) == {name: n + change.get(name, 0) for name, n in before.items()}
    assert world.state(run_id) == State.REVIEW
    assert line(world, run_id, call, "s")[0] == {"undone": call.status, "kept": "succeeded"}.get(
        became, became
    )
    if became in ("kept", "undone"):
        status, _, _, _, tries, _ = line(world, run_id, call, "u")
        assert status == ("kept" if mark == "done" else "succeeded")
        assert tries == (was_undo[4] if was_undo else "0")
    else:
        assert line(world, run_id, call, "u") == []
    if call.status != "succeeded":
        settled = {"undone": "compensated", "failed": "not_happened"}.get(became, "happened")
        assert world.counters()[f"unknown_outcomes_total|{call.tool}|{settled}"] == 1
        assert line(world, run_id, call, "s")[4] == (
            "0" if became == "undone" and call.status == "started" else "1"
        )
    assert (world.number(run_id, "open_calls"), world.number(run_id, "undo_open")) == (0, 0)
    assert world.counters()["operator_actions_total|mark|done"] == 1
    said = orjson.loads(world.raw.xrevrange(keys.events_key(run_id), count=1)[0][1][b"d"])
    outcomes = {"succeeded": "happened", "failed": "not_happened", "kept": "kept", "undone": None}
    assert (said["tool"], said["how"], said.get("outcome")) == (call.tool, "operator", outcomes[became])
    assert world.events(run_id)[-1] == ("cleanup.compensated" if became == "undone" else "cleanup.settled")


@pytest.mark.parametrize(
    ("call", "mark", "sentence"),
    [
        (UNDONE, "undone", "was undone already"),
        (UNDONE, "done", "was undone already"),
        (Made("refused", status="failed"), "undone", "is failed: no effect of it stands"),
        (Made("late", status="aborted_before_dispatch"), "done", "is aborted_before_dispatch"),
        (Made("later", status="planned"), "done", "is planned"),
        (Made("elsewhere"), "done", "is not in its journal"),
    ],
    ids=lambda each: str(each)[:24],
)
def test_what_is_in_no_doubt_cannot_be_marked(
    world: World, call: Made, mark: Literal["done", "undone"], sentence: str
) -> None:
    """One sentence, and nothing is written."""
    run_id = in_review(world, HOTEL, *([] if call.tool == "elsewhere" else [call]))
    before = world.dump()
    with pytest.raises(Conflict, match=sentence):
        world.do(marking(run_id, call, mark))
    assert world.dump() == before


def test_a_person_may_think_again_about_an_effect_that_was_to_stay(world: World) -> None:
    """Kept, kept again is refused, then undone by hand; after that there is nothing left to mark."""
    run_id = in_review(world, KEPT)
    assert world.do(marking(run_id, KEPT, "done")).became == "kept"
    with pytest.raises(Conflict, match="was marked done already"):
        world.do(marking(run_id, KEPT, "done"))
    assert world.do(marking(run_id, KEPT, "undone")).became == "undone"
    assert effects(world, run_id)["compensated"] == 1


def test_what_was_marked_is_never_undone_again(world: World) -> None:
    """The next round of the cleanup finds both answers: undone by hand, and accepted as it stands (CONTRACT E9)."""
    run_id = in_review(world, HOTEL, KEPT)
    world.do(marking(run_id, HOTEL, "undone"))
    world.do(marking(run_id, KEPT, "done"))
    decide(world, run_id, "retry")
    held = claim_cleanup(world)
    assert [undo(world, held, each, "succeeded") for each in (HOTEL, KEPT)] == [None, None]


# --- manual cleanup -------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11")
@pytest.mark.parametrize("dirty", [True, False], ids=["dirty", "clean"])
@pytest.mark.parametrize("undo_succeeded", [True, False])
@pytest.mark.parametrize("state", list(State), ids=str)
def test_a_cleanup_may_be_asked_for_once_a_run_has_ended(
    fake: World, state: State, undo_succeeded: bool, dirty: bool
) -> None:
    """From every state: what a dry run foresees is what the store does."""
    run_id = worked(fake, [HOTEL] if dirty else [Made("look", effect="read")]).run_id
    fake.put_in_state(run_id, state)
    before, version = fake.dump_of(run_id), fake.number(run_id, "version")
    answer = fake.do(requesting(run_id, undo_succeeded=undo_succeeded))
    assert answer.result == foresee(state, dirty, undo_succeeded=undo_succeeded)
    assert answer.state == state
    counted = {name: n for name, n in fake.counters().items() if name.startswith("operator_actions")}
    if answer.result == "requested":
        assert fake.state(run_id) == State.CLEANING
        assert answer.version == fake.number(run_id, "version") == version + 1
        assert audited(fake, run_id) == [("cleanup", *WHO.values())]
        assert counted == {"operator_actions_total|cleanup|done": 1}
        return
    assert fake.state(run_id) == state
    assert audited(fake, run_id) == []
    assert counted == ({"operator_actions_total|cleanup|refused": 1} if answer.result == "refused" else {})
    if answer.result != "refused":
        assert fake.dump_of(run_id) == before


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.TIMED_OUT, State.CANCELLED], ids=str)
def test_a_run_that_was_cleaned_by_hand_keeps_its_end(world: World, state: State) -> None:
    """Output and error stay as they were; it is not counted as finished twice."""
    run_id = ended(world, HOTEL, state=state)
    before = world.record(run_id)
    assert world.do(requesting(run_id, undo_succeeded=True)).result == "requested"
    record = world.record(run_id)
    asked = {name: record[name] for name in ("cl_cause", "cl_target", "cl_end", "cl_undo")}
    assert asked == {"cl_cause": "manual", "cl_target": state, "cl_end": state, "cl_undo": "all"}
    held = claim_cleanup(world)
    assert undo(world, held, HOTEL, "succeeded") == 1
    end = cleanup.end_cleanup(
        run_id=run_id, fence=held.fence, op=world.op(), target=State(record["cl_target"])
    )
    assert world.do(end) == state
    after = world.record(run_id)
    same = ("output", "error_code", "error_message", "state")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert effects(world, run_id)["compensated"] == 1
    finished = {name: n for name, n in world.counters().items() if name.startswith("runs_finished")}
    assert finished == {f"runs_finished_total|{AGENT}|{state}": 1}


# --- what holds for all of them -------------------------------------------------------------------------------------


def asked_of(world: World, what: str, version: int | None = None) -> tuple[str, Op[Any]]:
    """A run in the right place, and the operation that an operator asks for."""
    if what == "cleanup":
        run_id = ended(world, HOTEL)
        return run_id, requesting(run_id, version=version)
    run_id = in_review(world, BANNER if what == "resume" else HOTEL)
    if what == "mark":
        return run_id, marking(run_id, HOTEL, "done", version)
    return run_id, review.decide_review(run_id=run_id, action=what, expected_version=version, **WHO)  # type: ignore[arg-type]


EVERY = pytest.mark.parametrize("what", ["retry", "resume", "resolve", "mark", "cleanup"])


@EVERY
def test_a_repeated_decision_is_answered_once(world: World, what: str) -> None:
    """A client that lost the reply sends it again: the same answer, one entry, one count, and nothing moves twice."""
    _, op = asked_of(world, what)
    first = world.do(op)
    before = world.dump()
    assert world.do(op) == first
    assert world.dump() == before


@pytest.mark.contract("E11")
def test_every_decision_keeps_its_answer_while_others_are_made(world: World) -> None:
    """Of two people, or sent again after the next one: it is not applied with the meaning it would have by now."""
    run_id = in_review(world, HOTEL, MAIL)
    answered: list[tuple[Op[Any], Any]] = []

    def asked(op: Op[Any]) -> None:
        answered.append((op, world.do(op)))
        before = world.dump()
        assert [world.do(each) for each, _ in answered] == [answer for _, answer in answered]
        assert world.dump() == before

    asked(marking(run_id, MAIL, "done"))
    asked(marking(run_id, HOTEL, "undone"))
    for action in ("retry", "resume", "retry", "resolve"):
        asked(review.decide_review(run_id=run_id, action=action, **WHO))  # type: ignore[arg-type]
        if action == "resolve":
            break
        if action == "resume":
            held = world.claim()
            world.do(
                end(held, world.op(), State.FAILED, cleaning=runs.Cleaning("failure", State.FAILED, "policy"))
            )
        held = claim_cleanup(world)
        world.do(
            cleanup.open_review(
                run_id=run_id, fence=held.fence, op=world.op(), code="C", message="m", items=b"[]"
            )
        )
    assert [answer.became for _, answer in answered[:2]] == ["succeeded", "undone"]
    assert line(world, run_id, MAIL, "u") == []


@pytest.mark.contract("E11")
@EVERY
def test_a_decision_about_another_version_is_refused(world: World, what: str) -> None:
    """Somebody else was faster: nothing is written, and the sentence says to look again."""
    _, stale = asked_of(world, what, version=0)
    before = world.dump()
    with pytest.raises(Conflict, match="look at it again"):
        world.do(stale)
    assert world.dump() == before


@EVERY
def test_the_version_that_was_looked_at_is_accepted(world: World, what: str) -> None:
    """And grows by one, so that a second decision on the same page is refused."""
    run_id, _ = asked_of(world, what)
    version = world.number(run_id, "version")
    ops = {
        "mark": lambda n: marking(run_id, HOTEL, "done", n),
        "cleanup": lambda n: requesting(run_id, version=n),
    }
    make = ops.get(
        what, lambda n: review.decide_review(run_id=run_id, action=what, expected_version=n, **WHO)
    )  # type: ignore[arg-type]
    assert world.do(make(version)).version == version + 1
    with pytest.raises(Conflict, match=f"since version {version}"):
        world.do(make(version))


@pytest.mark.contract("E11")
@EVERY
def test_every_decision_stands_in_the_audit_log_and_nowhere_else(world: World, what: str) -> None:
    """Who and why; the run's own events say only what was decided."""
    run_id, op = asked_of(world, what)
    world.do(op)
    (entry,) = world.do(review.read_audit(run_id))
    assert (entry["action"], entry["actor"], entry["reason"]) == (what, *WHO.values())
    assert entry["at"].endswith("Z")
    if what == "mark":
        assert entry["detail"] == {"row": HOTEL.row_id, "tool": "hotel", "as": "done"}
    shown = repr(world.raw.xrange(keys.events_key(run_id))) + repr(world.record(run_id))
    assert "ada" not in shown
    assert "checked with" not in shown
    assert world.counters()[f"operator_actions_total|{what}|done"] == 1


@pytest.mark.parametrize("action", ["retry", "resume", "resolve"])
@pytest.mark.parametrize("state", [each for each in State if each != State.REVIEW], ids=str)
def test_only_a_run_in_review_can_be_decided_about(fake: World, state: State, action: str) -> None:
    """And only its calls can be marked; nothing is written."""
    run_id = worked(fake, [HOTEL, MAIL]).run_id
    fake.put_in_state(run_id, state)
    before = fake.dump()
    for op in (
        review.decide_review(run_id=run_id, action=action, **WHO),  # type: ignore[arg-type]
        marking(run_id, MAIL, "done"),
    ):
        with pytest.raises(Conflict, match=f"is {state}, not in review"):
            fake.do(op)
    assert fake.dump() == before


def test_a_decision_about_an_unknown_run_says_so(world: World) -> None:
    """One sentence, nothing written."""
    nobody = keys.new_run_id(SHARD)
    for op in (
        review.decide_review(run_id=nobody, action="retry", **WHO),
        marking(nobody, MAIL, "done"),
        requesting(nobody),
    ):
        with pytest.raises(RunNotFound, match="There is no run"):
            world.do(op)
    assert world.dump() == {}


@pytest.mark.contract("E11")
def test_a_run_in_review_leaves_every_index_when_it_is_decided(world: World) -> None:
    """It stands in one gauge at each moment, and in the one list that fits its state."""
    lists = {
        "retry": f"{PREFIX}cleaning:{AGENT}",
        "resume": f"{PREFIX}queued:{AGENT}",
        "resolve": f"{PREFIX}retain",
    }
    for action, wanted in lists.items():
        run_id = in_review(world, BANNER)
        decide(world, run_id, action)
        world.state(run_id)
        stands = [name for name in lists.values() if world.raw.zscore(name, run_id) is not None]
        assert stands == [wanted]
        world.raw.delete(wanted)
    counted = {name for name in world.counters() if name.startswith("reviews_resolved")}
    assert counted == {f"reviews_resolved_total|{AGENT}|{action}" for action in lists}


def test_a_mark_of_an_unknown_call_replaces_its_outcome(world: World) -> None:
    """By what was handed in; a compensation and a later attempt see a call that succeeded without a response."""
    run_id = in_review(world, MAIL)
    world.do(marking(run_id, MAIL, "done"))
    status, body = world.row(run_id, MAIL.row_id)
    assert (status, orjson.loads(body)["response"]) == ("succeeded", None)

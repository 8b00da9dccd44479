"""Was this call made before? Attempts, identities, ordinals, unknown outcomes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makegood.tasks.rules.callkeys import call_key_of
from makegood.tasks.rules.matching import (
    Call,
    Fresh,
    Match,
    PossibleRepeat,
    RepeatUnknown,
    Replay,
    Rerun,
    StepMatches,
    match_step,
)
from makegood.tasks.rules.rows import Effect, Row, Status, Undo


def row(
    ordinal: int = 1,
    *,
    tool: str = "mail",
    identity: str = "ann",
    args: str = "hello",
    status: Status = "succeeded",
    attempt: int = 1,
    step: int | None = None,
    effect: Effect = "write",
    generation: int = 1,
    undo: Undo | None = None,
) -> Row:
    return Row(
        call_key=call_key_of(tool, identity, ordinal),
        tool=tool,
        attempt=attempt,
        step=ordinal if step is None else step,
        index=0,
        status=status,
        effect=effect,
        identity_digest=identity,
        request_digest=args,
        args={"text": args},
        generation=generation,
        undo=undo,
    )


def call(
    identity: str = "ann",
    args: str = "hello",
    *,
    tool: str = "mail",
    effect: Effect = "write",
    reuse: bool = False,
) -> Call:
    return Call(tool, identity, args, effect, reuse)


def step(
    calls: Sequence[Call],
    rows: Sequence[Row],
    *,
    attempt: int = 2,
    claimed: frozenset[str] = frozenset(),
    asked: frozenset[tuple[str, str]] = frozenset(),
) -> StepMatches:
    return match_step(calls, rows, claimed, asked, attempt=attempt)


def one(asked_call: Call, *rows: Row, attempt: int = 2, claimed: frozenset[str] = frozenset()) -> Match:
    """The decision for a call that stands alone in its step."""
    return match_step([asked_call], rows, claimed, frozenset(), attempt=attempt).decisions[0]


def keys(*rows: Row) -> frozenset[str]:
    return frozenset(r.call_key for r in rows)


@pytest.mark.contract("D4")
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("succeeded", Replay),
        ("unknown", RepeatUnknown),
        ("started", RepeatUnknown),
        ("failed", Rerun),
        ("aborted_before_dispatch", Rerun),
        ("planned", Rerun),
    ],
)
@pytest.mark.parametrize("effect", ["idempotent", "write", "irreversible"])
def test_a_later_attempt_claims_what_an_earlier_one_left(
    status: Status, expected: type[Match], effect: Effect
) -> None:
    """Done is replayed, unknown repeated under its key, what had no effect runs again under the same call key."""
    left = row(status=status, effect=effect)
    decision = one(call(effect=effect), left)
    assert isinstance(decision, expected)
    assert isinstance(decision, Replay | RepeatUnknown | Rerun)
    assert decision.row is left
    if isinstance(decision, Rerun):
        assert decision.generation == 1


@pytest.mark.contract("D4")
def test_the_next_identical_call_of_the_later_attempt_has_ordinal_2_and_runs() -> None:
    """The first is answered from the record, the second is meant."""
    done = row()
    first = step([call()], [done])
    assert first.decisions == (Replay(done, same_args=True),)
    assert step([call()], [done], claimed=first.claimed).decisions == (Fresh(2),)
    assert step([call(), call()], [done]).decisions == (Replay(done, same_args=True), Fresh(2))


@pytest.mark.contract("J29")
def test_the_same_mail_twice_within_one_attempt_is_two_calls() -> None:
    """In one step or in two steps: ordinals 1 and 2, and never an answer from the record."""
    assert step([call(), call()], [], attempt=1).decisions == (Fresh(1), Fresh(2))
    assert one(call(), row(), attempt=1) == Fresh(2)
    assert one(call(), row(), row(2), attempt=1) == Fresh(3)
    assert one(call(), row(status="failed"), attempt=1) == Fresh(2)


@pytest.mark.contract("J29")
@pytest.mark.contract("D4")
def test_both_mails_of_the_first_attempt_are_recognised_by_the_second() -> None:
    """Two on purpose stay two: the third would be new."""
    first, second = row(1), row(2)
    decisions = step([call(), call(), call()], [second, first]).decisions
    assert decisions == (Replay(first, True), Replay(second, True), Fresh(3))


@pytest.mark.contract("D3")
def test_ordinals_of_parallel_calls_are_fixed_by_position_per_identity() -> None:
    """Other calls in between do not shift them."""
    calls = [call("ann"), call("bob"), call("ann"), call("ann", tool="note"), call("bob")]
    assert step(calls, [], attempt=1).decisions == (Fresh(1), Fresh(1), Fresh(2), Fresh(1), Fresh(2))


@pytest.mark.contract("D4")
def test_equal_arguments_are_matched_first_then_the_oldest() -> None:
    """On a mismatch the caller learns that the recorded arguments differ."""
    first, second = row(1, args="first"), row(2, args="second")
    rows = [first, second]
    assert one(call(args="second"), *rows) == Replay(second, same_args=True)
    assert one(call(args="other"), *rows) == Replay(first, same_args=False)
    assert one(call(args="other"), *rows, claimed=keys(first)) == Replay(second, same_args=False)
    assert one(call(args="other"), *rows, claimed=keys(first, second)) == Fresh(3)


@pytest.mark.contract("D4")
def test_the_oldest_goes_by_attempt_step_and_index_not_by_the_order_of_the_rows() -> None:
    """Rows may come in any order."""
    rows = [row(1, step=3, args="c"), row(2, step=1, args="a"), row(3, step=2, args="b")]
    for order in itertools.permutations(rows):
        decision = one(call(args="x"), *order)
        assert isinstance(decision, Replay)
        assert decision.row.request_digest == "a"


@pytest.mark.contract("D4")
def test_a_guess_of_one_call_does_not_take_the_exact_match_of_a_later_one() -> None:
    """Exact matches of the whole step first, whatever the positions."""
    first, second = row(1, args="first"), row(2, args="second")
    decisions = step([call(args="new"), call(args="first")], [first, second]).decisions
    assert decisions == (Replay(second, same_args=False), Replay(first, same_args=True))


@pytest.mark.contract("D6")
def test_a_failed_row_beside_a_standing_effect_does_not_make_it_happen_twice() -> None:
    """The model had retried a failed call: its one success is what the next attempt means."""
    failed, done = row(1, status="failed"), row(2)
    assert one(call(), failed, done) == Replay(done, True)
    assert one(call(args="other"), failed, done) == Replay(done, False)
    assert step([call(), call()], [failed, done]).decisions == (Replay(done, True), Rerun(failed, 1))


@pytest.mark.contract("D6")
def test_a_repeat_of_an_unknown_call_is_that_call_also_within_its_attempt() -> None:
    """The ticket timed out though it exists: asking again does not make a second one."""
    unknown = row(status="unknown", args="first")
    assert one(call(args="first"), unknown, attempt=1) == RepeatUnknown(unknown, same_args=True)
    assert one(call(args="other"), unknown, attempt=1) == RepeatUnknown(unknown, same_args=False)
    assert one(call(), unknown, claimed=keys(unknown)) == RepeatUnknown(unknown, same_args=False)
    assert step([call(), call()], [unknown]).decisions == (RepeatUnknown(unknown, False), Fresh(2))


@pytest.mark.contract("D4")
def test_reads_are_run_again_unless_the_tool_says_reuse() -> None:
    """A read answers with what is true now."""
    read = row(effect="read")
    assert one(call(effect="read"), read) == Fresh(2)
    assert one(call(effect="read"), read, attempt=1) == Fresh(2)
    assert one(call(effect="read", reuse=True), read) == Replay(read, True)
    assert one(call(effect="read", reuse=True), read, attempt=1) == Fresh(2)
    for status in ("failed", "unknown", "started"):
        left = row(effect="read", status=status)
        assert one(call(effect="read", reuse=True), left) == Rerun(left, 1)
    both = (row(1, effect="read", status="failed"), row(2, effect="read"))
    assert one(call(effect="read", reuse=True), *both) == Replay(both[1], True)


@pytest.mark.contract("D3")
def test_after_an_undo_the_call_runs_again_under_the_next_generation() -> None:
    """Same call key, other idempotency key; only the newest generation speaks."""
    undone = row(undo="succeeded")
    assert one(call(), undone) == Rerun(undone, 2)
    again = row(generation=2, status="unknown", attempt=2)
    assert one(call(), undone, again, attempt=3) == RepeatUnknown(again, True)
    assert one(call(), again, undone, attempt=3) == RepeatUnknown(again, True)
    undone_unknown = row(status="unknown", undo="succeeded")
    assert one(call(), undone_unknown) == Rerun(undone_unknown, 2)
    assert one(call(), undone_unknown, attempt=1) == Fresh(2)


@pytest.mark.parametrize("undo", ["planned", "started", "failed", "unknown"])
def test_an_undo_that_did_not_succeed_leaves_the_effect_standing(undo: Undo) -> None:
    """Only a recorded success of the undo clears the way."""
    left = row(undo=undo)
    assert one(call(), left) == Replay(left, True)


@pytest.mark.contract("D4")
@pytest.mark.parametrize("status", ["succeeded", "unknown", "started"])
def test_a_new_identity_is_questioned_once_while_earlier_effects_are_unclaimed(status: Status) -> None:
    """POSSIBLE_REPEAT with the list; asked again, it runs."""
    left = row(status=status)
    first = step([call("bob")], [left])
    assert first.decisions == (PossibleRepeat((left,)),)
    assert first.asked == {("mail", "bob")}
    assert first.claimed == frozenset()
    second = step([call("bob")], [left], asked=first.asked)
    assert second.decisions == (Fresh(1),)
    assert second.asked == first.asked
    assert step([call("eve")], [left], asked=first.asked).decisions == (PossibleRepeat((left,)),)


@pytest.mark.contract("D4")
@pytest.mark.parametrize(
    ("left", "attempt", "claimed"),
    [
        (row(status="failed"), 2, frozenset()),
        (row(status="aborted_before_dispatch"), 2, frozenset()),
        (row(status="planned"), 2, frozenset()),
        (row(undo="succeeded"), 2, frozenset()),
        (row(tool="note"), 2, frozenset()),
        (row(), 2, keys(row())),
        (row(status="unknown"), 2, keys(row())),
        (row(), 1, frozenset()),
        (row(attempt=2), 2, frozenset()),
        (row(effect="read"), 2, frozenset()),
    ],
    ids=[
        "failed",
        "aborted",
        "planned",
        "undone",
        "other tool",
        "claimed",
        "claimed unknown",
        "same",
        "own",
        "read",
    ],
)
def test_a_new_identity_is_not_questioned_without_such_effects(
    left: Row, attempt: int, claimed: frozenset[str]
) -> None:
    """No effect, another tool, this attempt's own or a claimed row: nothing can be repeated."""
    assert one(call("bob"), left, attempt=attempt, claimed=claimed) == Fresh(1)


@pytest.mark.contract("D4")
def test_a_known_identity_and_a_read_are_not_questioned() -> None:
    """The second ticket of a customer whose first was claimed is meant; reads repeat nothing."""
    ann, bob = row(), row(identity="bob")
    assert one(call(), ann, bob, claimed=keys(ann)) == Fresh(2)
    assert one(call("eve", effect="read"), ann) == Fresh(1)


@pytest.mark.contract("D4")
def test_two_identical_new_calls_in_one_step_are_both_questioned() -> None:
    """The model has not seen the warning when it asks for the second."""
    left = row()
    assert step([call("bob"), call("bob")], [left]).decisions == (PossibleRepeat((left,)),) * 2
    both = step([call("bob"), call("bob")], [left], asked=frozenset({("mail", "bob")}))
    assert both.decisions == (Fresh(1), Fresh(2))


@pytest.mark.contract("D4")
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_what_the_same_step_claims_is_no_reason_to_question(order: list[int]) -> None:
    """The earlier mail and a new one, side by side, in any order."""
    ann = row()
    calls = [call("ann"), call("bob")]
    expected = [Replay(ann, True), Fresh(1)]
    assert step([calls[n] for n in order], [ann]).decisions == tuple(expected[n] for n in order)


def test_the_list_of_a_possible_repeat_is_oldest_first() -> None:
    """The model reads it in the order in which things happened."""
    rows = [row(identity="c", step=3), row(identity="a", step=1), row(identity="b", step=2)]
    decision = one(call("new"), *rows)
    assert isinstance(decision, PossibleRepeat)
    assert [r.identity_digest for r in decision.rows] == ["a", "b", "c"]


STATUSES: list[Status] = ["planned", "started", "succeeded", "failed", "aborted_before_dispatch", "unknown"]


@pytest.mark.contract("D3")
@given(
    rows=st.lists(
        st.builds(
            row,
            st.integers(1, 4),
            identity=st.sampled_from("ab"),
            args=st.sampled_from("xy"),
            status=st.sampled_from(STATUSES),
            attempt=st.integers(1, 2),
        ),
        max_size=6,
        unique_by=lambda r: r.call_key,
    ),
    calls=st.lists(st.builds(call, st.sampled_from("abc"), st.sampled_from("xyz")), max_size=6),
    attempt=st.integers(1, 3),
)
def test_no_two_calls_of_a_step_share_a_key(rows: list[Row], calls: list[Call], attempt: int) -> None:
    """Whatever happened before: every call that may run has a key of its own, and a fresh key was never used."""
    matches = step(calls, rows, attempt=attempt)
    used: list[str] = []
    for asked_call, decision in zip(calls, matches.decisions, strict=True):
        if isinstance(decision, Fresh):
            fresh = call_key_of(asked_call.tool, asked_call.identity_digest, decision.ordinal)
            assert fresh not in keys(*rows)
            used.append(fresh)
        elif not isinstance(decision, PossibleRepeat):
            assert decision.row.identity_digest == asked_call.identity_digest
            used.append(decision.row.call_key)
    assert len(used) == len(set(used))

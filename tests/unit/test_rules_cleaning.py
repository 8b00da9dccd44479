"""What cleanup does about what a run left: settling, undoing, rolling back, and how a pass ends."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makegood.tasks.rules.callkeys import call_key_of
from makegood.tasks.rules.cleaning import (
    PASSES,
    TRIES,
    UNDECLARED,
    WAITS_S,
    Means,
    Settle,
    Tried,
    Verdict,
    decide_pass,
    decide_settle,
    open_rows,
    settle_at_ms,
)
from makegood.tasks.rules.rows import Effect, Row, Status
from makegood.tasks.rules.rows import Undo as UndoStatus

LOST_MS = 100_000
SETTLED_MS = 130_000
"""When a call that was lost at 100 s, with 30 s of settling, cannot land any more."""

EFFECTS: list[Effect] = ["idempotent", "write", "irreversible"]
ENDED: list[Status] = ["planned", "failed", "aborted_before_dispatch"]


def row(
    tool: str = "hotel",
    *,
    status: Status = "succeeded",
    effect: Effect = "write",
    step: int = 1,
    attempt: int = 1,
    index: int = 0,
    generation: int = 1,
    undo: UndoStatus | None = None,
    started_at_ms: int | None = 50_000,
    ended_at_ms: int | None = None,
) -> Row:
    return Row(
        call_key=call_key_of(tool, "ann", 1),
        tool=tool,
        attempt=attempt,
        step=step,
        index=index,
        status=status,
        effect=effect,
        identity_digest="ann",
        request_digest="ann",
        args={},
        generation=generation,
        undo=undo,
        started_at_ms=started_at_ms,
        ended_at_ms=ended_at_ms,
    )


def lost(effect: Effect = "write", started_at_ms: int | None = 50_000) -> Row:
    """A call whose worker was lost before it had an outcome."""
    return row(status="started", effect=effect, started_at_ms=started_at_ms)


def settle(
    means: Means,
    *,
    of: Row | None = None,
    tried: Tried = Tried(),
    now_ms: int = LOST_MS,
    poison: bool = False,
) -> Settle:
    """The next move about a call; it may be settled by time from 130 s on."""
    given_means = dataclasses.replace(means, settle_after_s=30.0)
    return decide_settle(of or lost(), given_means, tried, now_ms=now_ms, lost_ms=LOST_MS, poison=poison)


# --- what is open -----------------------------------------------------------------------------------------------------


@pytest.mark.contract("E3")
@pytest.mark.parametrize("effect", EFFECTS)
def test_open_is_what_was_started_or_is_unknown(effect: Effect) -> None:
    """In the order in which the calls were made."""
    late, early = row("car", status="unknown", effect=effect, step=2), row(status="started", effect=effect)
    over = [row(f"t{n}", status=status, effect=effect) for n, status in enumerate([*ENDED, "succeeded"])]
    assert open_rows([late, *over, early]) == [early, late]


def test_a_read_and_a_call_that_was_undone_are_not_open() -> None:
    """Neither leaves a doubt about the world."""
    assert (
        open_rows([row(status="started", effect="read"), row("car", status="unknown", undo="succeeded")])
        == []
    )


def test_only_the_newest_generation_of_a_call_is_open() -> None:
    """The older one was undone, which is how the newer one began."""
    old, new = row(status="unknown", generation=1), row(status="unknown", generation=2)
    assert open_rows([new, old]) == [new]


# --- settling ---------------------------------------------------------------------------------------------------------


@pytest.mark.contract("C8", "D6")
@pytest.mark.parametrize(
    ("ended_at_ms", "settle_after_s", "expected"),
    [
        (None, 30.0, 130_000),
        (70_000, 30.0, 100_000),
        (0, 30.0, 30_000),
        (None, 0.0, 100_000),
        (None, 0.0006, 100_001),
    ],
)
def test_a_request_may_land_until_it_was_left_alone_for_long_enough(
    ended_at_ms: int | None, settle_after_s: float, expected: int
) -> None:
    """Counted from our close, else from the loss of its worker (invariant 4)."""
    call = row(status="unknown", ended_at_ms=ended_at_ms)
    assert settle_at_ms(call, Means(settle_after_s=settle_after_s), LOST_MS) == expected


@pytest.mark.contract("C8")
@pytest.mark.parametrize(
    ("sent_again_ms", "repeat_lost_ms", "expected"),
    [
        (None, 0, 100_000),
        (None, 150_000, 100_000),
        (60_000, 0, 100_000),
        (120_000, 0, 150_000),
        (120_000, 110_000, 150_000),
        (120_000, 140_000, 170_000),
    ],
)
def test_a_call_that_cleanup_has_sent_again_may_land_later(
    sent_again_ms: int | None, repeat_lost_ms: int, expected: int
) -> None:
    """Counted from the later of the two, or from the loss of the worker that had sent it again."""
    call = dataclasses.replace(row(status="unknown", ended_at_ms=70_000), sent_again_ms=sent_again_ms)
    means = Means(probes=True, settle_after_s=30.0)
    assert settle_at_ms(call, means, LOST_MS, repeat_lost_ms) == expected
    decided = decide_settle(
        call, means, Tried(probe="not_done"), now_ms=0, lost_ms=LOST_MS, repeat_lost_ms=repeat_lost_ms
    )
    assert decided == Settle("wait", expected)


@pytest.mark.contract("D6", "C8")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("now_ms", [LOST_MS, SETTLED_MS])
def test_a_probe_is_asked_first(effect: Effect, now_ms: int) -> None:
    """Whatever else the tool offers, and before anything is sent again."""
    all_means = Means(probes=True, compensates=True, handles_unknown=True)
    assert settle(all_means, of=lost(effect), now_ms=now_ms) == Settle("probe")
    assert settle(all_means, of=lost(effect), now_ms=now_ms, poison=True) == Settle("probe")


@pytest.mark.contract("C8", "D6")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [
        (LOST_MS, Settle("wait", SETTLED_MS)),
        (SETTLED_MS - 1, Settle("wait", SETTLED_MS)),
        (SETTLED_MS, Settle("not_done")),
    ],
)
def test_not_done_counts_only_when_nothing_can_land_any_more(
    effect: Effect, now_ms: int, expected: Settle
) -> None:
    """Before that it is as good as unknown; the cleanup waits without a slot."""
    tried = Tried(probe="not_done")
    assert settle(Means(probes=True), of=lost(effect), tried=tried, now_ms=now_ms) == expected


@pytest.mark.contract("D6", "C8")
@pytest.mark.parametrize(
    ("effect", "means", "expected"),
    [
        ("idempotent", Means(), Settle("repeat")),
        ("idempotent", Means(compensates=True, handles_unknown=True), Settle("repeat")),
        ("write", Means(), Settle("ask")),
        ("irreversible", Means(), Settle("ask")),
        ("idempotent", Means(repeatable=False), Settle("ask")),
        ("idempotent", UNDECLARED, Settle("ask")),
        ("write", UNDECLARED, Settle("ask")),
    ],
)
def test_a_ticket_whose_outcome_is_unknown_is_not_made_twice(
    effect: Effect, means: Means, expected: Settle
) -> None:
    """Idempotent: the same request under the same key, without a wait. Neither that nor a probe: a person."""
    assert settle(means, of=lost(effect)) == expected


@pytest.mark.contract("C8")
@pytest.mark.parametrize(
    ("started_at_ms", "now_ms", "expected"),
    [
        (50_000, 150_000, "repeat"),
        (50_000, 150_001, "ask"),
        (None, 150_001, "repeat"),
    ],
)
def test_a_repeat_is_sent_only_while_its_key_is_remembered(
    started_at_ms: int | None, now_ms: int, expected: str
) -> None:
    """The downstream remembers it for 100 s; a call that has no beginning has no age."""
    means = Means(key_ttl_s=100.0)
    assert settle(means, of=lost("idempotent", started_at_ms), now_ms=now_ms).move == expected


@pytest.mark.contract("E8")
def test_what_was_repeated_in_this_pass_is_not_repeated_again() -> None:
    """Nor is a call of a run that killed its processes."""
    call = lost("idempotent")
    assert settle(Means(), of=call, tried=Tried(repeated=True)) == Settle("ask")
    assert settle(Means(), of=call, poison=True) == Settle("ask")
    assert settle(Means(probes=True), of=call, tried=Tried(probe="unknown")) == Settle("repeat")


@pytest.mark.contract("E3", "C8")
@pytest.mark.parametrize("poison", [True, False])
@pytest.mark.parametrize(
    ("means", "now_ms", "expected"),
    [
        (Means(compensates=True, handles_unknown=True), LOST_MS, Settle("wait", SETTLED_MS)),
        (Means(compensates=True, handles_unknown=True), SETTLED_MS - 1, Settle("wait", SETTLED_MS)),
        (Means(compensates=True, handles_unknown=True), SETTLED_MS, Settle("undo")),
        (Means(compensates=True), SETTLED_MS, Settle("ask")),
        (Means(handles_unknown=True), SETTLED_MS, Settle("ask")),
    ],
)
def test_an_unknown_call_is_left_to_a_compensation_that_handles_it(
    means: Means, now_ms: int, expected: Settle, poison: bool
) -> None:
    """And that only when nothing of the call can land any more: it would land after its undo."""
    assert settle(means, now_ms=now_ms, poison=poison) == expected


@pytest.mark.contract("D6")
def test_a_probe_that_knows_nothing_is_asked_again_when_the_call_has_settled() -> None:
    """It may know more then; after that a person has to say."""
    tried = Tried(probe="unknown")
    assert settle(Means(probes=True), tried=tried) == Settle("wait", SETTLED_MS)
    assert settle(Means(probes=True), tried=tried, now_ms=SETTLED_MS - 1) == Settle("wait", SETTLED_MS)
    assert settle(Means(probes=True), tried=tried, now_ms=SETTLED_MS) == Settle("ask")


MEANS = st.builds(
    Means,
    policy=st.sampled_from(["keep", "rollback"]),
    probes=st.booleans(),
    compensates=st.booleans(),
    handles_unknown=st.booleans(),
    key_ttl_s=st.sampled_from([10.0, 1000.0]),
    repeatable=st.booleans(),
)


@pytest.mark.contract("E8", "D6")
@given(MEANS, st.sampled_from(EFFECTS), st.integers(LOST_MS, LOST_MS + 60_000), st.booleans())
def test_settling_comes_to_an_end_and_guesses_nothing(
    means: Means, effect: Effect, now_ms: int, poison: bool
) -> None:
    """At most one probe and one repeat a pass; a wait ends later than now; a write is never sent again."""
    tried, seen = Tried(), list[str]()
    while True:
        move = settle(means, of=lost(effect), tried=tried, now_ms=now_ms, poison=poison)
        seen.append(move.move)
        if move.move == "probe":
            tried = dataclasses.replace(tried, probe="unknown")
        elif move.move == "repeat":
            assert effect == "idempotent"
            assert means.repeatable
            assert not poison
            tried = dataclasses.replace(tried, repeated=True)
        else:
            break
    assert len(seen) == len(set(seen)) <= 3
    assert move.move in ("wait", "undo", "ask")
    assert (move.at_ms > now_ms) == (move.move == "wait")


# --- the end of a pass ------------------------------------------------------------------------------------------------


def ends(
    *,
    unresolved: int = 0,
    waits_until_ms: int | None = None,
    out_of_time: bool = False,
    passes_used: int = 0,
    for_person: bool = False,
) -> Verdict:
    return decide_pass(
        unresolved=unresolved,
        waits_until_ms=waits_until_ms,
        out_of_time=out_of_time,
        passes_used=passes_used,
        for_person=for_person,
    )


@pytest.mark.contract("E8")
def test_the_numbers_of_a_cleanup_are_those_of_the_contract() -> None:
    """3 passes, 3 tries, waits of 1 and 2 seconds between them."""
    assert (PASSES, TRIES, WAITS_S) == (3, 3, (1.0, 2.0))


@pytest.mark.contract("E8")
@pytest.mark.parametrize(
    ("passes_used", "expected"), [(0, "again"), (1, "again"), (2, "review"), (3, "review")]
)
@pytest.mark.parametrize("unresolved", [0, 2])
def test_a_pass_that_ran_out_of_time_is_followed_by_another_until_three_are_used(
    passes_used: int, expected: str, unresolved: int
) -> None:
    """Also when something failed, waits, or a person is to look at it in any case: not all was tried yet."""
    for for_person in (True, False):
        for waits in (None, 7):
            verdict = ends(
                unresolved=unresolved,
                waits_until_ms=waits,
                out_of_time=True,
                passes_used=passes_used,
                for_person=for_person,
            )
            assert verdict == Verdict(expected)  # type: ignore[arg-type]


@pytest.mark.contract("E8")
@pytest.mark.parametrize("passes_used", [0, 2, 3])
def test_a_pass_waits_for_what_may_be_settled_later(passes_used: int) -> None:
    """Before anybody is asked; a moment of 0 is one, too."""
    assert ends(waits_until_ms=9, passes_used=passes_used) == Verdict("wait", 9)
    assert ends(waits_until_ms=9, unresolved=1, for_person=True) == Verdict("wait", 9)
    assert ends(waits_until_ms=0) == Verdict("wait", 0)


@pytest.mark.contract("E8", "E3")
@pytest.mark.parametrize("passes_used", [0, 2, 3])
@pytest.mark.parametrize(
    ("unresolved", "for_person", "expected"),
    [(0, False, "done"), (1, False, "review"), (0, True, "review"), (3, True, "review")],
)
def test_when_all_was_tried_the_run_is_made_good_or_goes_to_a_person(
    unresolved: int, for_person: bool, expected: str, passes_used: int
) -> None:
    """It never loops."""
    verdict = ends(unresolved=unresolved, for_person=for_person, passes_used=passes_used)
    assert verdict == Verdict(expected)  # type: ignore[arg-type]

"""Limits: which one holds, what measured durations suggest, and the rate of false kills (CONTRACT A7, A8)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makegood.tasks.rules.latency import bucket, value_ms
from makegood.tasks.rules.limits import (
    LIMIT_LEVELS,
    FalseKills,
    Measured,
    Suggestion,
    cut_share,
    field_of,
    rounded_up_s,
    set_or_declared_s,
    settle_after_s,
    suggest,
)

ENOUGH = 100


def test_the_levels_are_what_can_be_set() -> None:
    """L1, L2, L3; the total follows from L3 or is declared."""
    assert LIMIT_LEVELS == ("call", "step", "run")
    assert field_of("call", "look_up") == "call|look_up"


@pytest.mark.contract("A7")
@pytest.mark.parametrize(
    ("level", "name", "holds_s"),
    [
        ("call", "look", 3),  # set by hand
        ("call", "other", 8),  # another tool
        ("step", "look", 8),  # another level of the same name
        ("run", "a", 40),
    ],
)
def test_what_is_set_by_hand_comes_before_what_is_declared(level: Any, name: str, holds_s: float) -> None:
    """For that level and name, and for nothing else."""
    by_hand = {"call|look": 3.0, "run|a": 40.0}
    assert set_or_declared_s(by_hand, level, name, 8.0) == holds_s
    assert set_or_declared_s({}, level, name, 8.0) == 8.0


@pytest.mark.parametrize(
    ("own_s", "declared_s", "limit_s", "settles_s"),
    [
        (None, 10, 10, 10),
        (None, 10, 30, 30),  # a longer limit: a request may be under way for longer
        (None, 10, 1, 10),  # a shorter one: the downstream takes as long as before
        (0, 10, 30, 0),
        (5, 10, 1, 5),
    ],
)
def test_a_shorter_limit_does_not_settle_a_call_sooner(
    own_s: float | None, declared_s: float, limit_s: float, settles_s: float
) -> None:
    """What a tool says itself holds; else the longer of its declared limit and the one that holds."""
    assert settle_after_s(own_s, declared_s, limit_s) == settles_s


# --- suggestions ------------------------------------------------------------------------------------------------------


@pytest.mark.contract("A7")
@pytest.mark.parametrize(
    ("measured", "slow", "suggested_s"),
    [
        (Measured(), False, None),
        (Measured(1, 2.0, 2.0), False, None),
        (Measured(99, 2.0, 2.0), False, None),
        (Measured(99, 2.0, 90.0), True, None),
        (Measured(100, 2.0, 2.1), False, 2.6),
        (Measured(5000, 10.0, 10.0), False, 13.0),
        (Measured(5000, 0.0004, 0.001), False, 0.001),
        (Measured(5000, 2.0, 90.0), False, 2.6),  # the one that took so long is no reason
        (Measured(5000, 2.0, 90.0), True, 90.0),  # but for a slow tool it is
        (Measured(5000, 2.0, 2.5), True, 2.6),
        (Measured(5000, 2.0, None), True, 2.6),
    ],
)
def test_a_suggestion_is_the_p99_and_three_tenths(
    measured: Measured, slow: bool, suggested_s: float | None
) -> None:
    """Of a hundred samples and more; of a slow tool never less than its longest try."""
    assert suggest(measured, slow=slow).limit_s == suggested_s


@pytest.mark.contract("A7")
@pytest.mark.parametrize(("samples", "says"), [(0, "0 samples"), (1, "1 sample,"), (99, "99 samples")])
def test_too_few_samples_are_named(samples: int, says: str) -> None:
    """How many there are, and how many it takes."""
    (note,) = suggest(Measured(samples, 1.0, 1.0)).notes
    assert says in note
    assert "100" in note


@pytest.mark.contract("A7")
def test_enough_samples_need_no_words() -> None:
    """Nothing was cut, nobody complained."""
    assert suggest(Measured(100, 1.0, 1.0, cut=0.01), kills=FalseKills(199, 1)) == Suggestion(1.3)


@pytest.mark.contract("A8")
@pytest.mark.parametrize(
    ("kills", "says"),
    [
        (FalseKills(199, 1), False),  # exactly 0.5 %
        (FalseKills(198, 1), True),
        (FalseKills(0, 1), True),
        (FalseKills(0, 0, 50), False),
        (None, False),
    ],
)
def test_a_rate_of_false_kills_above_half_a_percent_is_told(kills: FalseKills | None, says: bool) -> None:
    """And then no limit of the agent is to be lowered, also when there are too few samples to suggest anything."""
    for samples in (10, ENOUGH):
        made = suggest(Measured(samples, 1.0, 1.0), kills=kills)
        assert any("false-kill rate" in note for note in made.notes) == says
        assert made.only_up == says
    assert made.differs_from(10) == (not says)
    assert made.differs_from(1.0)


@pytest.mark.contract("A7")
@pytest.mark.parametrize(("cut", "says"), [(0.0, False), (0.01, False), (0.011, True), (1.0, True)])
def test_a_percentile_that_the_limit_cut_off_proves_nothing(cut: float, says: bool) -> None:
    """It is told, and it is no reason to lower the limit; raising it is the way to learn more."""
    made = suggest(Measured(ENOUGH, 10.0, 10.0, cut))
    assert any("raise the limit" in note for note in made.notes) == says
    assert made.limit_s == 13
    assert made.differs_from(10)
    assert made.differs_from(30) == (not says)


@pytest.mark.parametrize(
    ("suggested_s", "limit_s", "differs"),
    [
        (None, 10, False),
        (10, 10, False),
        (10.5, 10, False),
        (9.5, 10, False),
        (10.6, 10, True),
        (9.4, 10, True),
    ],
)
def test_what_is_closer_than_a_percentile_is_known_is_no_difference(
    suggested_s: float | None, limit_s: float, differs: bool
) -> None:
    """Five percent."""
    assert Suggestion(suggested_s).differs_from(limit_s) == differs


# --- shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kills", "rate"),
    [
        (FalseKills(), None),
        (FalseKills(unknown=3), None),
        (FalseKills(1, 0), 0.0),
        (FalseKills(0, 2), 1.0),
        (FalseKills(3, 1, 50), 0.25),
    ],
)
@pytest.mark.contract("A8")
def test_the_rate_is_false_of_those_that_are_known(kills: FalseKills, rate: float | None) -> None:
    """Unknown verdicts say nothing."""
    assert kills.rate == rate


@pytest.mark.parametrize(
    ("counts_s", "limit_s", "earlier_s", "fired", "share"),
    [
        ({1.0: 99, 10.0: 1}, 10, [], 0, 0.01),
        ({1.0: 98, 10.0: 1, 12.0: 1}, 10, [], 0, 0.02),
        ({1.0: 100}, 10, [], 0, 0.0),
        ({1.0: 90, 10.0: 10}, 30, [], 0, 0.0),  # nothing came near the limit of now
        ({1.0: 90, 10.0: 10}, 30, [10], 0, 0.1),  # but near the one before it
        ({1.0: 90, 20.0: 10}, 30, [10], 0, 0.0),  # above it there is nothing to cut
        ({1.0: 95}, 10, [], 5, 5 / 95),
        ({}, 10, [], 5, 1.0),  # it fired, and left no duration
        ({}, 10, [], 0, 0.0),
    ],
)
def test_the_share_of_samples_that_ended_because_of_a_limit(
    counts_s: dict[float, int], limit_s: float, earlier_s: list[float], fired: int, share: float
) -> None:
    """By how long they took, or by how often it is known to have fired."""
    counts = {bucket(seconds * 1000): count for seconds, count in counts_s.items()}
    assert cut_share(counts, limit_s, earlier_s, fired) == pytest.approx(share)


@pytest.mark.parametrize(
    ("seconds", "rounded"),
    [
        (0, 0.001),
        (0.0001, 0.001),
        (0.00101, 0.002),
        (0.1234, 0.124),
        (1.3 * 10, 13),
        (13.01, 13.1),
        (99.91, 100),
        (3333.3, 3340),
    ],
)
def test_a_suggestion_is_what_a_person_would_type(seconds: float, rounded: float) -> None:
    """Three digits, rounded up; never below a millisecond."""
    assert rounded_up_s(seconds) == rounded


@given(st.floats(0.001, 1e6))
def test_rounding_never_goes_down_and_not_far_up(seconds: float) -> None:
    """One percent, or a millisecond."""
    rounded = rounded_up_s(seconds)
    assert seconds * (1 - 1e-9) <= rounded <= max(seconds * 1.011, seconds + 0.00101)


@given(st.floats(0.01, 1e5), st.integers(100, 10_000))
def test_a_slow_tool_is_never_suggested_less_than_its_longest_try(longest_s: float, samples: int) -> None:
    """Whatever its percentiles are."""
    p99_s = value_ms(bucket(longest_s * 10)) / 1000
    made = suggest(Measured(samples, p99_s, longest_s), slow=True).limit_s
    assert made is not None
    assert made >= longest_s * (1 - 1e-9)

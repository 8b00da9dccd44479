"""Call keys, latency buckets and the detector of repeated failures."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from makegood.tasks.rules.callkeys import (
    call_key_of,
    canonical_json,
    digest,
    idempotency_key,
    ordinal_of,
)
from makegood.tasks.rules.latency import (
    LONGEST_MS,
    SHORTEST_MS,
    bucket,
    merge,
    percentile,
    samples_in,
    value_ms,
)
from makegood.tasks.rules.repeated import Outcome, Repeats, Streak, error_signature, observe_step

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(list(value))}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@pytest.mark.contract("D3")
@given(JSON)
def test_the_order_of_keys_does_not_change_a_digest(value: Any) -> None:
    """Equal values have one canonical text and one digest."""
    assert canonical_json(reversed_keys(value)) == canonical_json(value)
    assert digest(reversed_keys(value)) == digest(value)


@pytest.mark.contract("D3")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {}),
        ([1, 2], [2, 1]),
        ({"a": True}, {"a": 1}),
        ("\u00e9", "e\u0301"),
    ],
)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    """Types, order in lists and presence count."""
    assert digest(one) != digest(other)


@pytest.mark.parametrize("value", [{"n": 2**70}, {"s": "\ud800"}, {"d": [[[]]]}])
def test_whatever_a_model_may_send_has_a_digest(value: Any) -> None:
    """Also integers beyond 64 bits and broken surrogates."""
    assert len(digest(value)) == 16


def test_what_is_not_json_is_refused() -> None:
    """An object without a JSON form is the caller's mistake."""
    with pytest.raises(TypeError):
        canonical_json({"x": object()})


@pytest.mark.contract("D3")
def test_call_keys_name_tool_identity_and_ordinal() -> None:
    """The digest is pinned: a key must not change between releases, or a repeat would not be recognised."""
    key = call_key_of("mail", digest({"n": 1, "to": "a@b"}), 2)
    assert key == "mail:7b5bb06a9b1c45c4:2"
    assert idempotency_key("07-r", key, 1) == "07-r:mail:7b5bb06a9b1c45c4:2:1"
    assert [ordinal_of(text) for text in (key, f"{key}/child:00:13", "mail", "mail:x:", "")] == [
        2,
        13,
        0,
        0,
        0,
    ]


@pytest.mark.contract("A7")
@settings(max_examples=200)
@given(
    samples=st.lists(st.floats(SHORTEST_MS, LONGEST_MS), min_size=1, max_size=200),
    q=st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]) | st.floats(0, 1),
)
def test_percentiles_are_within_five_per_cent_of_the_exact_ones(samples: list[float], q: float) -> None:
    """P50, P95, P99 and max of any data, by nearest rank."""
    counts = merge(*({bucket(ms): 1} for ms in samples))
    exact = sorted(samples)[max(1, math.ceil(q * len(samples) - 1e-9)) - 1]
    assert percentile(counts, q) == pytest.approx(exact, rel=0.05)


@pytest.mark.contract("A7")
@given(st.lists(st.floats(0.01, 1e6), max_size=50), st.lists(st.floats(0.01, 1e6), max_size=50))
def test_merged_buckets_are_the_buckets_of_all_samples(one: list[float], other: list[float]) -> None:
    """Workers and hours can be added up in any order."""

    def counted(samples: list[float]) -> dict[int, int]:
        return merge(*({bucket(ms): 1} for ms in samples))

    together = merge(counted(one), counted(other))
    assert together == counted(one + other) == merge(counted(other), counted(one))
    assert samples_in(together) == len(one) + len(other)


def test_no_samples_have_no_percentile() -> None:
    """Too little is said to be nothing, not 0; empty buckets do not count."""
    assert percentile({}, 0.5) is None
    assert percentile({3: 0}, 0.5) is None
    assert percentile({3: 1, 9: 0}, 1) == value_ms(3)
    with pytest.raises(ValueError, match="from 0 to 1"):
        percentile({3: 1}, 95)


def test_the_seventh_of_a_hundred_is_the_seventh() -> None:
    """0.07 × 100 is 7.000000000000001 in floats and still rank 7."""
    assert percentile(dict.fromkeys(range(1, 101), 1), 0.07) == value_ms(7)


@pytest.mark.parametrize("ms", [0.0, -5.0, float("inf"), 1e30])
def test_impossible_durations_are_clamped(ms: float) -> None:
    """A clock that went backwards does not break the numbers."""
    assert bucket(SHORTEST_MS) <= bucket(ms) <= bucket(LONGEST_MS)


FAIL = Outcome("pay", "d1", "HTTP_404", "no order")


def after(*steps: list[Outcome]) -> Repeats:
    repeats = Repeats()
    for step in steps:
        repeats = observe_step(repeats, step)
    return repeats


@pytest.mark.contract("A5")
@pytest.mark.parametrize(
    ("steps", "tripped"),
    [
        ([[FAIL]] * 2, False),
        ([[FAIL]] * 3, True),
        ([[FAIL, FAIL, FAIL]], True),
        ([[FAIL], [FAIL, FAIL]], True),
        ([[FAIL], [Outcome("pay", "d1")], [FAIL], [FAIL]], False),
        ([[FAIL], [Outcome("other", "d9")], [FAIL], [FAIL]], False),
        ([[FAIL], [], [FAIL], [FAIL]], False),
        ([[FAIL, Outcome("other", "d9")]] * 3, True),
        ([[Outcome("other", "d9"), FAIL], [FAIL, Outcome("other", "d8")], [FAIL]], True),
        ([[FAIL], [Outcome("pay", "d2", "HTTP_404", "no order")], [FAIL]], False),
        ([[FAIL], [Outcome("pay", "d1", "HTTP_403", "no order")], [FAIL]], False),
        ([[FAIL], [Outcome("pay", "d1", "HTTP_404", "no account")], [FAIL]], False),
        ([[FAIL], [Outcome("refund", "d1", "HTTP_404", "no order")], [FAIL]], False),
        ([[Outcome("made_up", "d1", "UNKNOWN_TOOL", "no tool made_up")]] * 3, True),
        ([[Outcome("pay", "d1", "E", f"timed out at {n}:0{n}")] for n in (1, 22, 3)], True),
    ],
)
def test_the_same_failing_call_three_times_in_a_row_trips(steps: list[list[Outcome]], tripped: bool) -> None:
    """Same tool, arguments and error; parallel others do not hide it, a step without it breaks the row."""
    assert (after(*steps).tripped is not None) == tripped


@pytest.mark.contract("C9")
@pytest.mark.parametrize("code", ["BREAKER_OPEN", "POSSIBLE_REPEAT"])
def test_a_call_that_was_not_run_neither_counts_nor_breaks_the_row(code: str) -> None:
    """An open breaker does not count for A5."""
    not_run = [Outcome("pay", "d1", code, "open")]
    assert after(*[not_run] * 5) == Repeats()
    assert after([FAIL], not_run, [FAIL]).tripped is None
    assert after([FAIL], not_run, [FAIL], [FAIL]).tripped is not None
    assert after([FAIL], [FAIL], [Outcome("other", "d1", code, "open")], [FAIL]).tripped is None


def test_what_tripped_is_named() -> None:
    """The run's error says which call it was."""
    streak = after([FAIL], [FAIL], [FAIL]).tripped
    assert streak == Streak("pay", "d1", error_signature("HTTP_404", "no order"), 3)


@pytest.mark.contract("D3")
def test_both_writers_of_canonical_json_write_the_same() -> None:
    """What only the standard library can write has no blanks and sorted keys, too."""
    assert canonical_json({"b": [1, 2], "a": {"d": 1, "c": 2}}) == b'{"a":{"c":2,"d":1},"b":[1,2]}'
    assert canonical_json({"b": [2**70, 2], "a": "é"}) == b'{"a":"\\u00e9","b":[1180591620717411303424,2]}'


@pytest.mark.parametrize("q", [-0.01, 1.01, 2])
def test_a_share_is_between_nothing_and_all(q: float) -> None:
    """A percentage is no share."""
    with pytest.raises(ValueError, match="from 0 to 1"):
        percentile({3: 1}, q)


@pytest.mark.contract("A5")
def test_errors_are_the_same_when_only_their_numbers_differ() -> None:
    """Each number counts as one, however long."""
    assert error_signature("HTTP_404", "order 17 of 4: no") == "HTTP_404: order # of #: no"

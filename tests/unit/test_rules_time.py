"""Deadlines, backoff and Retry-After: the numbers that decide when something ends or is sent again."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makegood.tasks.rules.backoff import backoff_s
from makegood.tasks.rules.deadline import LEVELS, Deadline, Level, outermost
from makegood.tasks.rules.retry_after import parse_retry_after_ms


@pytest.mark.contract("A2")
@pytest.mark.parametrize(
    ("own_s", "parent_left_s", "at_s", "level"),
    [
        (10, 60, 110, "call"),
        (60, 10, 110, "step"),
        (10, 10, 110, "step"),
        (None, 60, 160, "step"),
        (10, None, 110, "call"),
        (10, 0, 100, "step"),
    ],
)
def test_a_child_ends_at_the_minimum_of_its_limit_and_its_parent(
    own_s: float | None, parent_left_s: float | None, at_s: float, level: Level
) -> None:
    """Each level is the minimum of its own limit and what is left of its parent, and says whose limit binds."""
    parent = Deadline.after(parent_left_s, 100, "step")
    assert parent.child(own_s, 100, "call") == Deadline(at_s, level)


@pytest.mark.contract("A2")
def test_a_grandchild_is_bounded_by_the_outermost_limit() -> None:
    """A call of a step of an attempt with 3 s left has 3 s, and it is the run's limit that binds."""
    run = Deadline.after(3, 0, "run")
    call = run.child(60, 0, "step").child(10, 0, "call")
    assert (call.left_s(1), call.level) == (2, "run")


def test_what_is_left_is_never_negative_and_expires_at_its_instant() -> None:
    """A deadline has 0 left from its instant on; one without a limit never expires."""
    deadline = Deadline(5, "call")
    assert [deadline.left_s(now) for now in (4, 5, 6)] == [1, 0, 0]
    assert [deadline.expired(now) for now in (4.999, 5, 6)] == [False, True, True]
    endless = Deadline.after(None, 0, "total")
    assert endless.left_s(1e9) == math.inf
    assert not endless.expired(1e9)
    assert Deadline.after(-1, 7, "call").at_s == 7


@pytest.mark.parametrize("outer", LEVELS[1:])
def test_of_two_limits_at_one_instant_the_outer_one_binds(outer: Level) -> None:
    """Equal instants are labelled by the level that ends more, whoever is asked."""
    inner = Deadline(1, "call")
    assert inner.min(Deadline(1, outer)).level == outer
    assert Deadline(1, outer).min(inner).level == outer
    assert inner.min(Deadline(2, outer)) == Deadline(2, outer).min(inner) == inner


@pytest.mark.contract("J11")
def test_waits_double_and_stay_at_the_cap() -> None:
    """200, 400, then the cap of 500 ms for ever."""
    waits = [backoff_s(n, base_s=0.2, cap_s=0.5, jitter=0, rnd=0.7) for n in (1, 2, 3, 4, 50, 5000)]
    assert waits == [0.2, 0.4, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.contract("J12")
@pytest.mark.parametrize("rnd", [0.0, 0.5, 0.999])
def test_backoff_0_does_not_wait(rnd: float) -> None:
    """A base of 0 is no wait, whatever the jitter."""
    assert [backoff_s(n, base_s=0, cap_s=10, jitter=0.1, rnd=rnd) for n in (1, 9)] == [0, 0]


@pytest.mark.contract("C2")
@pytest.mark.parametrize(
    ("try_no", "rnd", "wait_s"),
    [
        (1, 0.0, 0.45),
        (1, 0.5, 0.5),
        (1, 1 - 1e-12, 0.55),
        (5, 0.0, 7.2),
        (6, 0.0, 9.0),
        (6, 0.5, 10),
        (6, 0.9, 10),
    ],
)
def test_jitter_spreads_by_ten_per_cent_and_is_capped_again(try_no: int, rnd: float, wait_s: float) -> None:
    """The model's backoff: 500 ms doubling to 10 s, ± 10 %, never above the cap."""
    assert backoff_s(try_no, base_s=0.5, cap_s=10, jitter=0.1, rnd=rnd) == pytest.approx(wait_s)


def test_retries_are_counted_from_one() -> None:
    """A zeroth retry is a mistake of the caller and said so."""
    with pytest.raises(ValueError, match="from 1"):
        backoff_s(0, base_s=1, cap_s=1, jitter=0, rnd=0)


NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110


@pytest.mark.contract("C2")
@pytest.mark.parametrize(
    ("headers", "ms"),
    [
        ({"retry-after": "3"}, 3000),
        ({"Retry-After": " 3 "}, 3000),
        ({"RETRY-AFTER": "0.3"}, 300),
        ({"retry-after": "0"}, 0),
        ({"retry-after-ms": "250"}, 250),
        ({"Retry-After-Ms": "250.2"}, 251),
        ({"retry-after-ms": "250", "retry-after": "9"}, 250),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9000),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:42 GMT"}, 5000),
        ({"retry-after": "Sunday, 06-Nov-94 08:49:42 GMT"}, 5000),
        ({"retry-after": "Sun Nov  6 08:49:42 1994"}, 5000),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:30 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Sun, 99 Nov 1994 08:49:30 GMT"}, None),
        ({}, None),
        ({"x-retry-after": "3"}, None),
    ],
)
def test_retry_after_is_read_in_its_three_forms(headers: dict[str, str], ms: int | None) -> None:
    """Milliseconds, seconds and HTTP dates count; anything else is as if nothing had been said."""
    assert parse_retry_after_ms(headers, NOW) == ms


def test_retry_after_never_rounds_to_an_earlier_moment() -> None:
    """Half a millisecond too early would still be too early."""
    assert parse_retry_after_ms({"retry-after": "Sun, 06 Nov 1994 08:49:38 GMT"}, NOW + 0.2004) == 800
    assert parse_retry_after_ms({"retry-after": "0.0001"}, NOW) == 1


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_date_without_a_zone_is_utc_wherever_the_worker_runs(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The asctime form of RFC 9110 names no zone and means GMT."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        assert parse_retry_after_ms({"retry-after": "Sun Nov  6 08:49:42 1994"}, NOW) == 5000
    time.tzset()


@given(st.text(max_size=40) | st.from_regex(r"[0-9.,: A-Za-z+-]{0,40}"))
def test_no_header_text_breaks_the_parser(text: str) -> None:
    """Whatever a server sends: a number of milliseconds that is not negative, or nothing."""
    for name in ("retry-after", "retry-after-ms"):
        ms = parse_retry_after_ms({name: text}, NOW)
        assert ms is None or ms >= 0


@pytest.mark.contract("F7")
@pytest.mark.parametrize(
    ("expired", "level"),
    [
        ({"call"}, "call"),
        ({"call", "step"}, "step"),
        ({"step", "run"}, "run"),
        ({"call", "run"}, "run"),
        ({"run", "total", None}, "total"),
        ({None}, None),
        (set(), None),
    ],
)
def test_of_limits_that_are_reached_at_the_same_moment_the_outermost_says_what_ends(
    expired: set[Level | None], level: Level | None
) -> None:
    """Cancel, which wins over all of them, is looked at before (tests/contract/test_engine_cancel.py)."""
    assert outermost(expired) == level

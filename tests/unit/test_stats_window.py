"""The window that numbers are asked for: what may be said, and what is refused."""

from __future__ import annotations

import pytest

from makegood.errors import InvalidInput
from makegood.monitoring.window import DAYS, Window, moment, window_of
from makegood.store.buckets import HOURS_KEPT
from makegood.store.ops.numbers import HOUR_MS

NOW_MS = 1_795_860_930_000
"""2026-11-28T10:15:30Z."""

NOW_HOUR = NOW_MS // HOUR_MS


@pytest.mark.parametrize(
    ("since", "until", "first", "last"),
    [
        ("24h", None, NOW_HOUR - 24, NOW_HOUR),
        ("7d", None, NOW_HOUR - 168, NOW_HOUR),
        ("14d", None, NOW_HOUR - 336, NOW_HOUR),
        ("2w", None, NOW_HOUR - 336, NOW_HOUR),
        ("90m", None, NOW_HOUR - 2, NOW_HOUR),
        ("1s", None, NOW_HOUR, NOW_HOUR),
        ("3h", "1h", NOW_HOUR - 3, NOW_HOUR - 1),
        ("2026-11-28T08:00Z", None, NOW_HOUR - 2, NOW_HOUR),
        ("2026-11-28T08:00", None, NOW_HOUR - 2, NOW_HOUR),
        ("2026-11-28T09:00+01:00", None, NOW_HOUR - 2, NOW_HOUR),
        ("2026-11-28", "2026-11-28T10:00Z", NOW_HOUR - 10, NOW_HOUR - 1),
        ("2026-11-28T08:59:59.999Z", "2026-11-28T09:00:00.001Z", NOW_HOUR - 2, NOW_HOUR - 1),
    ],
)
def test_a_window_is_rounded_outwards_to_whole_hours(
    since: str, until: str | None, first: int, last: int
) -> None:
    """Durations reach back from now; times are UTC unless they say otherwise; an end on the hour adds no hour."""
    window = window_of(since, until, NOW_MS)
    assert (window.first, window.last) == (first, last)
    assert list(window.hours) == list(range(first, last + 1))


def test_the_hour_that_is_not_over_ends_now() -> None:
    """What is printed is exactly what was counted."""
    assert window_of("90m", None, NOW_MS).to_dict() == {
        "since": "2026-11-28T08:00:00.000Z",
        "until": "2026-11-28T10:15:30.000Z",
        "hours": 3,
    }
    assert Window(NOW_HOUR - 1, NOW_HOUR - 1, NOW_MS).to_dict()["until"] == "2026-11-28T10:00:00.000Z"


@pytest.mark.parametrize(
    ("since", "until", "said"),
    [
        ("15d", None, "--since 15d is more than 14 days ago"),
        ("999999999999w", None, "more than 14 days ago"),
        ("2026-11-14T10:15:29Z", None, "more than 14 days ago"),
        ("0001-01-01", None, "more than 14 days ago"),
        ("2026-11-28T10:16Z", None, "--since 2026-11-28T10:16Z is in the future"),
        ("24h", "2026-11-28T11:00Z", "--until 2026-11-28T11:00Z is in the future"),
        ("1h", "2h", "no end after its beginning"),
        ("1h", "1h", "no end after its beginning"),
        ("0h", None, "no end after its beginning"),
        ("soon", None, "--since 'soon' is no duration such as 90m"),
        ("24", None, "is no duration"),
        ("24H", None, "is no duration"),
        ("-1h", None, "is no duration"),
        ("٣h", None, "is no duration"),
        ("", None, "is no duration"),
        ("24h", "2026-13-01", "--until '2026-13-01' is no duration"),
    ],
)
def test_what_is_no_window_is_refused_in_one_sentence(since: str, until: str | None, said: str) -> None:
    """Too far back, in the future, without an end, or no time at all."""
    with pytest.raises(InvalidInput) as refused:
        window_of(since, until, NOW_MS)
    assert said in str(refused.value)
    assert str(refused.value).endswith(".")


def test_the_longest_window_is_kept_by_the_store() -> None:
    """Its first hour has not expired when its last one is counted."""
    longest = window_of(f"{DAYS}d", None, NOW_MS)
    assert len(longest.hours) == 337
    assert HOURS_KEPT * HOUR_MS == 15 * 86_400_000
    assert len(longest.hours) < HOURS_KEPT


def test_a_moment_is_exact() -> None:
    """In ms."""
    assert moment("2026-11-28T10:15:30.250Z", NOW_MS, "--since") == NOW_MS + 250

"""From fields of the store to samples: sums, buckets, caps, and what is passed over."""

from __future__ import annotations

import logging

import pytest

from makegood.monitoring.label_caps import LabelCaps
from makegood.monitoring.tally import Tally


@pytest.fixture
def tally() -> Tally:
    """An empty one."""
    return Tally(LabelCaps())


def test_a_histogram_is_cumulative(tally: Tally) -> None:
    """The store holds each sample in one bucket; sums are in ms there, in seconds here."""
    tally.read_series("agent:a", {"step_duration_seconds|0.1": 2, "step_duration_seconds|600": 1, "step_duration_seconds|inf": 1, "step_duration_seconds|sum": 1234})  # fmt: skip
    histogram = tally.histograms["step_duration_seconds"][("a",)]
    assert histogram.cumulative() == [2] * 11 + [3, 4]
    assert histogram.sum == pytest.approx(1.234)


def test_a_bound_of_another_version_counts_into_the_next_higher_bucket(tally: Tally) -> None:
    """After an update of the bounds no sample is lost, and none seems faster than it was."""
    tally.read_series("agent:a", {"step_duration_seconds|0.3": 1, "step_duration_seconds|9999": 1})
    assert tally.histograms["step_duration_seconds"][("a",)].counts == [0, 0, 1] + [0] * 9 + [1]


def test_tries_of_calls_are_counted_by_their_durations(tally: Tally) -> None:
    """Those that never went out have a counter of their own."""
    tally.read_series("tool:t", {"call_duration_seconds|ok|0.05": 2, "call_duration_seconds|ok|inf": 1, "call_duration_seconds|ok|sum": 9, "calls_total|replayed": 4})  # fmt: skip
    assert tally.values["calls_total"] == {("t", "ok"): 3, ("t", "replayed"): 4}


@pytest.mark.parametrize(
    "field",
    [
        "runs_paused_total|a",
        "runs_finished_total|a",
        "runs_enqueued_total",
        "store_up|a",
        "calls_total|t|ok",
        "",
    ],
)
def test_an_unknown_counter_is_passed_over(
    tally: Tally, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What a newer worker counts stops no scrape; the debug log names it."""
    with caplog.at_level(logging.DEBUG, "makegood.monitor"):
        tally.read_counters({field: 1, "runs_enqueued_total|a": 2})
    known = {
        "runs_enqueued_total": {("a",): 2, **({("unknown",): 1} if field == "runs_enqueued_total" else {})}
    }
    assert tally.values == known
    assert (repr(field) in caplog.text) == (field != "runs_enqueued_total")


@pytest.mark.parametrize("field", ["calls_total", "call_duration_seconds|ok", "call_duration_seconds|ok|x", "call_duration_seconds|ok|-1", "call_duration_seconds|ok|1|2", "hops|1"])  # fmt: skip
def test_an_unknown_field_of_a_series_is_passed_over(tally: Tally, field: str) -> None:
    """Also one of a kind of series that is not known."""
    tally.read_series("tool:t", {field: 1})
    tally.read_series("planet:mars", {"calls_total|replayed": 1})
    assert (tally.values, tally.histograms) == ({}, {})


def test_a_name_may_hold_the_separator(tally: Tally) -> None:
    """Only the first label is a name; an empty label would be one that is not there, so it is called unknown."""
    tally.read_counters({"breaker_transitions_total|a|b|open": 1})
    tally.read_counters({"retries_total|attempt|": 1})
    assert tally.values == {
        "breaker_transitions_total": {("a|b", "open"): 1},
        "retries_total": {("attempt", "unknown"): 1},
    }


def test_above_the_cap_names_share_other() -> None:
    """Counters and histograms of them are summed."""
    tally = Tally(LabelCaps({"agent": 1}))
    for name in ("a", "b", "c"):
        tally.read_counters({f"runs_enqueued_total|{name}": 2})
        tally.read_series(f"agent:{name}", {"run_steps|2": 1, "run_steps|sum": 2})
    assert tally.values["runs_enqueued_total"] == {("a",): 2, ("other",): 4}
    assert tally.histograms["run_steps"]["other",].cumulative() == [0] + [2] * 10
    assert tally.histograms["run_steps"]["other",].sum == 4


def test_a_name_keeps_its_place_as_long_as_the_process_lives() -> None:
    """First come, first shown: what is in `other` stays there, so that no counter goes down."""
    caps = LabelCaps({"agent": 2})
    assert [caps.admit("agent", each) for each in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]
    caps.admit_all("agent", ["c", "d"])
    assert [caps.admit("agent", each) for each in ("c", "b", "d")] == ["other", "b", "other"]


def test_labels_of_closed_lists_are_capped_too() -> None:
    """A worker of another version cannot make a series for each text it thinks of."""
    caps = LabelCaps()
    assert len({caps.admit("cause", f"cause {number}") for number in range(1000)}) == 51


def test_counters_of_what_is_known_begin_at_zero(tally: Tally) -> None:
    """So that the first increase is one; a label without a closed list is not guessed."""
    tally.read_counters({"timed_out_runs_total|a|yes": 1})
    tally.fill_up({"agent": ["a"]})
    assert tally.values["timed_out_runs_total"] == {("a", "yes"): 1, ("a", "no"): 0}
    assert tally.values["runs_finished_total"]["a", "expired"] == 0
    assert tally.values["reviews_resolved_total"] == {
        ("a", action): 0 for action in ("retry", "resume", "resolve")
    }
    assert tally.values["operator_actions_total"]["breaker_open", "done"] == 0
    assert "reviews_total" not in tally.values
    assert "calls_total" not in tally.values

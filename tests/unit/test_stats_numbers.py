"""The arithmetic behind `makegood stats`, table by table, without a store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from makegood.cli.stats import counts, duration, mean, more_lines, row_of, share
from makegood.monitoring.metrics import METRICS, sample_names
from makegood.monitoring.readings import ages_s, total
from makegood.monitoring.stats import Counted, Ratio, Stats, not_closed, run_numbers, stats_of
from makegood.monitoring.window import Window
from makegood.store.ops.numbers import HOUR_MS, WAITING

NOW_MS = 500_000 * HOUR_MS + 930_000
WINDOW = Window(499_999, 500_000, NOW_MS)

PARTS: list[dict[str, int]] = [
    {
        "runs_enqueued_total|a": 6,
        "runs_finished_total|a|succeeded": 3,
        "runs_finished_total|a|timed_out": 2,
        "run_steps|a|sum": 11,
        "run_calls|a|tool|sum": 9,
        "run_calls|a|model|sum": 12,
        "timed_out_runs_total|a|yes": 1,
        "timed_out_runs_total|a|no": 1,
        "cleanups_total|a|timeout|clean": 2,
        "cleanups_total|a|failure|failed": 1,
        "reviews_total|a|COMPENSATION_FAILED": 1,
        "retries_skipped_total|deadline": 2,
        "recoveries_total|continued": 1,
        "recovery_seconds|sum_ms": 400,
    },
    {
        "runs_finished_total|a|succeeded": 1,
        "runs_finished_total|b|failed": 1,
        "run_steps|a|sum": 4,
        "run_steps|b|sum": 2,
        "retried_runs_total|a|succeeded": 3,
        "retried_runs_total|b|requires_manual_review": 1,
        "timeout_verdicts_total|a|true_kill": 3,
        "timeout_verdicts_total|a|false_kill": 1,
        "timeout_verdicts_total|a|unknown": 5,
        "cleanups_total|b|failure|clean": 4,
        "reviews_resolved_total|b|retry": 1,
        "recoveries_total|restarted": 1,
        "recovery_seconds|sum_ms": 200,
        "unknown_outcomes_total|pay|happened": 1,
        "unknown_outcomes_total|book|happened": 2,
        "redeliveries_total|fenced": 7,
    },
]

COUNTED = Counted(total(PARTS))


def numbers(agent: str | None = None, **over: Any) -> Stats:
    """All numbers of the parts above."""
    given: dict[str, Any] = {"now": {}, "ages_s": {}, "breakers_now": {}} | over
    return stats_of(WINDOW, COUNTED, given["now"], given["ages_s"], given["breakers_now"], agent)


@pytest.mark.contract("I1")
def test_means_and_shares_are_divided_after_hours_and_shards_were_added_up() -> None:
    """Steps, calls to tools, requests to the model, cleaned up, recovered and false kills of one agent."""
    a = run_numbers(COUNTED, "a", {"queued": 2})
    assert (a.enqueued, a.finished) == (6, 6)
    assert {name: count for name, count in a.outcomes.items() if count} == {"succeeded": 4, "timed_out": 2}
    assert (a.steps, a.tool_calls, a.model_requests) == (Ratio(15, 6), Ratio(9, 6), Ratio(12, 6))
    assert (a.cleaned, a.recovered, a.false_kills) == (Ratio(1, 2), Ratio(3, 3), Ratio(1, 4))
    assert a.now == dict.fromkeys(WAITING, 0) | {"queued": 2}


@pytest.mark.contract("I1")
def test_the_row_for_all_is_counted_and_not_a_mean_of_means() -> None:
    """17 steps of 7 runs; a run in review had a retry and did not recover."""
    found = numbers(now={"a": {"queued": 1}, "b": {"queued": 2, "running": 1}})
    assert [each.agent for each in found.agents] == ["a", "b"]
    assert found.all.agent is None
    assert (found.all.steps, found.all.recovered) == (Ratio(17, 7), Ratio(3, 4))
    assert found.all.now == dict.fromkeys(WAITING, 0) | {"queued": 3, "running": 1}


@pytest.mark.contract("I1")
def test_what_has_no_agent_is_summed_over_tools_and_causes() -> None:
    """Skipped retries, recoveries and how long they took, unknown outcomes, redeliveries, cleanups, reviews."""
    found = numbers().to_dict()
    assert found["retries_skipped"] == {"deadline": 2, "breaker": 0}
    assert found["recoveries"] == {"continued": 1, "restarted": 1}
    assert found["recovery_seconds"] == {"value": 0.3, "numerator": 0.6, "denominator": 2}
    assert found["unknown_outcomes"] == {
        "happened": 3,
        "not_happened": 0,
        "compensated": 0,
        "requires_manual_review": 0,
    }
    assert found["redeliveries"] == {"resumed": 0, "done": 0, "fenced": 7}
    assert found["cleanups"] == {"clean": 6, "partial": 0, "failed": 1}
    assert (found["reviews_opened"], found["reviews_resolved"]) == (1, {"retry": 1})


def test_with_an_agent_only_its_own_numbers_are_left() -> None:
    """Cleanups and reviews are those of the agent; what has no agent stays whole, and a person is told so."""
    found = numbers("b")
    assert [each.agent for each in found.agents] == ["b"]
    assert (found.all.finished, found.all.steps) == (1, Ratio(2, 1))
    assert found.cleanups == {"clean": 4, "partial": 0, "failed": 0}
    assert (found.reviews_opened, found.reviews_resolved) == (0, {"retry": 1})
    lines = dict(more_lines(found))
    assert lines["redeliveries"] == "0 resumed, 0 done, 7 fenced (of all agents)"
    assert lines["reviews"] == "0 opened, 1 decided (1 retry)"


def test_nothing_counted_is_no_number_and_never_a_division() -> None:
    """Null for programs, a dash for a person."""
    found = stats_of(WINDOW, Counted({}), {}, {}, {})
    assert found.agents == ()
    for name in ("steps_per_run", "timed_out_cleaned", "retried_recovered", "false_kills"):
        assert found.all.to_dict()[name] == {"value": None, "numerator": 0, "denominator": 0}
    assert row_of(found.all, "all") == ("all", "0", "0", "–", "–", "–", "–", "–", "–", "0")
    assert found.to_dict()["recovery_seconds"]["value"] is None


def test_an_agent_whose_runs_only_wait_has_a_row_and_one_without_any_has_none() -> None:
    """What happened before the window does not keep an agent in the table."""
    found = stats_of(WINDOW, Counted({}), {"idle": {"queued": 0}, "busy": {"cleaning": 1}}, {}, {})
    assert [each.agent for each in found.agents] == ["busy"]


def test_a_counter_that_is_not_known_is_shown_too() -> None:
    """A newer worker may count under another label; fields that are no counters do no harm."""
    counted = Counted({"retries_skipped_total|budget": 1, "odd": 3, "cleanups_total|a": 1})
    found = stats_of(WINDOW, counted, {}, {}, {})
    assert found.retries_skipped == {"deadline": 0, "breaker": 0, "budget": 1}


def test_the_oldest_of_all_shards_is_the_oldest() -> None:
    """By state; a clock that went back makes no negative age."""
    found: list[float | None] = [None] * (2 * len(WAITING))
    found[0], found[1], found[3] = NOW_MS - 1500.0, NOW_MS - 9000.0, NOW_MS + 50.0
    ages = numbers(ages_s=ages_s(found, NOW_MS)).oldest_s
    assert (ages["queued"], ages["parked"], ages["running"]) == (9.0, 0.0, None)


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, []),
        ({"state": "closed", "failures_ms": "1,2"}, []),
        ({"state": "open", "open_until_ms": str(NOW_MS + 1)}, [("open", True)]),
        ({"state": "open", "open_until_ms": str(NOW_MS)}, [("half_open", True)]),
        ({"state": "open", "open_until_ms": "1", "held": "1"}, [("open", False)]),
        ({"state": "half_open", "open_until_ms": "1"}, [("half_open", True)]),
    ],
)
def test_only_breakers_that_are_not_closed_are_named(
    fields: dict[str, str], seen: list[tuple[str, bool]]
) -> None:
    """As they are at this moment: one whose time is over waits half open."""
    found = not_closed({"warehouse": fields}, NOW_MS)
    assert [(each.state, each.until is not None) for each in found] == seen


@pytest.mark.parametrize(
    ("numerator", "denominator", "text"),
    [
        (12, 13, "92.3 % (12 of 13)"),
        (0, 3, "0 % (0 of 3)"),
        (3, 3, "100 % (3 of 3)"),
        (9999, 10000, "99.9 % (9999 of 10000)"),
        (1, 10000, "0.1 % (1 of 10000)"),
        (0, 0, "–"),
    ],
)
def test_a_share_is_shown_with_what_it_is_made_of(numerator: int, denominator: int, text: str) -> None:
    """Rounding claims neither all nor none."""
    assert share(Ratio(numerator, denominator)) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(Ratio(6, 2), "3"), (Ratio(10, 3), "3.33"), (Ratio(5, 2), "2.5"), (Ratio(0, 4), "0")]
)
def test_a_mean_has_two_decimals_at_most(ratio: Ratio, text: str) -> None:
    """And none where it is whole."""
    assert mean(ratio) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1 min"),
        (3725, "1 h 2 min"),
        (90_000, "1 d 1 h"),
        (7200, "2 h"),
    ],
)
def test_an_age_is_told_in_two_units(seconds: float, text: str) -> None:
    """As a person would."""
    assert duration(seconds) == text


def test_the_state_that_waits_for_a_person_is_called_review() -> None:
    """Its name is longer than a column."""
    assert counts({"queued": 2, "requires_manual_review": 1}) == "2 queued, 1 review"


def test_the_page_of_numbers_names_everything_that_json_has_and_only_metrics_that_exist() -> None:
    """docs/numbers.md cannot fall behind."""
    page = (Path(__file__).parents[2] / "docs" / "numbers.md").read_text(encoding="utf-8")
    found = numbers().to_dict()
    for name in (*found, *found["all"]):
        assert f"`{name}`" in page, name
    samples = {name for metric in METRICS for name in sample_names(metric)}
    assert set(re.findall(r"makegood_[a-z_]+", page)) <= samples

"""Which counters an event stands for (CONTRACT I2)."""

from __future__ import annotations

import pytest

from makegood.tasks.rules import counting
from makegood.tasks.rules.failures import TRANSPORT_CODES


def test_a_replay_counts_for_its_tool_and_as_an_effect_that_was_not_doubled() -> None:
    """A read has no effect that could be doubled."""
    assert counting.replayed("mail", has_effect=True) == (
        "@tool:mail>calls_total|replayed",
        "effects_deduplicated_total|mail",
    )
    assert counting.replayed("find", has_effect=False) == ("@tool:find>calls_total|replayed",)


def test_an_open_breaker_counts_by_its_name_and_for_the_tool_that_was_not_called() -> None:
    """A request to a model belongs to no tool."""
    assert counting.rejected("crm", "mail") == (
        "breaker_rejected_total|crm",
        "@tool:mail>calls_total|breaker_open",
    )
    assert counting.rejected("openai/m") == ("breaker_rejected_total|openai/m",)


@pytest.mark.parametrize(
    ("level", "counted"), [("call", True), ("step", False), ("run", False), (None, False)]
)
def test_a_cut_try_counts_as_l1_only_when_its_own_limit_cut_it(level: str | None, counted: bool) -> None:
    """The others end the attempt, and count there."""
    assert counting.call_limit("a", level) == (("timeouts_total|a|call",) if counted else ())


@pytest.mark.parametrize(
    ("code", "level"),
    [
        ("STEP_TIMEOUT", "step"),
        ("RUN_TIMEOUT", "run"),
        ("TOTAL_TIMEOUT", "total"),
        ("AUTH", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("again", [True, False])
def test_the_end_of_an_attempt_names_the_limit_and_the_next_attempt(
    code: str | None, level: str | None, again: bool
) -> None:
    """Each counts apart."""
    fired = [f"timeouts_total|a|{level}"] if level else []
    retried = [f"retries_total|attempt|{code}"] if again else []
    assert counting.attempt_ended("a", code, again=again) == (*fired, *retried)


def test_retries_and_what_was_skipped() -> None:
    """By what was tried again and why, and by what forbade it."""
    assert counting.retried("model", "SERVER") == "retries_total|model|SERVER"
    assert counting.retried("tool", "HTTP_503") == "retries_total|tool|HTTP_503"
    assert counting.retried("attempt", "STEP_TIMEOUT") == "retries_total|attempt|STEP_TIMEOUT"
    assert counting.skipped("deadline") == ("retries_skipped_total|deadline",)


def test_an_unknown_call_is_handed_to_a_person_once() -> None:
    """However often its run comes back."""
    doubts = {"k1#0": "mail", "k2#0": "book"}
    assert counting.handed_over(doubts, ["k1#0"]) == ("unknown_outcomes_total|book|requires_manual_review",)
    assert counting.handed_over({}, ["k1#0"]) == ()


@pytest.mark.parametrize(
    "code", ["order 4711", "HTTP_5033", "A\nruns_finished_total|a|succeeded", "", "CONNECT|x"]
)
def test_a_code_that_a_tool_made_up_is_no_label(code: str) -> None:
    """It may be any text, as many as there are orders, and must not look like another counter."""
    assert counting.retried("tool", code) == "retries_total|tool|own"


def test_causes_that_a_tool_meets_are_labels() -> None:
    """Those that the rules of failures give."""
    for code in ("RETRYABLE", "TOOL_TIMEOUT", "IN_PROGRESS", "WORKER_LOST", *TRANSPORT_CODES.values()):
        assert counting.cause_of(code) == code

"""Tool retries, new attempts, and what they are expected to cost."""

from __future__ import annotations

import pytest

from makegood.tasks.policies import RetryPolicy
from makegood.tasks.rules.attempts import (
    End,
    NextAttempt,
    assumed_model_cost_s,
    attempt_cost_s,
    decide_next_attempt,
    try_cost_s,
)
from makegood.tasks.rules.decisions import Left, Retry, Stop
from makegood.tasks.rules.failures import FailureKind
from makegood.tasks.rules.rows import Effect
from makegood.tasks.rules.tool_retry import ToolDecision, decide_tool_retry, may_repeat

POLICY = RetryPolicy(retries=5, backoff=1, max_backoff=16)
EFFECTS: list[Effect] = ["read", "idempotent", "write", "irreversible"]


def decide(
    kind: FailureKind = "infrastructure",
    *,
    used: int = 0,
    left: Left = Left(60, 300),
    cost_s: float = 10,
    rnd: float = 0.5,
    effect: Effect = "read",
    key_age_s: float = 0,
    key_ttl_s: float = 86_400,
    nothing_left: bool = False,
) -> ToolDecision:
    return decide_tool_retry(
        kind,
        used,
        POLICY,
        left,
        cost_s,
        rnd,
        effect=effect,
        key_age_s=key_age_s,
        key_ttl_s=key_ttl_s,
        nothing_left=nothing_left,
    )


@pytest.mark.contract("C6")
@pytest.mark.parametrize(("used", "delay_s"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16)])
def test_tool_retries_wait_1_2_4_8_16_seconds(used: int, delay_s: float) -> None:
    """Five retries, doubling from one second."""
    assert decide(used=used) == Retry(delay_s)


@pytest.mark.contract("C6")
def test_jitter_is_capped_again() -> None:
    """± 10 %, but never more than 16 s."""
    for used, delay_s in ((0, 0.9), (4, 14.4)):
        decision = decide(used=used, rnd=0)
        assert isinstance(decision, Retry)
        assert decision.delay_s == pytest.approx(delay_s)
    assert decide(used=4, rnd=0.99) == Retry(16)


@pytest.mark.contract("C6")
def test_more_than_five_retries_are_exhausted() -> None:
    """The run then fails with TOOL_RETRIES."""
    assert decide(used=5) == Stop("exhausted")
    assert decide(used=5, effect="write", nothing_left=True) == Stop("exhausted")


@pytest.mark.contract("C6")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("kind", ["business", "bug"])
def test_only_infrastructure_failures_are_retried(kind: FailureKind, effect: Effect) -> None:
    """4xx, invalid arguments and bugs go back to the model, whatever the tool does."""
    assert decide(kind, effect=effect, nothing_left=True) == Stop("not_retryable")


@pytest.mark.contract("C8")
@pytest.mark.contract("D6")
@pytest.mark.parametrize(
    ("effect", "nothing_left", "expected"),
    [
        ("read", False, Retry(1)),
        ("idempotent", False, Retry(1)),
        ("write", False, Stop("unknown_outcome")),
        ("irreversible", False, Stop("unknown_outcome")),
        ("write", True, Retry(1)),
        ("irreversible", True, Retry(1)),
    ],
)
def test_an_unknown_outcome_is_retried_only_where_a_repeat_is_harmless(
    effect: Effect, nothing_left: bool, expected: ToolDecision
) -> None:
    """A write that may have landed is not sent again; one that cannot have left is."""
    assert decide(effect=effect, nothing_left=nothing_left) == expected


@pytest.mark.contract("C8")
def test_an_unknown_write_stays_unknown_when_retries_are_used_up_or_do_not_fit() -> None:
    """It goes to settling, not to "retries exhausted"."""
    assert decide(effect="write", used=5) == Stop("unknown_outcome")
    assert decide(effect="write", left=Left(1, 1)) == Stop("unknown_outcome")


@pytest.mark.contract("C8")
@pytest.mark.parametrize(
    ("age_s", "nothing_left", "expected"),
    [
        (99, False, Retry(1)),
        (99.1, False, Stop("unknown_outcome")),
        (500, True, Retry(1)),
    ],
)
def test_an_idempotent_call_is_repeated_only_while_its_key_is_remembered(
    age_s: float, nothing_left: bool, expected: ToolDecision
) -> None:
    """What counts is the age of the key when the repeat is sent: after the wait of 1 s, within a ttl of 100 s."""
    assert decide(effect="idempotent", key_age_s=age_s, key_ttl_s=100, nothing_left=nothing_left) == expected
    assert may_repeat("read", 500, 100, False)


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (Left(26, 26, 26), Retry(16)),
        (Left(25, 300), Stop("does_not_fit", 26, 25, "step")),
        (Left(60, 25), Stop("does_not_fit", 26, 25, "run")),
        (Left(60, 300, 25), Stop("does_not_fit", 26, 25, "total")),
    ],
)
def test_wait_and_try_must_fit_what_is_left(left: Left, expected: ToolDecision) -> None:
    """16 s of wait and 10 s for the try."""
    assert decide(used=4, left=left) == expected


@pytest.mark.contract("C11")
@pytest.mark.parametrize("code", ["STEP_TIMEOUT", "RUN_TIMEOUT", "CRASHED"])
@pytest.mark.parametrize("dirty", [True, False])
def test_a_timeout_or_a_lost_worker_begins_a_new_attempt(code: str, dirty: bool) -> None:
    """Through cleaning exactly when there is something to clean."""
    assert decide_next_attempt(code, 1, 3, 1000, 150, dirty) == NextAttempt(clean_first=dirty)


@pytest.mark.contract("C11")
@pytest.mark.parametrize(
    "code",
    [
        "TOTAL_TIMEOUT",
        "TOOL_RETRIES",
        "REPEATED_FAILURE",
        "STEP_LIMIT",
        "RUN_TOKENS",
        "NONDETERMINISTIC",
        "BUG",
        "CANCELLED",
        "EXPIRED",
        "SERVER",
        "TIMEOUT_CALL",
        "TOOL_TIMEOUT",
    ],
)
def test_nothing_else_repeats_a_run(code: str) -> None:
    """Exhausted retries, budgets, bugs and cancel end the run: retries never multiply."""
    assert decide_next_attempt(code, 1, 3, None, 1, False) == End("not_repeatable")


@pytest.mark.contract("C11")
@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("attempt", "total_left_s", "expected"),
    [
        (2, 150, NextAttempt(False)),
        (3, 150, End("no_attempt_left")),
        (2, None, NextAttempt(False)),
        (2, 149, End("does_not_fit", 150, 149)),
        (2, -5, End("does_not_fit", 150, 0)),
    ],
)
def test_attempts_and_total_bound_the_repeats(
    attempt: int, total_left_s: float | None, expected: NextAttempt | End
) -> None:
    """A new attempt needs a number that is left and total time for its cost."""
    assert decide_next_attempt("RUN_TIMEOUT", attempt, 3, total_left_s, 150, False) == expected


def test_no_attempt_begins_on_an_empty_total() -> None:
    """Even an attempt that is believed to cost nothing needs time."""
    assert decide_next_attempt("RUN_TIMEOUT", 1, 3, 0, 0, False) == End("does_not_fit", 0, 0)


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("p99_s", "samples", "cost_s"), [(2.5, 100, 2.5), (2.5, 99, 8), (None, 100, 8), (None, 0, 8)]
)
def test_a_try_costs_its_p99_once_there_are_100_samples(
    p99_s: float | None, samples: int, cost_s: float
) -> None:
    """Until then a tool costs its L1 limit, here 8 s."""
    assert try_cost_s(p99_s, samples, 8) == cost_s


@pytest.mark.contract("C7")
def test_an_unmeasured_model_try_costs_the_smaller_of_its_limit_and_what_is_assumed() -> None:
    """min(its limit, assumed_cost 10 s)."""
    assert [assumed_model_cost_s(60, 10), assumed_model_cost_s(4, 10), assumed_model_cost_s(60, None)] == [
        10,
        4,
        60,
    ]


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("median_s", "samples", "cost_s"), [(42, 20, 42), (42, 19, 150), (None, 20, 150), (None, 0, 150)]
)
def test_an_attempt_costs_its_median_once_there_are_20_samples(
    median_s: float | None, samples: int, cost_s: float
) -> None:
    """Until then half its L3."""
    assert attempt_cost_s(median_s, samples, 300) == cost_s

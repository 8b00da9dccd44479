"""Model retries: one policy, every branch of it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makegood.tasks.policies import RetryPolicy
from makegood.tasks.rules.decisions import Fallback, Left, Park, Retry, Stop
from makegood.tasks.rules.model_retry import ModelDecision, decide_model_retry

POLICY = RetryPolicy()
PLENTY = Left(step_s=60, run_s=300, total_s=None)


def decide(
    code: str = "SERVER",
    *,
    after_s: float | None = None,
    used: int = 0,
    policy: RetryPolicy = POLICY,
    left: Left = PLENTY,
    cost_s: float = 10,
    rnd: float = 0.5,
    fallbacks: int = 0,
) -> ModelDecision:
    return decide_model_retry(code, after_s, used, policy, left, cost_s, rnd, fallbacks)


@pytest.mark.contract("C1")
@pytest.mark.parametrize(
    "code",
    [
        "RATE_LIMIT",
        "SERVER",
        "TIMEOUT_CONNECT",
        "TIMEOUT_FIRST_TOKEN",
        "TIMEOUT_IDLE",
        "TIMEOUT_CALL",
        "TRANSPORT",
        "EMPTY_RESPONSE",
    ],
)
def test_a_passing_failure_is_retried(code: str) -> None:
    """Rate limit, server, timeouts, transport and empty response are worth a second request."""
    assert decide(code) == Retry(0.5)


@pytest.mark.contract("C1")
@pytest.mark.contract("J18")
@pytest.mark.parametrize(
    "code",
    [
        "AUTH",
        "QUOTA",
        "INVALID_REQUEST",
        "CONTEXT_WINDOW_EXCEEDED",
        "CONTENT_FILTER",
        "PARTIAL_RESPONSE",
        "CANCELLED",
        "SOMETHING_NEW",
    ],
)
def test_a_lasting_failure_is_never_retried(code: str) -> None:
    """Not even when the server says when to come back, nor by another model."""
    assert decide(code, after_s=1, fallbacks=3) == Stop("not_retryable")


@pytest.mark.contract("C2")
@pytest.mark.parametrize(("used", "delay_s"), [(0, 0.5), (1, 1), (2, 2), (3, 4), (4, 8)])
def test_five_retries_double_from_half_a_second(used: int, delay_s: float) -> None:
    """500 ms, 1, 2, 4, 8 s."""
    assert decide(used=used) == Retry(delay_s)


@pytest.mark.contract("C2")
@pytest.mark.parametrize("used", [5, 6])
def test_the_sixth_retry_is_not_made(used: int) -> None:
    """At most 5 retries; a Retry-After does not add one."""
    assert decide(used=used) == Stop("exhausted")
    assert decide(used=used, after_s=1) == Stop("exhausted")
    assert decide(policy=RetryPolicy(retries=0)) == Stop("exhausted")


@pytest.mark.contract("C2")
@pytest.mark.parametrize(
    ("after_s", "rnd", "delay_s"),
    [
        (0.1, 0.0, 0.1),
        (3, 0.0, 3),
        (3, 0.5, 3.15),
        (9.5, 1 - 1e-12, 10),
        (10, 0.0, 10),
        (10, 0.9, 10),
    ],
)
def test_a_retry_after_up_to_the_cap_is_followed(after_s: float, rnd: float, delay_s: float) -> None:
    """The wait is what the server asks for, whatever our own backoff says; jitter adds and is capped."""
    for used in (0, 4):
        decision = decide(after_s=after_s, rnd=rnd, used=used, fallbacks=1)
        assert isinstance(decision, Retry)
        assert decision.delay_s == pytest.approx(delay_s)


@pytest.mark.parametrize("after_s", [None, 0, -1, float("nan"), float("inf")])
def test_a_retry_after_that_says_nothing_leaves_our_backoff(after_s: float | None) -> None:
    """0 and dates in the past allow a request now; we still keep our own pace."""
    assert decide(after_s=after_s, used=2) == Retry(2)


@pytest.mark.contract("C2")
@pytest.mark.contract("C12")
def test_a_retry_after_above_the_cap_switches_to_a_fallback_model() -> None:
    """Rather another model now than this one later; without one left the wait is on."""
    assert decide(after_s=10.1, fallbacks=1, rnd=0) == Fallback()
    assert decide(after_s=10.1, fallbacks=0, rnd=0) == Retry(10.1)


@pytest.mark.contract("C2")
@pytest.mark.parametrize(
    ("after_s", "expected"), [(16, Retry(16)), (16.001, Park(16.001)), (3600, Park(3600))]
)
def test_a_wait_sleeps_up_to_16_s_and_parks_beyond(after_s: float, expected: ModelDecision) -> None:
    """A longer wait holds no worker slot."""
    assert decide(after_s=after_s, rnd=0) == expected


def test_a_long_backoff_of_the_policy_parks_too() -> None:
    """It is the length of the wait that parks, wherever it comes from."""
    policy = RetryPolicy(backoff=20, max_backoff=None, jitter=0)
    assert decide(policy=policy) == Park(20)
    assert decide(policy=policy, after_s=500, fallbacks=1) == Park(500)


def test_a_parked_wait_is_spread_no_wider_than_one_at_the_cap() -> None:
    """An hour stays an hour: jitter adds at most a tenth of the cap."""
    assert decide(after_s=3600, rnd=0.5) == Park(3600.5)


@pytest.mark.contract("C7")
@pytest.mark.contract("J21")
def test_a_retry_that_does_not_fit_the_attempt_is_skipped_with_both_numbers() -> None:
    """10 s of L3 left, 8 s of wait, 10 s for the try: 18 needed, 10 left."""
    assert decide(used=4, left=Left(step_s=60, run_s=10)) == Stop("does_not_fit", 18, 10, "run")


@pytest.mark.contract("C7")
@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (Left(10.5, 10.5, 10.5), Retry(0.5)),
        (Left(10.4, 300), Stop("does_not_fit", 10.5, 10.4, "step")),
        (Left(60, 10.4), Stop("does_not_fit", 10.5, 10.4, "run")),
        (Left(60, 300, 10.4), Stop("does_not_fit", 10.5, 10.4, "total")),
        (Left(9, 8, 7), Stop("does_not_fit", 10.5, 7, "total")),
        (Left(-1, 300), Stop("does_not_fit", 10.5, 0, "step")),
    ],
)
def test_a_sleeping_wait_and_one_try_must_fit_every_level(left: Left, expected: ModelDecision) -> None:
    """What fits exactly is made; else the level that lacks most is named."""
    assert decide(left=left) == expected


@pytest.mark.contract("C2")
@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (Left(10, 10, 100), Park(100)),
        (Left(10, 10, None), Park(100)),
        (Left(10, 10, 99), Stop("does_not_fit", 100, 99, "total")),
        (Left(9, 300, 500), Stop("does_not_fit", 10, 9, "step")),
        (Left(60, 9, 500), Stop("does_not_fit", 10, 9, "run")),
    ],
)
def test_a_parked_wait_needs_total_for_the_wait_and_room_for_one_try(
    left: Left, expected: ModelDecision
) -> None:
    """Parked time is not charged to L2 and L3."""
    assert decide(after_s=100, rnd=0, left=left) == expected


@pytest.mark.contract("C12")
def test_after_the_last_retry_a_fallback_model_is_tried() -> None:
    """Fallback models have their own budget: their number."""
    assert decide(used=5, fallbacks=1) == Fallback()
    assert decide(used=5, fallbacks=0) == Stop("exhausted")


@pytest.mark.contract("C7")
def test_a_fallback_must_fit_as_well() -> None:
    """A switch is one full try without a wait."""
    assert decide(used=5, fallbacks=1, left=Left(10, 10)) == Fallback()
    assert decide(used=5, fallbacks=1, left=Left(9, 300)) == Stop("does_not_fit", 10, 9, "step")
    assert decide(after_s=100, fallbacks=1, left=Left(9, 300)) == Stop("does_not_fit", 10, 9, "step")


@pytest.mark.contract("C7")
def test_a_skipped_retry_counts_as_exhausted_and_its_event_is_owed_by_the_switch() -> None:
    """The retry does not fit, another model without a wait does."""
    skipped = Stop("does_not_fit", 18, 10, "run")
    assert decide(used=4, left=Left(60, 10), fallbacks=1) == Fallback(skipped)


@given(
    after_s=st.floats(0.001, 1e6),
    used=st.integers(0, 4),
    rnd=st.floats(0, 1, exclude_max=True),
    cap_s=st.floats(0.001, 100),
    jitter=st.floats(0, 1),
)
@pytest.mark.contract("C2")
def test_never_earlier_than_the_provider_allowed(
    after_s: float, used: int, rnd: float, cap_s: float, jitter: float
) -> None:
    """Whatever the policy and the dice: the wait is at least the Retry-After."""
    policy = dataclasses.replace(POLICY, max_backoff=cap_s, jitter=jitter)
    decision = decide(after_s=after_s, used=used, rnd=rnd, policy=policy, left=Left(1e9, 1e9))
    assert isinstance(decision, Retry | Park)
    assert decision.delay_s >= after_s
    assert isinstance(decision, Park) == (decision.delay_s > 16)

"""Whether and when a failed model request is sent again: the only policy that decides it (CONTRACT C1, C2, C7, C12)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from makegood.tasks.rules.backoff import backoff_s
from makegood.tasks.rules.decisions import (
    SLEEP_MAX_S,
    Fallback,
    Left,
    Park,
    Retry,
    Stop,
    check_fit,
    check_sleep,
)

if TYPE_CHECKING:
    from makegood.tasks.policies import RetryPolicy

ModelDecision = Retry | Park | Fallback | Stop

#: The codes of CONTRACT B9 that are worth a second request; every other one is final.
RETRYABLE_CODES = frozenset(
    {
        "RATE_LIMIT",
        "SERVER",
        "TIMEOUT_CONNECT",
        "TIMEOUT_FIRST_TOKEN",
        "TIMEOUT_IDLE",
        "TIMEOUT_CALL",
        "TRANSPORT",
        "EMPTY_RESPONSE",
    }
)


def decide_model_retry(
    failure_code: str,
    retry_after_s: float | None,
    retries_used: int,
    policy: RetryPolicy,
    left: Left,
    cost_s: float,
    rnd: float,
    fallback_left: int,
) -> ModelDecision:
    """Returns what follows a failed model request.

    `retries_used` counts the retries of this model in this step, `cost_s` is one full try, `rnd` in [0, 1)
    spreads the waits, `fallback_left` counts the fallback models that were not used yet.
    """
    if failure_code not in RETRYABLE_CODES:
        return Stop("not_retryable")
    asked_s = _valid(retry_after_s)
    if retries_used >= policy.retries:
        return _fallback(None, left, cost_s, fallback_left) or Stop("exhausted")
    if asked_s is not None and asked_s > policy.cap_s:
        switched = _fallback(None, left, cost_s, fallback_left)
        if isinstance(switched, Fallback):
            return switched
    waited = _wait(_delay_s(asked_s, retries_used, policy, rnd), left, cost_s)
    if isinstance(waited, Stop):
        switched = _fallback(waited, left, cost_s, fallback_left)
        return switched if isinstance(switched, Fallback) else waited
    return waited


def _valid(retry_after_s: float | None) -> float | None:
    # 0 and dates in the past say only "now is allowed": our own backoff, which is later, then keeps the pace.
    if retry_after_s is None or not retry_after_s > 0 or math.isinf(retry_after_s):
        return None
    return retry_after_s


def _delay_s(asked_s: float | None, retries_used: int, policy: RetryPolicy, rnd: float) -> float:
    if asked_s is None:
        return backoff_s(
            retries_used + 1, base_s=policy.backoff, cap_s=policy.cap_s, jitter=policy.jitter, rnd=rnd
        )
    # Jitter only adds, so that nothing is sent too early; a long wait is not spread wider than a wait at the cap.
    spread_s = policy.jitter * rnd * min(asked_s, policy.cap_s)
    if asked_s <= policy.cap_s:
        return min(asked_s + spread_s, policy.cap_s)
    return asked_s + spread_s


def _wait(delay_s: float, left: Left, cost_s: float) -> Retry | Park | Stop:
    if delay_s <= SLEEP_MAX_S:
        return check_sleep(left, delay_s, cost_s) or Retry(delay_s)
    # While parked neither L2 nor L3 is charged: they need room for one try, and total for the wait (CONTRACT C2).
    return check_fit(left, step_s=cost_s, run_s=cost_s, total_s=delay_s) or Park(delay_s)


def _fallback(skipped: Stop | None, left: Left, cost_s: float, fallback_left: int) -> Fallback | Stop | None:
    """Returns the switch, the reason why it does not fit, or None when no fallback model is left."""
    if fallback_left <= 0:
        return None
    return check_sleep(left, 0.0, cost_s) or Fallback(skipped)

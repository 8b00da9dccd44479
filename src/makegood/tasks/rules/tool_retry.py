"""Whether and when a failed try of a tool is repeated (CONTRACT C6, C7, C8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from makegood.tasks.rules.backoff import backoff_s
from makegood.tasks.rules.decisions import Left, Retry, Stop, check_sleep
from makegood.tasks.rules.failures import FailureKind
from makegood.tasks.rules.rows import Effect

if TYPE_CHECKING:
    from makegood.tasks.policies import RetryPolicy

ToolDecision = Retry | Stop


def decide_tool_retry(
    kind: FailureKind,
    retries_used: int,
    policy: RetryPolicy,
    left: Left,
    cost_s: float,
    rnd: float,
    *,
    effect: Effect,
    key_age_s: float,
    key_ttl_s: float,
    nothing_left: bool,
) -> ToolDecision:
    """Returns what follows a failed try of a tool.

    `key_age_s` is the time since the first try under this idempotency key, `key_ttl_s` how long the downstream
    remembers it; `nothing_left` says that no try under this key can have reached the downstream. The reasons to
    stop: "not_retryable" (told to the model), "unknown_outcome" (probe, settle or review), "exhausted" and
    "does_not_fit" (both fail the run with TOOL_RETRIES; the second owes its event).
    """
    if kind != "infrastructure":
        return Stop("not_retryable")
    delay_s = backoff_s(
        retries_used + 1, base_s=policy.backoff, cap_s=policy.cap_s, jitter=policy.jitter, rnd=rnd
    )
    if not may_repeat(effect, key_age_s + delay_s, key_ttl_s, nothing_left):
        return Stop("unknown_outcome")
    if retries_used >= policy.retries:
        return Stop("exhausted")
    return check_sleep(left, delay_s, cost_s) or Retry(delay_s)


def may_repeat(effect: Effect, key_age_s: float, key_ttl_s: float, nothing_left: bool) -> bool:
    """Returns True when a call whose outcome is unknown may be sent again without a probe (CONTRACT C8).

    `key_age_s` is the age the key will have at the moment of the repeat.
    """
    if nothing_left or effect == "read":
        return True
    return effect == "idempotent" and key_age_s <= key_ttl_s

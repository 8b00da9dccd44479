"""Whether a run gets another attempt, and what a try and an attempt are expected to cost (CONTRACT C7, C11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What may be followed by a new attempt: an L2 or L3 timeout, or a lost worker whose run cannot be continued.
REPEATABLE_CODES = frozenset({"STEP_TIMEOUT", "RUN_TIMEOUT", "CRASHED"})

# Below these numbers of samples a percentile says too little (CONTRACT C7).
TRY_SAMPLES = 100
ATTEMPT_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Begin a new attempt; through cleaning first when there is something to settle, undo or release."""

    clean_first: bool


@dataclass(frozen=True, slots=True)
class End:
    """The run ends. For "does_not_fit" the two numbers: what an attempt needs, and what is left of total."""

    reason: Literal["not_repeatable", "no_attempt_left", "does_not_fit"]
    needed_s: float | None = None
    left_s: float | None = None


def decide_next_attempt(
    reason: str,
    attempt: int,
    max_attempts: int,
    total_left_s: float | None,
    cost_s: float,
    needs_cleaning: bool,
) -> NextAttempt | End:
    """Returns whether the run goes on after its attempt number `attempt` (from 1) ended with the code `reason`.

    `total_left_s` is what is left of the run's total, None without a limit; `cost_s` what an attempt costs.
    """
    if reason not in REPEATABLE_CODES:
        return End("not_repeatable")
    if attempt >= max_attempts:
        return End("no_attempt_left")
    if total_left_s is not None and (total_left_s <= 0 or cost_s > total_left_s):
        return End("does_not_fit", needed_s=cost_s, left_s=max(0.0, total_left_s))
    return NextAttempt(clean_first=needs_cleaning)


def try_cost_s(p99_s: float | None, samples: int, assumed_s: float) -> float:
    """Returns the seconds one full try costs: its observed P99 with at least 100 samples, else what is assumed.

    Assumed are a tool's L1 limit, or `assumed_model_cost_s` for a model.
    """
    return p99_s if p99_s is not None and samples >= TRY_SAMPLES else assumed_s


def assumed_model_cost_s(limit_s: float, assumed_cost_s: float | None) -> float:
    """Returns min(the limit of a model try, `RetryPolicy.assumed_cost`); None is the limit itself."""
    return limit_s if assumed_cost_s is None else min(limit_s, assumed_cost_s)


def attempt_cost_s(median_s: float | None, samples: int, run_limit_s: float) -> float:
    """Returns the seconds an attempt costs: its observed median with at least 20 samples, else half its L3."""
    return median_s if median_s is not None and samples >= ATTEMPT_SAMPLES else run_limit_s / 2

"""Mergeable latency buckets with a bounded relative error (CONTRACT A7)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")

# The value of a bucket is within this share of everything in it; the promise is 5 %, the rest is room for rounding.
_ERROR = 0.045
_GAMMA = (1 + _ERROR) / (1 - _ERROR)
_LOG_GAMMA = math.log(_GAMMA)

#: Durations in ms below the first (1 µs) and above the second (115 days) count as these.
SHORTEST_MS = 0.001
LONGEST_MS = 1e10


def bucket(ms: float) -> int:
    """Returns the number of the bucket that holds a duration in milliseconds."""
    return math.ceil(math.log(min(max(ms, SHORTEST_MS), LONGEST_MS)) / _LOG_GAMMA)


def value_ms(number: int) -> float:
    """Returns the duration in milliseconds that stands for bucket `number`, within 5 % of all it holds."""
    return 2 * math.exp(number * _LOG_GAMMA) / (_GAMMA + 1)


def percentile(counts: Mapping[int, int], q: float) -> float | None:
    """Returns the q-quantile (0 to 1; 1 is the maximum) in ms by nearest rank, or None without a sample.

    `counts` maps a bucket to its number of samples.
    """
    if not 0 <= q <= 1:
        raise ValueError(f"q is a share from 0 to 1, got {q}")
    samples = samples_in(counts)
    if samples == 0:
        return None
    # The slack keeps 0.07 * 100 = 7.000000000000001 at rank 7.
    rank = max(1, math.ceil(q * samples - 1e-9))
    seen = 0
    filled = sorted(number for number, count in counts.items() if count > 0)
    for number in filled:
        seen += counts[number]
        if seen >= rank:
            break
    return value_ms(number)


def samples_in(counts: Mapping[int, int]) -> int:
    """Returns the number of samples."""
    return sum(count for count in counts.values() if count > 0)


def merge(*parts: Mapping[K, int]) -> dict[K, int]:
    """Returns the sums of several counts, for example of many workers or many hours."""
    total: Counter[K] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)

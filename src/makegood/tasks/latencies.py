"""Observed durations: what a worker records, and the percentiles that the retry rules read (CONTRACT A7, C7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from makegood.store.async_store import AsyncStore
from makegood.store.keys import all_prefixes
from makegood.store.ops.args import Sample
from makegood.store.ops.reads import read_latency
from makegood.tasks.flows import Flow, run_async
from makegood.tasks.rules.latency import bucket, merge, percentile, samples_in

WINDOW_DAYS = 7
"""Days that percentiles look back."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of one series in seconds; None without a sample."""

    samples: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


def sample(series: str, seconds: float) -> Sample:
    """A measured duration as the store counts it."""
    ms = max(0.0, seconds * 1000)
    return Sample(series, bucket(ms), round(ms))


def spread_of(parts: Iterable[Mapping[str, int]]) -> Spread:
    """Percentiles over the last days of the parts that shards hold."""
    listed = list(parts)
    days = {int(name.partition(":")[0]) for part in listed for name in part}
    recent = {day for day in days if day > max(days) - WINDOW_DAYS}
    counts: list[dict[int, int]] = []
    longest = 0
    for part in listed:
        by_bucket: dict[int, int] = defaultdict(int)
        for name, value in part.items():
            day, _, kind = name.partition(":")
            if int(day) not in recent:
                continue
            if kind == "max":
                longest = max(longest, value)
            else:
                by_bucket[int(kind)] += value
        counts.append(by_bucket)
    total = merge(*counts)
    if not total:
        return Spread()

    def at(q: float) -> float | None:
        value = percentile(total, q)
        return None if value is None else min(value, longest) / 1000

    return Spread(samples_in(total), at(0.5), at(0.95), at(0.99), longest / 1000)


def read_spreads(series: Iterable[str]) -> Flow[dict[str, Spread]]:
    """Percentiles of several series over all shards."""
    names = list(series)
    found: dict[str, Spread] = {}
    for name in names:
        parts = yield [read_latency(prefix, name) for prefix in all_prefixes()]
        found[name] = spread_of(parts)
    return found


@dataclass(slots=True)
class LatencyBoard:
    """The spreads a worker's rules look at; refreshed every few seconds by its maintenance."""

    store: AsyncStore
    series: set[str] = field(default_factory=set)
    spreads: dict[str, Spread] = field(default_factory=dict)

    def get(self, series: str) -> Spread:
        """The latest spread of a series; an unknown one is read from the next refresh on."""
        self.series.add(series)
        return self.spreads.get(series, Spread())

    async def refresh(self) -> None:
        """Read every series that was asked for."""
        self.spreads = await run_async(self.store, read_spreads(sorted(self.series)))

"""Observed durations: what a worker records, and the percentiles that the retry rules read (CONTRACT A7, C7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from makegood.store.async_store import AsyncStore
from makegood.store.keys import all_prefixes
from makegood.store.ops.args import Sample
from makegood.store.ops.breakers import server_time
from makegood.store.ops.reads import read_latency
from makegood.tasks.flows import Flow, run_async
from makegood.tasks.rules.latency import bucket, merge, percentile, samples_in

WINDOW_DAYS = 7
"""Days that percentiles look back, the present one included; the store keeps each for nine days."""

DAY_MS = 86_400_000

CallResult = Literal["ok", "error", "timeout", "aborted"]
"""How a try of a call ended: `timeout` when a limit cut it, `aborted` when the run or its worker stopped."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of one series in seconds; None without a sample."""

    samples: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


def sample(
    series: str, seconds: float, result: CallResult | Literal[""] = "", *, at_least_s: float = 0.0
) -> Sample:
    """A measured duration as the store counts it; `result` for a try of a tool.

    `at_least_s`: something else has cut it off, so that percentiles take it for no shorter than that (CONTRACT A7: a
    suggestion must not rest on what others have cut).
    """
    ms = max(0.0, seconds * 1000)
    return Sample(series, bucket(max(ms, at_least_s * 1000)), round(ms), result)


def merged(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several parts, each bucket → count and `max` → ms."""
    listed = list(parts)
    total = merge(*listed)
    if "max" in total:
        total["max"] = max(part.get("max", 0) for part in listed)
    return total


def spread_of(parts: Iterable[Mapping[str, int]]) -> Spread:
    """Percentiles over the parts that shards and days hold."""
    total = merged(parts)
    longest = total.pop("max", 0)
    counts = {int(name): value for name, value in total.items()}
    if not counts:
        return Spread()

    def at(q: float) -> float | None:
        value = percentile(counts, q)
        return None if value is None else min(value, longest) / 1000

    return Spread(samples_in(counts), at(0.5), at(0.95), at(0.99), longest / 1000)


@dataclass(slots=True)
class LatencyBoard:
    """The spreads a worker's rules look at; refreshed every few seconds by its maintenance.

    A day that is over does not change any more, so each one is read once; only the present day is read again.
    """

    store: AsyncStore
    series: set[str] = field(default_factory=set)
    spreads: dict[str, Spread] = field(default_factory=dict)
    over: dict[str, dict[int, dict[str, int]]] = field(default_factory=dict)

    def get(self, series: str) -> Spread:
        """The latest spread of a series; an unknown one is read from the next refresh on."""
        self.series.add(series)
        return self.spreads.get(series, Spread())

    async def refresh(self) -> None:
        """Read what has changed of every series that was asked for."""
        if self.series:
            await run_async(self.store, self.refreshed(sorted(self.series)))

    def refreshed(self, names: Sequence[str]) -> Flow[None]:
        """The store work of a refresh: one look at the clock, then the days of each series that are not known."""
        (now_ms,) = yield [server_time()]
        today = now_ms // DAY_MS
        window = range(today - WINDOW_DAYS + 1, today + 1)
        for name in names:
            known = self.over.get(name, {})
            days = [day for day in window if day not in known]
            parts = yield [read_latency(prefix, name, day) for day in days for prefix in all_prefixes()]
            size = len(all_prefixes())
            read = {day: merged(parts[at * size : (at + 1) * size]) for at, day in enumerate(days)}
            whole = {day: known[day] if day in known else read[day] for day in window}
            self.spreads[name] = spread_of(whole.values())
            self.over[name] = {day: part for day, part in whole.items() if day < today}

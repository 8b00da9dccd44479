"""What one scrape reads from the store: counters and histograms summed over the shards, gauges as they are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from makegood.store.keys import all_prefixes
from makegood.store.ops.breakers import read_breakers, server_time
from makegood.store.ops.catalog import read_catalog
from makegood.store.ops.numbers import (
    HOUR_MS,
    WAITING,
    WorkerFacts,
    count_state,
    oldest_in,
    read_breaker_counters,
    read_hour,
    read_series,
    read_totals,
    read_workers,
)
from makegood.store.ops.reads import read_agents_seen, read_counters
from makegood.store.scripts import Op
from makegood.store.states import State
from makegood.tasks.flows import Flow
from makegood.tasks.rules.breaker import from_fields

BATCH = 2000
"""Commands of one round trip: a server that serves runs meanwhile is never asked for more at once."""

WEEK_H = 7 * 24


@dataclass(slots=True)
class Declared:
    """What workers have published: names that come first where a label has too many values."""

    agents: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    breakers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Reading:
    """One look at the store.

    Attributes:
        counters: `name|label|…` → sum of all shards.
        series: `kind:name` → field → sum of all shards.
        states: (agent, state) → how many runs.
        ages_s: state → for how long the oldest run has been in it; 0 when none is.
        breakers: name → state at this moment.
    """

    declared: Declared
    counters: Mapping[str, int]
    series: Mapping[str, Mapping[str, int]]
    states: Mapping[tuple[str, str], int]
    ages_s: Mapping[str, float]
    breakers: Mapping[str, str]
    breaker_counters: Mapping[str, int]
    workers: Sequence[WorkerFacts]


def read_everything() -> Flow[Reading]:
    """The store work of a scrape: reads alone, none of which grows with the number of runs."""
    prefixes = all_prefixes()
    now_ms, catalog, breakers, transitions = yield [
        server_time(),
        read_catalog(),
        read_breakers(),
        read_breaker_counters(),
    ]
    shards = yield [
        read
        for prefix in prefixes
        for read in (read_counters(prefix), read_series(prefix), read_agents_seen(prefix))
    ]
    counters, names, agents = shards[0::3], shards[1::3], shards[2::3]
    oldest = yield [oldest_in(prefix, state) for state in WAITING for prefix in prefixes]
    series = yield from _series(prefixes, names)
    states = yield from _states(prefixes, agents)
    (workers,) = yield [read_workers()]
    return Reading(
        declared=_declared(catalog),
        counters=total(counters),
        series=series,
        states=states,
        ages_s=_ages_s(oldest, len(prefixes), now_ms),
        breakers={name: from_fields(flat).seen_at(now_ms) for name, flat in sorted(breakers.items())},
        breaker_counters=transitions,
        workers=workers,
    )


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of what shards or hours hold."""
    summed: Counter[str] = Counter()
    for part in parts:
        summed.update(part)
    return dict(summed)


def in_batches(ops: Sequence[Op[Any]]) -> Flow[list[Any]]:
    """All results, in round trips of a bounded size."""
    results: list[Any] = []
    for begin in range(0, len(ops), BATCH):
        results += yield ops[begin : begin + BATCH]
    return results


def _series(prefixes: Sequence[str], names: Sequence[Sequence[str]]) -> Flow[dict[str, dict[str, int]]]:
    wanted = [(prefix, name) for prefix, found in zip(prefixes, names, strict=True) for name in found]
    hashes = yield from in_batches([read_totals(prefix, name) for prefix, name in wanted])
    parts: dict[str, list[dict[str, int]]] = {}
    for (_, name), fields in zip(wanted, hashes, strict=True):
        parts.setdefault(name, []).append(fields)
    return {name: total(parts[name]) for name in sorted(parts)}


def _states(prefixes: Sequence[str], agents: Sequence[Sequence[str]]) -> Flow[dict[tuple[str, str], int]]:
    wanted = [
        (prefix, agent, str(state))
        for prefix, found in zip(prefixes, agents, strict=True)
        for agent in found
        for state in State
    ]
    sizes = yield from in_batches([count_state(*each) for each in wanted])
    counts: Counter[tuple[str, str]] = Counter()
    for (_, agent, state), size in zip(wanted, sizes, strict=True):
        counts[agent, state] += size
    return dict(sorted(counts.items()))


def _ages_s(oldest: Sequence[float | None], shards: int, now_ms: int) -> dict[str, float]:
    ages = {}
    for at, state in enumerate(WAITING):
        since = [ms for ms in oldest[at * shards : (at + 1) * shards] if ms is not None]
        ages[state] = max(0.0, now_ms - min(since)) / 1000 if since else 0.0
    return ages


def _declared(catalog: Mapping[str, Mapping[str, Any]]) -> Declared:
    tools = [tool for body in catalog.values() for tool in body.get("tools", ())]
    return Declared(
        agents=sorted(catalog),
        tools=sorted({str(tool["name"]) for tool in tools}),
        models=sorted({str(body["model"]) for body in catalog.values() if body.get("model")}),
        breakers=sorted({str(tool["breaker"]) for tool in tools if tool.get("breaker")}),
    )


@dataclass(slots=True)
class Verdicts:
    """What became known of cut-off work in the last 7 days; an hour that is over is read once."""

    over: dict[int, dict[str, int]] = field(default_factory=dict)

    def read(self) -> Flow[dict[str, int]]:
        """`timeout_verdicts_total|agent|verdict` → how often."""
        (now_ms,) = yield [server_time()]
        last = now_ms // HOUR_MS
        window = range(last - WEEK_H + 1, last + 1)
        prefixes = all_prefixes()
        hours = [hour for hour in window if hour not in self.over]
        parts = yield from in_batches([read_hour(prefix, hour) for hour in hours for prefix in prefixes])
        size = len(prefixes)
        read = {hour: _verdicts(parts[at * size : (at + 1) * size]) for at, hour in enumerate(hours)}
        whole = {hour: read[hour] if hour in read else self.over[hour] for hour in window}
        self.over = {hour: counts for hour, counts in whole.items() if hour < last}
        return total(whole.values())


def _verdicts(shards: Iterable[Mapping[str, int]]) -> dict[str, int]:
    name = "timeout_verdicts_total|"
    return {key: value for key, value in total(shards).items() if key.startswith(name)}

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
    WAITING,
    WorkerFacts,
    count_state,
    oldest_in,
    read_breaker_counters,
    read_catalog_counters,
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

HOURS_AT_ONCE = 8
"""Hours of one round trip: they hold many fields, on all shards."""


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
        counters: `name|label|…` → sum of all shards, and of what is counted of breakers and limits.
        series: `kind:name` → field → sum of all shards.
        states: agent → state → how many runs.
        ages_s: state → for how long the oldest run has been in it; None when none is.
        breakers: name → state at this moment.
    """

    declared: Declared
    counters: Mapping[str, int]
    series: Mapping[str, Mapping[str, int]]
    states: Mapping[str, Mapping[str, int]]
    ages_s: Mapping[str, float | None]
    breakers: Mapping[str, str]
    workers: Sequence[WorkerFacts]


def read_everything() -> Flow[Reading]:
    """The store work of a scrape: reads alone, none of which grows with the number of runs."""
    prefixes = all_prefixes()
    now_ms, catalog, breakers, *global_counters = yield [
        server_time(),
        read_catalog(),
        read_breakers(),
        read_breaker_counters(),
        read_catalog_counters(),
    ]
    shards = yield [
        read
        for prefix in prefixes
        for read in (read_counters(prefix), read_series(prefix), read_agents_seen(prefix))
    ]
    counters, names, agents = shards[0::3], shards[1::3], shards[2::3]
    oldest_s = yield from load_ages(now_ms)
    series = yield from _series(prefixes, names)
    states = yield from load_states(agents)
    (workers,) = yield [read_workers()]
    return Reading(
        declared=_declared(catalog),
        counters=total([*counters, *global_counters]),
        series=series,
        states=states,
        ages_s=oldest_s,
        breakers={name: from_fields(flat).seen_at(now_ms) for name, flat in sorted(breakers.items())},
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


def load_hours(hours: Sequence[int]) -> Flow[dict[int, dict[str, int]]]:
    """Hour (since 1970, UTC) → what was counted in it, summed over the shards."""
    prefixes = all_prefixes()
    size = len(prefixes)
    found: dict[int, dict[str, int]] = {}
    for begin in range(0, len(hours), HOURS_AT_ONCE):
        some = hours[begin : begin + HOURS_AT_ONCE]
        parts = yield [read_hour(prefix, hour) for hour in some for prefix in prefixes]
        found |= {hour: total(parts[at * size : (at + 1) * size]) for at, hour in enumerate(some)}
    return found


def load_states(
    agents: Sequence[Iterable[str]], states: Iterable[str] = tuple(State)
) -> Flow[dict[str, dict[str, int]]]:
    """Agent → state → how many runs, of the agents that each shard has seen."""
    wanted = [
        (prefix, agent, str(state))
        for prefix, found in zip(all_prefixes(), agents, strict=True)
        for agent in found
        for state in states
    ]
    sizes = yield from in_batches([count_state(*each) for each in wanted])
    counts: dict[str, Counter[str]] = {}
    for (_, agent, state), size in zip(wanted, sizes, strict=True):
        counts.setdefault(agent, Counter())[state] += size
    return {agent: dict(counts[agent]) for agent in sorted(counts)}


def load_ages(now_ms: int) -> Flow[dict[str, float | None]]:
    """State → for how long the oldest run has been in it, of those that have not ended; None when none is."""
    oldest = yield [oldest_in(prefix, state) for state in WAITING for prefix in all_prefixes()]
    return ages_s(oldest, now_ms)


def ages_s(oldest_ms: Sequence[float | None], now_ms: int) -> dict[str, float | None]:
    """State → age of the earliest moment, from those of its shards, state by state."""
    shards = len(oldest_ms) // len(WAITING)
    ages: dict[str, float | None] = {}
    for at, state in enumerate(WAITING):
        moments = [ms for ms in oldest_ms[at * shards : (at + 1) * shards] if ms is not None]
        ages[state] = max(0, round(now_ms - min(moments))) / 1000 if moments else None
    return ages


def _series(prefixes: Sequence[str], names: Sequence[Sequence[str]]) -> Flow[dict[str, dict[str, int]]]:
    wanted = [(prefix, name) for prefix, found in zip(prefixes, names, strict=True) for name in found]
    hashes = yield from in_batches([read_totals(prefix, name) for prefix, name in wanted])
    parts: dict[str, list[dict[str, int]]] = {}
    for (_, name), fields in zip(wanted, hashes, strict=True):
        parts.setdefault(name, []).append(fields)
    return {name: total(parts[name]) for name in sorted(parts)}


def _declared(catalog: Mapping[str, Mapping[str, Any]]) -> Declared:
    tools = [tool for body in catalog.values() for tool in body.get("tools", ())]
    return Declared(
        agents=sorted(catalog),
        tools=sorted({str(tool["name"]) for tool in tools}),
        models=sorted({str(body["model"]) for body in catalog.values() if body.get("model")}),
        breakers=sorted({str(tool["breaker"]) for tool in tools if tool.get("breaker")}),
    )

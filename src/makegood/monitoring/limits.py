"""Limits beside what was measured in the last 7 days, and how often they ended what had finished (CONTRACT A7, A8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from makegood.monitoring.readings import load_hours, total
from makegood.store.keys import all_prefixes
from makegood.store.ops.breakers import server_time
from makegood.store.ops.catalog import read_catalog
from makegood.store.ops.limits import Change, read_limit_changes, read_limits
from makegood.store.ops.numbers import HOUR_MS
from makegood.store.ops.reads import read_latency
from makegood.tasks.flows import Flow
from makegood.tasks.latencies import DAY_MS, WINDOW_DAYS, Spread, merged, spread_of
from makegood.tasks.policies import Timeouts
from makegood.tasks.rules.limits import (
    LIMIT_LEVELS,
    FalseKills,
    LimitLevel,
    Measured,
    Suggestion,
    cut_share,
    field_of,
    suggest,
)

COUNTED = ("timeouts_total|", "timeout_verdicts_total|")
"""What of an hour is about limits."""

CODE_STEP = (
    "The steps of an agent that is code are not measured as a whole, so nothing is suggested for them.",
)


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One limit, and what was measured of it.

    Attributes:
        level, name: `call` of a tool, `step` or `run` of an agent.
        threshold_s: the limit that holds now (of a tool whose agents differ, the shortest).
        source: `set` (by hand), `tool`, `agent`, `default`.
        samples, p50_s, p95_s, p99_s, max_s: durations of the last 7 days.
        suggested_s: None with too few samples.
        fired: how often it ended a step or an attempt in the last 7 days; None for tools, which are not counted so.
        notes: what has to be said about the suggestion.
        differs: whether it is worth setting.
    """

    level: LimitLevel
    name: str
    threshold_s: float
    source: str
    samples: int = 0
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None
    suggested_s: float | None = None
    fired: int | None = None
    notes: tuple[str, ...] = ()
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits, and agent → verdicts of the last 7 days on its runs that timed out."""

    rows: list[LimitRow]
    kills: dict[str, FalseKills]


class Hours:
    """What was counted of limits in the last 7 days. Who keeps it reads an hour that is over only once."""

    def __init__(self) -> None:
        self._over: dict[int, dict[str, int]] = {}

    def read(self, now_ms: int) -> Flow[dict[str, int]]:
        """`name|agent|…` → how often."""
        last = now_ms // HOUR_MS
        window = range(last - WINDOW_DAYS * 24 + 1, last + 1)
        read = yield from load_hours([hour for hour in window if hour not in self._over])
        known = self._over | {hour: _of_limits(counted) for hour, counted in read.items()}
        self._over = {hour: known[hour] for hour in window[:-1]}
        return total(known[hour] for hour in window)


def _of_limits(counted: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in counted.items() if name.startswith(COUNTED)}


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit as it was declared and as it holds."""

    level: LimitLevel
    name: str
    now_s: float
    source: str
    declared_s: float | None = None
    slow: bool = False
    is_code: bool = False

    @property
    def series(self) -> str:
        """The name of its durations."""
        return f"{'tool' if self.level == 'call' else self.level}:{self.name}"


@dataclass(frozen=True, slots=True)
class _Week:
    """What the hours of the last 7 days say, and which limits were changed in them."""

    counted: Mapping[str, int]
    changes: Sequence[Change]

    def fired(self, limit: _Limit) -> int | None:
        """How often a limit of an agent was reached."""
        if limit.level == "call":
            return None
        return self.counted.get(f"timeouts_total|{limit.name}|{limit.level}", 0)

    def earlier_s(self, limit: _Limit) -> list[float]:
        """Limits that held within the week and hold no more; where none was set, what is declared now."""
        mine = [change for change in self.changes if change.field == field_of(limit.level, limit.name)]
        held = {each or limit.declared_s for change in mine for each in (change.from_s, change.to_s)}
        return sorted(each for each in held if each is not None and each != limit.now_s)


def load_limits(hours: Hours | None = None) -> Flow[Limits]:
    """A row for every tool, and for step and attempt of every agent, that workers published or somebody set a limit for.

    `hours`: what an earlier look has read.
    """
    now_ms, catalog, by_hand = yield [server_time(), read_catalog(), read_limits()]
    (changes,) = yield [read_limit_changes(now_ms - WINDOW_DAYS * DAY_MS)]
    week = _Week((yield from (hours or Hours()).read(now_ms)), changes)
    kills = _false_kills(week.counted)
    rows = []
    for limit in _limits(catalog, by_hand):
        part = yield from _durations(limit.series, now_ms)
        rows.append(_row(limit, part, week, kills.get(limit.name)))
    return Limits(rows, kills)


def _false_kills(counted: Mapping[str, int]) -> dict[str, FalseKills]:
    found: dict[str, dict[str, int]] = {}
    for key, value in counted.items():
        name, _, rest = key.partition("|")
        if name == "timeout_verdicts_total":
            agent, _, verdict = rest.rpartition("|")
            found.setdefault(agent, {})[verdict] = value
    return {
        agent: FalseKills(each.get("true_kill", 0), each.get("false_kill", 0), each.get("unknown", 0))
        for agent, each in sorted(found.items())
    }


# --- reading ----------------------------------------------------------------------------------------------------------


def _durations(series: str, now_ms: int) -> Flow[dict[str, int]]:
    today = now_ms // DAY_MS
    days = range(today - WINDOW_DAYS + 1, today + 1)
    parts = yield [read_latency(prefix, series, day) for day in days for prefix in all_prefixes()]
    return merged(parts)


# --- limits -----------------------------------------------------------------------------------------------------------


def _limits(catalog: Mapping[str, Mapping[str, Any]], by_hand: Mapping[str, float]) -> Iterable[_Limit]:
    found = {
        (limit.level, limit.name): limit
        for limit in (*_of_tools(catalog, by_hand), *_of_agents(catalog, by_hand))
    }
    for field, seconds in by_hand.items():  # of what no worker publishes any more
        level, _, name = field.partition("|")
        for known in LIMIT_LEVELS:
            if level == known:
                found.setdefault((known, name), _Limit(known, name, seconds, "set"))
    return sorted(
        found.values(), key=lambda limit: (limit.level != "call", limit.name, limit.level != "step")
    )


def _of_tools(catalog: Mapping[str, Mapping[str, Any]], by_hand: Mapping[str, float]) -> list[_Limit]:
    declared: dict[str, list[tuple[float, str, bool]]] = {}
    for agent in catalog.values():
        for tool in agent.get("tools", ()):
            seconds = float(tool["timeout"])
            default = tool.get("timeout_from") != "tool" and seconds == Timeouts().call
            source = "default" if default else str(tool.get("timeout_from") or "agent")
            declared.setdefault(tool["name"], []).append((seconds, source, bool(tool.get("slow"))))
    limits = []
    for name, all_of_it in declared.items():
        seconds, source, _ = min(all_of_it)
        now_s, source = _held("call", name, seconds, source, by_hand)
        slow = any(slow for _, _, slow in all_of_it)
        limits.append(_Limit("call", name, now_s, source, seconds, slow=slow))
    return limits


def _of_agents(catalog: Mapping[str, Mapping[str, Any]], by_hand: Mapping[str, float]) -> list[_Limit]:
    limits = []
    levels: tuple[tuple[LimitLevel, float], ...] = (("step", Timeouts().step), ("run", Timeouts().run))
    for name, agent in catalog.items():
        for level, default_s in levels:
            declared_s = float(agent["timeouts"][level])
            source = "default" if declared_s == default_s else "agent"
            seconds, source = _held(level, name, declared_s, source, by_hand)
            limits.append(
                _Limit(level, name, seconds, source, declared_s, is_code=agent.get("kind") == "code")
            )
    return limits


def _held(
    level: LimitLevel, name: str, declared_s: float, source: str, by_hand: Mapping[str, float]
) -> tuple[float, str]:
    field = field_of(level, name)
    return (by_hand[field], "set") if field in by_hand else (declared_s, source)


def _row(limit: _Limit, part: Mapping[str, int], week: _Week, kills: FalseKills | None) -> LimitRow:
    spread, fired = spread_of([part]), week.fired(limit)
    counts = {int(name): count for name, count in part.items() if name != "max"}
    cut = cut_share(counts, limit.now_s, week.earlier_s(limit), fired or 0)
    known = _suggestion(limit, spread, cut, None if limit.level == "call" else kills)
    return LimitRow(
        limit.level,
        limit.name,
        limit.now_s,
        limit.source,
        spread.samples,
        spread.p50_s,
        spread.p95_s,
        spread.p99_s,
        spread.max_s,
        known.limit_s,
        fired,
        known.notes,
        known.differs_from(limit.now_s),
    )


def _suggestion(limit: _Limit, spread: Spread, cut: float, kills: FalseKills | None) -> Suggestion:
    if limit.is_code and limit.level == "step":
        return Suggestion(None, CODE_STEP)
    measured = Measured(spread.samples, spread.p99_s, spread.max_s, cut)
    return suggest(measured, slow=limit.slow, kills=kills)

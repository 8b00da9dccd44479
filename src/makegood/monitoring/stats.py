"""The state-level numbers of a window (CONTRACT I1): read hour by hour, added up, and divided at the very end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from makegood.monitoring.metrics import BY_NAME, OUTCOMES
from makegood.monitoring.readings import load_ages, load_hours, load_states, total
from makegood.monitoring.window import Window, window_of
from makegood.store.keys import all_prefixes
from makegood.store.ops import breakers, catalog
from makegood.store.ops.numbers import WAITING
from makegood.store.ops.reads import iso, read_agents_seen
from makegood.tasks.flows import Flow
from makegood.tasks.rules.breaker import from_fields
from makegood.tasks.steering import unknown

PRECISION = 6
"""Decimals of a quotient in JSON."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A mean or a share, kept as what it is made of."""

    numerator: float
    denominator: int

    @property
    def value(self) -> float | None:
        """The quotient; None when there is nothing to divide by."""
        return self.numerator / self.denominator if self.denominator else None

    def to_dict(self) -> dict[str, float | int | None]:
        """As JSON: a number or null, and what it is made of."""
        value = None if self.value is None else round(self.value, PRECISION)
        return {"value": value, "numerator": self.numerator, "denominator": self.denominator}


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """The numbers of the runs of one agent; `agent` is None for all of them.

    Attributes:
        enqueued: runs that were accepted.
        outcomes: runs that ended, by how; each counts once, at its first end.
        steps, tool_calls, model_requests: per run that ended. Replays are no calls.
        cleaned: of the runs that timed out, those of which nothing was left open.
        recovered: of the runs that had more than one attempt or lost a worker, those that succeeded.
        false_kills: of the timed-out runs whose verdict is known, those that would have finished.
        now: runs that have not ended, by state, at the moment of asking.
    """

    agent: str | None
    enqueued: int
    outcomes: Mapping[str, int]
    steps: Ratio
    tool_calls: Ratio
    model_requests: Ratio
    cleaned: Ratio
    recovered: Ratio
    false_kills: Ratio
    now: Mapping[str, int]

    @property
    def finished(self) -> int:
        """Runs that ended."""
        return sum(self.outcomes.values())

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "agent": self.agent,
            "runs_enqueued": self.enqueued,
            "runs_finished": self.finished,
            "runs_finished_by_outcome": dict(self.outcomes),
            "steps_per_run": self.steps.to_dict(),
            "tool_calls_per_run": self.tool_calls.to_dict(),
            "model_requests_per_run": self.model_requests.to_dict(),
            "timed_out_cleaned": self.cleaned.to_dict(),
            "retried_recovered": self.recovered.to_dict(),
            "false_kills": self.false_kills.to_dict(),
            "runs_now": dict(self.now),
        }


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """A breaker that is not closed; `until` is None while an operator holds it open."""

    name: str
    state: str
    until: str | None


@dataclass(frozen=True, slots=True)
class Stats:
    """All numbers of a window, and what is true at its asking (`now`, `oldest_s`, `breakers`).

    `agents` and `all`, `cleanups` and the reviews are those of `agent` when one was asked for; the rest is counted
    without an agent.
    """

    window: Window
    agent: str | None
    agents: tuple[RunNumbers, ...]
    all: RunNumbers
    cleanups: Mapping[str, int]
    reviews_opened: int
    reviews_resolved: Mapping[str, int]
    retries_skipped: Mapping[str, int]
    recoveries: Mapping[str, int]
    recovery_s: Ratio
    unknown_outcomes: Mapping[str, int]
    redeliveries: Mapping[str, int]
    oldest_s: Mapping[str, float | None]
    breakers: tuple[OpenBreaker, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON; docs/numbers.md lists the names."""
        return {
            "window": self.window.to_dict(),
            "at": iso(self.window.now_ms),
            "agent": self.agent,
            "agents": [each.to_dict() for each in self.agents],
            "all": self.all.to_dict(),
            "cleanups": dict(self.cleanups),
            "reviews_opened": self.reviews_opened,
            "reviews_resolved": dict(self.reviews_resolved),
            "retries_skipped": dict(self.retries_skipped),
            "recoveries": dict(self.recoveries),
            "recovery_seconds": self.recovery_s.to_dict(),
            "unknown_outcomes": dict(self.unknown_outcomes),
            "redeliveries": dict(self.redeliveries),
            "oldest_seconds": dict(self.oldest_s),
            "breakers_not_closed": [asdict(each) for each in self.breakers],
        }


# --- arithmetic -----------------------------------------------------------------------------------------------------


class Counted:
    """What was counted in a window: fields `name|label|…`, summed over hours and shards."""

    def __init__(self, fields: Mapping[str, int]) -> None:
        self._found: dict[str, dict[str, list[tuple[list[str], int]]]] = {}
        for field, value in fields.items():
            name, first, *labels = [*field.split("|"), "", "", ""][:4]
            self._found.setdefault(name, {}).setdefault(first, []).append((labels, value))

    def total(self, name: str, first: str | None = None) -> int:
        """The sum over all labels, or of one first label (mostly the agent)."""
        return sum(value for _, value in self._of(name, first))

    def by(
        self, name: str, first: str | None = None, *, place: int = 0, known: Sequence[str] = ()
    ) -> dict[str, int]:
        """Sums by the label at `place` after the first: known ones from 0 on, then whatever else was counted."""
        found: Counter[str] = Counter()
        for labels, value in self._of(name, first):
            found[labels[place]] += value
        return {**dict.fromkeys(known, 0), **dict(sorted(found.items()))}

    def by_first(self, name: str, known: Sequence[str] = ()) -> dict[str, int]:
        """Sums by the first label."""
        found = {first: self.total(name, first) for first in sorted(self._found.get(name, {}))}
        return {**dict.fromkeys(known, 0), **found}

    def agents(self) -> set[str]:
        """Agents that something was counted of."""
        names = [name for name, metric in BY_NAME.items() if metric.labels[:1] == ("agent",)]
        return {agent for name in names for agent in self._found.get(name, {})}

    def _of(self, name: str, first: str | None) -> list[tuple[list[str], int]]:
        found = self._found.get(name, {})
        return (
            found.get(first, []) if first is not None else [each for some in found.values() for each in some]
        )


def run_numbers(counted: Counted, agent: str | None, now: Mapping[str, int]) -> RunNumbers:
    """The numbers of one agent, or of all when it is None."""
    outcomes = counted.by("runs_finished_total", agent, known=OUTCOMES)
    finished = sum(outcomes.values())
    calls = counted.by("run_calls", agent, known=("tool", "model"))
    cleaned = counted.by("timed_out_runs_total", agent, known=("yes",))
    retried = counted.by("retried_runs_total", agent, known=("succeeded",))
    verdicts = counted.by("timeout_verdicts_total", agent, known=("true_kill", "false_kill"))
    return RunNumbers(
        agent=agent,
        enqueued=counted.total("runs_enqueued_total", agent),
        outcomes=outcomes,
        steps=Ratio(counted.total("run_steps", agent), finished),
        tool_calls=Ratio(calls["tool"], finished),
        model_requests=Ratio(calls["model"], finished),
        cleaned=Ratio(cleaned["yes"], sum(cleaned.values())),
        recovered=Ratio(retried["succeeded"], sum(retried.values())),
        false_kills=Ratio(verdicts["false_kill"], verdicts["true_kill"] + verdicts["false_kill"]),
        now=every_waiting_state(now),
    )


def stats_of(
    window: Window,
    counted: Counted,
    now: Mapping[str, Mapping[str, int]],
    ages_s: Mapping[str, float | None],
    breakers_now: Mapping[str, Mapping[str, str]],
    agent: str | None = None,
) -> Stats:
    """All numbers, from what was counted and from what is now (agent → state → runs; state → age of the oldest).

    With an `agent`: its numbers alone, where they have one.
    """
    busy = {name for name, states in now.items() if any(states.values())}
    shown = sorted(counted.agents() | busy) if agent is None else [agent]
    whole = total(now.get(each, {}) for each in shown)
    recoveries = counted.by_first("recoveries_total", closed("recoveries_total", "how"))
    return Stats(
        window=window,
        agent=agent,
        agents=tuple(run_numbers(counted, each, now.get(each, {})) for each in shown),
        all=replace(run_numbers(counted, agent, whole), agent=None),
        cleanups=counted.by("cleanups_total", agent, place=1, known=closed("cleanups_total", "result")),
        reviews_opened=counted.total("reviews_total", agent),
        reviews_resolved=counted.by("reviews_resolved_total", agent),
        retries_skipped=counted.by_first("retries_skipped_total", closed("retries_skipped_total", "reason")),
        recoveries=recoveries,
        recovery_s=Ratio(counted.total("recovery_seconds", "sum_ms") / 1000, sum(recoveries.values())),
        unknown_outcomes=counted.by(
            "unknown_outcomes_total", known=closed("unknown_outcomes_total", "settled")
        ),
        redeliveries=counted.by_first("redeliveries_total", closed("redeliveries_total", "decision")),
        oldest_s=ages_s,
        breakers=not_closed(breakers_now, window.now_ms),
    )


def closed(metric: str, label: str) -> tuple[str, ...]:
    """The values that a label can have."""
    return BY_NAME[metric].values[label]


def every_waiting_state(states: Mapping[str, int]) -> dict[str, int]:
    """Runs by state, with every state of a run that has not ended."""
    return {state: states.get(state, 0) for state in WAITING}


def not_closed(found: Mapping[str, Mapping[str, str]], now_ms: int) -> tuple[OpenBreaker, ...]:
    """The breakers that are open or half open now, by name."""
    seen = ((name, from_fields(fields)) for name, fields in sorted(found.items()))
    return tuple(
        OpenBreaker(name, each.seen_at(now_ms), None if each.held else iso(each.open_until_ms or None))
        for name, each in seen
        if each.seen_at(now_ms) != "closed"
    )


# --- reading --------------------------------------------------------------------------------------------------------


def load_stats(since: str, until: str | None = None, agent: str | None = None) -> Flow[Stats]:
    """The numbers of a window; what that costs depends on hours, agents and shards, not on runs.

    Raises:
        InvalidInput: the window is none, or reaches too far.
        UnknownAgent: nobody has heard of the agent.
    """
    (now_ms,) = yield [breakers.server_time()]
    window = window_of(since, until, now_ms)
    counted = Counted(total((yield from load_hours(window.hours)).values()))
    seen = yield [read_agents_seen(prefix) for prefix in all_prefixes()]
    if agent is not None:
        (published,) = yield [catalog.read_catalog()]
        known = {*(name for names in seen for name in names), *counted.agents(), *published}
        if agent not in known:
            raise unknown("agent", agent, known)
        seen = [{agent} & set(names) for names in seen]
    now = yield from load_states(seen, WAITING)
    ages_s = yield from load_ages(now_ms)
    (found,) = yield [breakers.read_breakers()]
    return stats_of(window, counted, now, ages_s, found, agent)

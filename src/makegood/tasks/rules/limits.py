"""Limits that operators set, what measured durations suggest, and how often a limit ended what had finished (CONTRACT A7, A8)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from makegood.tasks.rules.latency import bucket, samples_in

LimitLevel = Literal["call", "step", "run"]

LIMIT_LEVELS: tuple[LimitLevel, ...] = ("call", "step", "run")
"""What can be set while workers run: L1 of a tool, L2 and L3 of an agent."""

Verdict = Literal["true_kill", "false_kill", "unknown"]

VERDICTS: tuple[Verdict, ...] = ("true_kill", "false_kill", "unknown")
"""Whether a run that timed out had in fact finished (`false_kill`)."""

MARGIN = 1.3
"""A suggestion is so many times the observed P99."""

SUGGEST_SAMPLES = 100
"""With fewer durations their P99 says nothing: it would be the longest one."""

CUT_SHARE = 0.01
"""When more of the durations than this reached the limit, their P99 is the limit itself."""

FALSE_KILL_SHARE = 0.005
"""Above this share of false kills the limits of an agent end too much that had finished."""

SAME_SHARE = 0.05
"""Percentiles are known within this share, so that a suggestion this close to the limit is no other one."""

SHORTEST_S = 0.001
"""Clocks count milliseconds."""


def field_of(level: LimitLevel, name: str) -> str:
    """Under which name the store keeps the limit of a tool or agent."""
    return f"{level}|{name}"


def set_or_declared_s(
    set_by_hand: Mapping[str, float], level: LimitLevel, name: str, declared_s: float
) -> float:
    """Returns the limit that holds: the one an operator set, else the declared one (of the tool, the agent, the default)."""
    return set_by_hand.get(field_of(level, name), declared_s)


def settle_after_s(own_s: float | None, declared_limit_s: float, limit_s: float) -> float:
    """Returns the seconds after which an unknown call may be settled: the tool's own, else its limit (invariant 4).

    A limit that an operator made shorter does not make the downstream faster, so the longer of the two counts.
    """
    return max(declared_limit_s, limit_s) if own_s is None else own_s


@dataclass(frozen=True, slots=True)
class FalseKills:
    """Verdicts on runs that timed out."""

    true: int = 0
    false: int = 0
    unknown: int = 0

    @property
    def rate(self) -> float | None:
        """False of those that are known; None without one."""
        known = self.true + self.false
        return self.false / known if known else None

    @property
    def too_many(self) -> bool:
        """Whether the rate is above its limit."""
        return self.rate is not None and self.rate > FALSE_KILL_SHARE


@dataclass(frozen=True, slots=True)
class Measured:
    """Durations of a tool or agent: how many, two of their percentiles, the share of them that reached the limit."""

    samples: int = 0
    p99_s: float | None = None
    max_s: float | None = None
    cut: float = 0.0


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A limit, or None with too few samples; what has to be said about it, in sentences.

    `only_up`: what was measured is no reason for a lower limit than there is.
    """

    limit_s: float | None
    notes: tuple[str, ...] = ()
    only_up: bool = False

    def differs_from(self, limit_s: float) -> bool:
        """Whether it is worth setting in place of this limit."""
        if self.limit_s is None or (self.only_up and self.limit_s < limit_s):
            return False
        return abs(self.limit_s - limit_s) > SAME_SHARE * limit_s


def suggest(measured: Measured, *, slow: bool = False, kills: FalseKills | None = None) -> Suggestion:
    """Returns P99 x 1.3, for a slow tool at least its maximum; with fewer than 100 samples there is none (CONTRACT A7)."""
    notes, only_up = [], False
    if kills is not None and kills.too_many:
        only_up = True
        notes.append(
            f"Its false-kill rate is {_percent(kills.rate)} ({kills.false} of {kills.true + kills.false}), above "
            f"{_percent(FALSE_KILL_SHARE)}: its limits end runs that had finished, so none should be lowered."
        )
    if measured.cut > CUT_SHARE:
        only_up = True
        notes.append(
            f"{_percent(measured.cut)} of its samples reached a limit, which cuts the percentile off and proves nothing about "
            "how long it would take: raise the limit and look again."
        )
    if measured.samples < SUGGEST_SAMPLES or measured.p99_s is None:
        count = "1 sample" if measured.samples == 1 else f"{measured.samples} samples"
        return Suggestion(
            None, (f"There are too few samples: {count}, of {SUGGEST_SAMPLES}.", *notes), only_up
        )
    wanted_s = measured.p99_s * MARGIN
    if slow and measured.max_s is not None:
        wanted_s = max(wanted_s, measured.max_s)
    return Suggestion(rounded_up_s(wanted_s), tuple(notes), only_up)


def cut_share(
    counts: Mapping[int, int], limit_s: float, earlier_s: Sequence[float] = (), fired: int = 0
) -> float:
    """Returns the share of durations (bucket → how many) that ended because of the limit.

    `earlier_s` are limits that held before within the same time: whatever they cut off stands right above them.
    `fired` is how often the limit is known to have fired, also where that left no duration.
    """
    samples = samples_in(counts)
    at = bucket(limit_s * 1000)
    reached = [
        sum(count for number, count in counts.items() if number >= at),
        min(fired, max(samples, fired)),
    ]
    for each_s in earlier_s:
        place = bucket(each_s * 1000)
        reached.append(counts.get(place, 0) + counts.get(place + 1, 0))
    return max(reached) / max(1, samples, fired)


def rounded_up_s(seconds: float) -> float:
    """Returns the next number of three digits from there up: what a person would type."""
    if seconds <= SHORTEST_S:
        return SHORTEST_S
    digits = min(3, 2 - math.floor(math.log10(seconds)))
    # The slack keeps 1.3 * 10 = 13.000000000000002 at 13.
    return round(math.ceil(seconds * 10.0**digits - 1e-9) / 10.0**digits, max(0, digits))


def _percent(share: float | None) -> str:
    return f"{(share or 0.0) * 100:.3g} %"

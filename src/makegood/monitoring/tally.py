"""From what the store holds to samples: fields are matched with the table of metrics, values are summed per label."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from makegood.monitoring.label_caps import LabelCaps
from makegood.monitoring.limits import Limits
from makegood.monitoring.metrics import BREAKER_STATES, BY_NAME, METRICS, QUEUE_OF, QUEUES, Metric
from makegood.monitoring.readings import Reading
from makegood.store.buckets import INFINITE
from makegood.store.ops.numbers import WorkerFacts

log = logging.getLogger("makegood.monitor")

SERIES_KINDS = ("tool", "agent", "model", "queue", "all")
UNKNOWN = "unknown"
"""The value of a label that is empty in the store: for Prometheus an empty label is one that is not there."""

FIELDS: dict[str, dict[str, Metric]] = {
    where: {metric.stored_as: metric for metric in METRICS if metric.where == where}
    for where in ("counters", *SERIES_KINDS)
}
"""Where → name in the hashes → metric."""

Labels = tuple[str, ...]


class Histogram:
    """Samples per bucket (the last one is above every bound), and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.counts, self.sum = [0] * (len(bounds) + 1), 0.0

    def cumulative(self) -> list[int]:
        """How many samples are at most each bound."""
        running, found = 0, []
        for count in self.counts:
            running += count
            found.append(running)
        return found


class Tally:
    """Samples of one scrape: metric → labels → value."""

    def __init__(self, caps: LabelCaps) -> None:
        self._caps = caps
        self.values: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, Histogram]] = {}

    # --- one sample ---------------------------------------------------------------------------------------------

    def add(self, name: str, labels: Labels, value: float) -> None:
        """Add to a sample; values that share a label's `other` are summed."""
        metric = BY_NAME[name]
        shown = self._shown(metric, labels)
        samples = self.values.setdefault(name, {})
        samples[shown] = samples.get(shown, 0) + value

    def highest(self, name: str, labels: Labels, value: float) -> None:
        """Set a sample to the highest value it is given."""
        shown = self._shown(BY_NAME[name], labels)
        samples = self.values.setdefault(name, {})
        samples[shown] = max(samples.get(shown, value), value)

    def _shown(self, metric: Metric, labels: Labels) -> Labels:
        return tuple(map(self._caps.admit, metric.labels, labels))

    def _in_bucket(self, metric: Metric, labels: Labels, le: str, count: int) -> None:
        """Count into the bucket of that bound, or into the next higher one when older workers had other bounds."""
        place = len(metric.buckets) if le == INFINITE else bisect_left(metric.buckets, float(le))
        self._histogram(metric, labels).counts[place] += count

    def _histogram(self, metric: Metric, labels: Labels) -> Histogram:
        shown = self._shown(metric, labels)
        found = self.histograms.setdefault(metric.name, {})
        return found.setdefault(shown, Histogram(metric.buckets))

    # --- hashes -------------------------------------------------------------------------------------------------

    def read_counters(self, fields: Mapping[str, int]) -> None:
        """Counters `name|label|…`."""
        for key, value in fields.items():
            name, _, rest = key.partition("|")
            metric = FIELDS["counters"].get(name)
            labels = _split(rest, len(metric.labels)) if metric is not None else None
            if metric is None or labels is None:
                log.debug("the store counts %r, which this version does not know", key)
            else:
                self.add(metric.name, labels, value * metric.scale)

    def read_series(self, series: str, fields: Mapping[str, int]) -> None:
        """The hash of one tool, agent, model or queue."""
        kind, _, named = series.partition(":")
        for key, value in fields.items():
            if not self._read_field(kind, named, key.split("|"), value):
                log.debug("the store counts %r of %s, which this version does not know", key, series)

    def _read_field(self, kind: str, named: str, parts: list[str], value: int) -> bool:
        metric = FIELDS.get(kind, {}).get(parts[0])
        if metric is None:
            return False
        own = len(metric.own_labels)
        labels: Labels = ((named,) if own < len(metric.labels) else ()) + tuple(parts[1 : 1 + own])
        rest = parts[1 + own :]
        if metric.type == "counter" and not rest and len(parts) == 1 + own:
            self.add(metric.name, labels, value * metric.scale)
        elif metric.type == "histogram" and len(rest) == 1 and rest[0] == "sum":
            self._histogram(metric, labels).sum += value * metric.scale
        elif metric.type == "histogram" and len(rest) == 1 and _is_bound(rest[0]):
            self._in_bucket(metric, labels, rest[0], value)
        else:
            return False
        if metric.name == "call_duration_seconds" and rest[0] != "sum":
            self.add("calls_total", labels, value)  # a try that took time is counted by its duration alone
        return True

    # --- gauges -------------------------------------------------------------------------------------------------

    def read_gauges(self, reading: Reading) -> None:
        """States, ages, breakers and workers."""
        for agent, states in reading.states.items():
            for state, count in states.items():
                self.add("runs_state", (agent, state), count)
        for state, age_s in reading.ages_s.items():
            self.highest("runs_oldest_age_seconds", (QUEUE_OF[state], state), age_s or 0.0)
        for name, state in reading.breakers.items():
            for each in BREAKER_STATES:
                self.highest("breaker_state", (name, each), state == each)
        self._read_workers(reading.workers)

    def _read_workers(self, workers: Iterable[WorkerFacts]) -> None:
        for queue in QUEUES:
            for name in ("workers_alive", "worker_slots", "worker_stuck_threads"):
                self.add(name, (queue,), 0)
        for worker in workers:
            self.add("workers_alive", (worker.queue,), 1)
            self.add("worker_slots", (worker.queue,), worker.slots)
            self.add("worker_stuck_threads", (worker.queue,), worker.stuck)
            self.highest("worker_loop_lag_seconds", (worker.queue,), worker.lag_s)

    def read_limits(self, limits: Limits) -> None:
        """Limits and what is known of them. They cannot be summed: those without a place of their own are left out."""
        for limit in limits.rows:
            label = "tool" if limit.level == "call" else "agent"
            if self._caps.admit(label, limit.name) != limit.name:
                continue
            labels = (limit.name, limit.level)
            self._set("timeout_threshold_seconds", labels, limit.threshold_s)
            if limit.suggested_s is not None:
                self._set("timeout_suggested_seconds", labels, limit.suggested_s)
            self._set("timeout_samples", labels, limit.samples)
        for agent, verdicts in limits.kills.items():
            if verdicts.rate is not None and self._caps.admit("agent", agent) == agent:
                self._set("timeout_false_kill_ratio", (agent,), verdicts.rate)

    def _set(self, name: str, labels: Labels, value: float) -> None:
        self.values.setdefault(name, {})[labels] = value

    # --- zeros --------------------------------------------------------------------------------------------------

    def fill_up(self, known: Mapping[str, Iterable[str]]) -> None:
        """Counters of which all values are known begin at 0: the first increase is seen, and a share can be formed."""
        for metric in METRICS:
            choices = [metric.values.get(label) or known.get(label, ()) for label in metric.labels]
            if metric.type != "counter" or not all(choices) or metric.name in NEVER_ZERO:
                continue
            samples = self.values.setdefault(metric.name, {})
            for labels in product(*choices):
                samples.setdefault(self._shown(metric, labels), 0)


NEVER_ZERO = ("cost_usd_total",)
"""What is not known is not nothing: a model without a price has no cost."""


def _split(rest: str, count: int) -> Labels | None:
    """That many labels; only the first may hold the separator itself, for the others come from closed lists."""
    parts = rest.rsplit("|", count - 1) if count > 1 else [rest]
    return tuple(part or UNKNOWN for part in parts) if len(parts) == count else None


def _is_bound(text: str) -> bool:
    try:
        return text == INFINITE or float(text) > 0
    except ValueError:
        return False

"""The exporter's collector: one look at the store per scrape, and never a number from an earlier one.

While the store does not answer, a scrape says that (`store_up` 0) and nothing else: a dashboard shows a gap instead of
a number that is not so.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from makegood.monitoring.label_caps import LabelCaps
from makegood.monitoring.limits import Hours, Limits, load_limits
from makegood.monitoring.metrics import METRICS, Metric
from makegood.monitoring.readings import Reading, read_everything
from makegood.monitoring.shared_read import SharedRead
from makegood.monitoring.tally import SERIES_KINDS, Histogram, Labels, Tally
from makegood.store.connect import open_sync
from makegood.store.ops.reads import ping
from makegood.store.sync_store import SyncStore
from makegood.tasks.flows import Flow, run_sync
from makegood.tasks.wakeup import CLEANUP_QUEUE, QUARANTINE_QUEUE, RUNS_QUEUE, Publisher
from makegood.urls import broker_url_for, mask_url

STORE_S = 2.0
"""How long a scrape waits for the store: well below the 10 s after which Prometheus gives a scrape up by default."""

BROKER_S = 1.0
"""How long a scrape waits for the broker; without an answer only the lengths of its queues are missing."""

LIMITS_FRESH_S, LIMITS_KEPT_S = 30.0, 120.0
"""Limits rest on a week of samples, which are many reads and change slowly: they are read anew after the first; after
the second, when reading them failed all the while, they are not shown any more."""

MESSAGE_QUEUES = {"runs": RUNS_QUEUE, "cleanup": CLEANUP_QUEUE, "quarantine": QUARANTINE_QUEUE}

T = TypeVar("T")

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Door:
    """Connections of one kind of read: when it fails, no other loses its own."""

    def __init__(self, url: str) -> None:
        self._store = SyncStore(url, client=open_sync(url, retries=0, reply_s=STORE_S))

    def read(self, flow: Flow[T]) -> T:
        """What the flow finds."""
        try:
            return run_sync(self._store, flow)
        except Exception:
            self.close()  # what is still on its way on these connections answers nothing that will be asked
            raise

    def close(self) -> None:
        """Close all connections; the next read opens new ones."""
        self._store.close()


class StoreCollector(Collector):
    """Collects when it is scraped. Safe to use from several threads: scrapes at the same time share one read."""

    def __init__(self, url: str, broker_url: str, *, caps: LabelCaps | None = None) -> None:
        self._numbers_door, self._limits_door, self._alive_door = Door(url), Door(url), Door(url)
        self._publisher = Publisher(broker_url_for(broker_url), mask_url(broker_url))
        self._caps = caps or LabelCaps()
        self._hours = Hours()
        self._last_success_s = 0.0
        store = f"The state store at {mask_url(url)}"
        self._numbers = SharedRead(store, self._read_numbers, limit_s=STORE_S)
        self._alive = SharedRead(store, self._read_alive, limit_s=STORE_S)
        self._lengths = SharedRead(
            f"The broker at {mask_url(broker_url)}", self._read_lengths, limit_s=BROKER_S
        )
        self._limits = SharedRead(
            f"{store} (limits)", self._read_limits, limit_s=STORE_S, fresh_s=LIMITS_FRESH_S, keep_s=LIMITS_KEPT_S
        )  # fmt: skip

    def collect(self) -> Iterator[Family]:
        """All families that have a sample. Never raises; takes no longer than the limits above."""
        for each in (self._numbers, self._lengths, self._limits):
            each.begin()
        numbers = self._numbers.result()
        own = Tally(self._caps)
        own.add("store_up", (), numbers is not None)
        own.add("exporter_last_success_timestamp_seconds", (), self._last_success_s)
        own.add("build_info", (version(),), 1)
        if numbers is not None:
            for queue, length in (self._lengths.result() or {}).items():
                own.add("queue_length", (queue,), length)
            limits = self._limits.result()
            if limits is not None:
                own.read_limits(limits)
        yield from families(own)
        yield from numbers or ()

    def warm_up(self) -> None:
        """Import what the broker needs and collect once, so that the first scrape is as fast as the others."""
        import_module("celery.app.base")
        for _ in self.collect():
            pass

    def not_ready(self) -> str:
        """Why the store cannot be read, one sentence; empty when it answers."""
        if self._alive.get() is not None:
            return ""
        return self._alive.why or "The state store does not answer."

    def close(self) -> None:
        """Close all connections."""
        for each in (self._numbers_door, self._limits_door, self._alive_door, self._publisher):
            each.close()

    # --- reading, each in a thread of its own -------------------------------------------------------------------

    def _read_numbers(self) -> list[Family]:
        reading = self._numbers_door.read(read_everything())
        self._last_success_s = time.time()
        return list(families(tally(reading, self._caps)))

    def _read_limits(self) -> Limits:
        return self._limits_door.read(load_limits(self._hours))

    def _read_alive(self) -> bool:
        return self._alive_door.read(_pinged())

    def _read_lengths(self) -> dict[str, int]:
        return {shown: self._publisher.queue_length(name) for shown, name in MESSAGE_QUEUES.items()}


def _pinged() -> Flow[bool]:
    (answered,) = yield [ping()]
    return bool(answered)


def tally(reading: Reading, caps: LabelCaps) -> Tally:
    """All samples of a reading. What is declared gets its place before what was merely counted."""
    declared = reading.declared
    counted: dict[str, list[str]] = {kind: [] for kind in SERIES_KINDS}
    for kind, _, name in (series.partition(":") for series in reading.series):
        counted.setdefault(kind, []).append(name)
    known = {
        "agent": [*declared.agents, *reading.states, *counted["agent"]],
        "tool": [*declared.tools, *counted["tool"]],
        "model": [*declared.models, *counted["model"]],
        "name": [*declared.breakers, *reading.breakers],
    }
    for label, values in known.items():
        caps.admit_all(label, values)
    found = Tally(caps)
    found.read_counters(reading.counters)
    for series, fields in reading.series.items():
        found.read_series(series, fields)
    found.read_gauges(reading)
    found.fill_up(known)
    return found


def families(found: Tally) -> Iterator[Family]:
    """The samples in the form of prometheus_client, in the order of the table."""
    for metric in METRICS:
        if metric.name in found.histograms:
            yield _histogram(metric, found.histograms[metric.name])
        elif metric.name in found.values:
            kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
            family = kind(metric.full_name, metric.meaning, labels=metric.labels)
            for labels, value in found.values[metric.name].items():
                family.add_metric(labels, value)
            yield family


def _histogram(metric: Metric, samples: Mapping[Labels, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.full_name, metric.meaning, labels=metric.labels)
    bounds = [*map(repr, metric.buckets), "+Inf"]
    for labels, histogram in samples.items():
        family.add_metric(labels, list(zip(bounds, histogram.cumulative(), strict=True)), histogram.sum)
    return family


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry with this collector alone: nothing of the exporter's own process is among the numbers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry


def version() -> str:
    """The version of makegood that is installed."""
    return importlib.metadata.version("makegood")

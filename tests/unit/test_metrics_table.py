"""The table of metrics: complete, without contradictions, and readable without the exporter's packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from makegood.monitoring.metrics import METRICS, QUEUE_OF, Metric, sample_names
from makegood.store.ops.numbers import WAITING
from support.cli import environment

NAMES = [metric.name for metric in METRICS]


def test_every_name_and_every_sample_is_there_once() -> None:
    """No two metrics share a sample."""
    samples = [name for metric in METRICS for name in sample_names(metric)]
    assert len(set(samples)) == len(samples)
    assert all(name.startswith("makegood_") for name in samples)


@pytest.mark.parametrize("metric", METRICS, ids=NAMES)
def test_a_metric_is_named_after_what_it_is(metric: Metric) -> None:
    """Counters, and only they, end in _total; what is in seconds says so; labels are never ids."""
    assert metric.name.endswith("_total") == (metric.type == "counter")
    assert (metric.unit == "seconds") == ("_seconds" in metric.name)
    assert bool(metric.buckets) == (metric.type == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert set(metric.values) <= set(metric.labels)
    assert not {"run_id", "worker", "host", "pid", "le"} & set(metric.labels)
    assert metric.meaning.endswith(".")


def test_samples_of_a_histogram_are_three() -> None:
    """The names that a dashboard may use."""
    by_name = {metric.name: metric for metric in METRICS}
    assert sample_names(by_name["recovery_seconds"]) == {
        "makegood_recovery_seconds_bucket",
        "makegood_recovery_seconds_sum",
        "makegood_recovery_seconds_count",
    }
    assert sample_names(by_name["calls_total"]) == {"makegood_calls_total"}
    assert sample_names(by_name["store_up"]) == {"makegood_store_up"}


def test_the_states_of_runs_that_have_not_ended_are_those_of_the_store() -> None:
    """Each with the queue whose workers have it."""
    assert tuple(QUEUE_OF) == WAITING


def test_the_table_needs_no_package_of_the_server() -> None:
    """Whoever checks a dashboard reads the table with makegood alone."""
    code = (
        "import sys, makegood.monitoring.metrics\n"
        "sys.exit(str({'prometheus_client', 'fastapi', 'uvicorn', 'redis', 'celery'} & set(sys.modules) or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment()
    )
    assert done.stderr.strip() == ""

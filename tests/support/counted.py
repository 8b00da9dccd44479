"""A store with every number in it, written by hand, and a scrape as a dict."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson
import redis
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from makegood.monitoring.collector import StoreCollector, registry_of
from makegood.store import keys
from makegood.store.ops.breakers import STATES
from makegood.store.ops.numbers import WorkerFacts, tell_worker
from makegood.store.sync_store import SyncStore
from makegood.tasks.rules.latency import bucket

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

COUNTERS = {
    "runs_enqueued_total|support": 5,
    "runs_deduplicated_total|support": 2,
    "runs_finished_total|support|succeeded": 3,
    "retried_runs_total|support|succeeded": 1,
    "timed_out_runs_total|support|yes": 1,
    "timeouts_total|support|call": 4,
    "retries_total|model|rate_limited": 6,
    "retries_skipped_total|deadline": 1,
    "recoveries_total|continued": 1,
    "redeliveries_total|resumed": 1,
    "effects_deduplicated_total|create_ticket": 1,
    "unknown_outcomes_total|create_ticket|happened": 1,
    "cleanups_total|support|timeout|clean": 1,
    "compensations_total|create_ticket|succeeded": 1,
    "breaker_rejected_total|tickets": 2,
    "reviews_total|support|UNKNOWN_OUTCOME": 1,
    "reviews_resolved_total|support|resolve": 1,
    "operator_actions_total|resolve|done": 1,
    "timeout_verdicts_total|support|true_kill": 3,
    "timeout_verdicts_total|support|false_kill": 1,
}
"""Of one shard."""

SERIES: dict[str, dict[str, int]] = {
    "tool:create_ticket": {
        "call_duration_seconds|ok|0.05": 2,
        "call_duration_seconds|ok|1": 1,
        "call_duration_seconds|ok|inf": 1,
        "call_duration_seconds|ok|sum": 131_500,
        "call_duration_seconds|error|0.05": 1,
        "call_duration_seconds|error|sum": 10,
        "calls_total|replayed": 3,
        "calls_total|breaker_open": 2,
    },
    "agent:support": {
        "step_duration_seconds|2.5": 1,
        "step_duration_seconds|sum": 2000,
        "cleanup_duration_seconds|0.5": 1,
        "cleanup_duration_seconds|sum": 400,
        "run_duration_seconds|succeeded|5": 3,
        "run_duration_seconds|succeeded|sum": 9000,
        "run_steps|2": 1,
        "run_steps|3": 2,
        "run_steps|sum": 8,
        "run_calls|tool|1": 3,
        "run_calls|tool|sum": 3,
        "run_calls|model|2": 3,
        "run_calls|model|sum": 6,
    },
    "model:openai/gpt": {"tokens_total|prompt": 100, "tokens_total|completion": 20, "cost_nano_usd": 1_500_000},
    "queue:runs": {"run_queue_wait_seconds|0.1": 1, "run_queue_wait_seconds|sum": 50},
    "queue:cleanup": {"run_queue_wait_seconds|0.1": 1, "run_queue_wait_seconds|sum": 50},
    "all:": {"recovery_seconds|10": 1, "recovery_seconds|sum": 7000},
}  # fmt: skip
"""Of one shard: `kind:name` → what its hash holds."""


def count_by_hand(url: str, *, shards: tuple[int, ...] = (0, 7, 15)) -> None:
    """Put the numbers above into each of these shards, a run in every waiting state, breakers, a worker, a catalog."""
    raw: Any = redis.Redis.from_url(url)
    hour = int(time.time()) // 3600
    for shard in shards:
        prefix = keys.prefix(shard)
        raw.hset(f"{prefix}counters", mapping=COUNTERS)
        raw.hset(f"{prefix}h:{hour}", mapping=COUNTERS)
        for name, fields in SERIES.items():
            count_series(raw, shard, name, fields)
        raw.hset(f"{prefix}lat:tool:create_ticket:{hour // 24}", mapping={bucket(1000): 100, "max": 1100})
        raw.sadd(f"{prefix}agents", "support")
        raw.zadd(keys.state_index(prefix, "support", "queued"), {"a-run": 1, "another": 2})
        raw.zadd(f"{prefix}since:queued", {"a-run": time.time() * 1000 - 90_000 - shard})
    raw.hset(STATES, "tickets", f"open|1,2|3|{int(time.time() * 1000) + 600_000}||0|0")
    raw.hset(f"{keys.BREAKERS}counters", mapping={"breaker_transitions_total|tickets|open": 1, "operator_actions_total|breaker_open|done": 2})  # fmt: skip
    raw.hset(keys.CATALOG_COUNTERS, "operator_actions_total|timeout_set|done", 4)
    raw.hset(keys.CATALOG, "support", orjson.dumps(DECLARATION))
    raw.close()
    store = SyncStore(url)
    for worker, queue, lag_s in (("w1", "runs", 0.25), ("w2", "runs", 0.5), ("w3", "cleanup", 0.0)):
        store.do(tell_worker(WorkerFacts(worker, queue, 100, lag_s, 1), 600_000))
    store.close()


DECLARATION = {
    "model": "openai/gpt",
    "timeouts": {"call": 10.0, "step": 60.0, "run": 600.0},
    "tools": [{"name": "create_ticket", "breaker": "tickets", "timeout": 10.0}],
}


def count_series(raw: Any, shard: int, name: str, fields: Mapping[str, int]) -> None:
    """The hash of one tool, agent, model or queue in a shard."""
    raw.hset(f"{keys.prefix(shard)}c:{name}", mapping=fields)
    raw.sadd(f"{keys.prefix(shard)}series", name)


def scrape(collector: StoreCollector) -> str:
    """What `/metrics` answers."""
    return generate_latest(registry_of(collector)).decode()


def samples_of(text: str) -> Samples:
    """(sample name, sorted labels) → value, as Prometheus reads them; each at most once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, /, **labels: str) -> float:
    """One sample, its name without the prefix."""
    return samples[f"makegood_{name}", tuple(sorted(labels.items()))]


def labels_of(samples: Samples, name: str, label: str) -> set[str]:
    """All values of a label of a sample."""
    return {dict(labels)[label] for each, labels in samples if each == f"makegood_{name}"}

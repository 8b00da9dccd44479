"""What a scrape of the metrics costs as runs pile up: 100,000 finished runs against none, side by side."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from bench.engine import execute_all, producer, runtime
from bench.hosts import wait_until
from bench.report import Outcome, alone, quantile
from makegood.monitoring.collector import StoreCollector, registry_of
from makegood.store import keys
from makegood.store.ops.args import NewEvent, new_op
from makegood.store.ops.runs import claim_run, end_run, enqueue_run
from makegood.store.states import State
from makegood.store.sync_store import SyncStore
from makegood.tasks.latencies import sample
from makegood.workers.embedded import EmbeddedServer

BATCH = 500


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--finished", type=int, default=100_000, help="finished runs in the full store")
    parser.add_argument("--scrapes", type=int, default=200, help="scrapes of each store")


def measure(chosen: argparse.Namespace) -> Outcome:
    """Scrapes of both stores in turn, so that whatever else the machine does meets both."""
    from prometheus_client.exposition import generate_latest

    with ExitStack() as stack:
        none, many = (stack.enter_context(EmbeddedServer(ephemeral=True)) for _ in range(2))
        for server in (none, many):
            _run_once_in_each_shard(server.url)
        began_s = time.perf_counter()
        _fill(many.url, chosen.finished)
        filled_s = time.perf_counter() - began_s
        registries = {
            name: registry_of(stack.enter_context(_collector(server.url)))
            for name, server in (("none", none), ("many", many))
        }
        times: dict[str, list[float]] = {"none": [], "many": []}
        for _ in range(chosen.scrapes):
            for name, registry in registries.items():
                began_s = time.perf_counter()
                text = generate_latest(registry)
                times[name].append(time.perf_counter() - began_s)
                assert b"makegood_store_up 1.0" in text
    how = (
        f"median of {chosen.scrapes} scrapes each, in turn, of a store in which every shard has seen one run, and of one "
        f"with {chosen.finished:,} finished runs more (written by the store's own operations in {filled_s:.0f} s)."
    )
    outcome = Outcome("scrape", how)
    few_s, many_s = quantile(times["none"], 0.5), quantile(times["many"], 0.5)
    outcome.add("a scrape: time ratio", many_s / few_s, "x", "<= 1.5", many_s / few_s <= 1.5)
    outcome.add("  without them", few_s * 1000, "ms")
    outcome.add(f"  with {chosen.finished:,}", many_s * 1000, "ms")
    outcome.add(f"  with {chosen.finished:,}, 99th percentile", quantile(times["many"], 0.99) * 1000, "ms")
    return outcome


@contextmanager
def _collector(url: str) -> Iterator[StoreCollector]:
    collector = StoreCollector(url, url)
    collector.warm_up()
    yield collector
    collector.close()


def _run_once_in_each_shard(url: str) -> None:
    """Real runs, with steps and calls, so that both stores hold the same counters and histograms."""
    seen: set[str] = set()
    with producer(url) as client, runtime(url) as worker:
        while len(seen) < keys.SHARDS:
            run_id = client.enqueue("bench", "1 1").id
            execute_all(worker, [run_id])
            seen.add(keys.prefix_of(run_id))


def _fill(url: str, count: int) -> None:
    """Finished runs by the operations that a worker uses: record, claim, end, each for many runs in one pipeline."""
    store = SyncStore(url)
    each = -(-count // keys.SHARDS)
    for shard in range(keys.SHARDS):
        for begin in range(0, each, BATCH):
            _finish(store, shard, min(BATCH, each - begin))
    raw: Any = redis.Redis.from_url(url, socket_timeout=60)
    wait_until(lambda: not raw.info("persistence")["aof_rewrite_in_progress"], pause_s=0.5)
    raw.close()
    store.close()


def _finish(store: SyncStore, shard: int, count: int) -> None:
    born = [
        enqueue_run(
            run_id=keys.new_run_id(shard),
            agent="bench",
            session=None,
            key=None,
            body=b'"1 1"',
            input_digest="",
            expires_in_ms=None,
        )
        for _ in range(count)
    ]
    store.do_all(born)
    prefix = keys.prefix(shard)
    claims = store.do_all(
        [
            claim_run(shard_prefix=prefix, nonce=new_op(), worker="bench", agents=["bench"], lease_ms=600_000)
            for _ in range(count)
        ]
    )
    ends = [
        end_run(
            run_id=claim.run_id,
            fence=claim.fence,
            op=new_op(),
            state=State.SUCCEEDED,
            output=b'"done"',
            latencies=[sample("run:bench", 1 + number % 100)],
            new_events=[NewEvent("attempt.ended", {"code": None})],
        )
        for number, claim in enumerate(claims)
    ]
    assert set(store.do_all(ends)) == {State.SUCCEEDED}


if __name__ == "__main__":
    alone(measure, options)

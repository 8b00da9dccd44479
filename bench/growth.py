"""Cost as data grows: lists, sweeps and claims with 1,000 finished runs in the store and with very many."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis

from bench.engine import execute_all, producer, runtime
from bench.hosts import wait_until
from bench.report import Outcome, alone, quantile
from makegood import Client
from makegood.monitoring.stats import load_stats
from makegood.store import keys
from makegood.store.ops.runs import claim_run
from makegood.tasks.flows import run_sync
from makegood.workers.duties import cleanups, expired, leases, parked, republish
from makegood.workers.embedded import EmbeddedServer
from makegood.workers.runtime import Runtime

FEW = 1000
BATCH = 500

COPY = """
-- Copies of a finished run: KEYS 1 prefix, 2 the run that is copied; ARGV: agent, ids.
local from, now = KEYS[2], tonumber(redis.call('TIME')[1]) * 1000
for i = 2, #ARGV do
  local id = ARGV[i]
  for _, kind in ipairs({'run:', 'j:', 's:', 'e:'}) do
    redis.call('COPY', KEYS[1] .. kind .. from, KEYS[1] .. kind .. id)
  end
  redis.call('HSET', KEYS[1] .. 'run:' .. id, 'id', id)
  redis.call('ZADD', KEYS[1] .. 'st:' .. ARGV[1] .. ':succeeded', now, id)
  redis.call('ZADD', KEYS[1] .. 'retain', now, id)
end
return #ARGV - 1
"""
"""Everything a finished run leaves behind, in its real shape: record, rows, decisions, events, indexes."""


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--finished", type=int, default=30_000, help="the larger number of finished runs")
    parser.add_argument("--looks", type=int, default=150, help="times that each operation is measured")


def measure(chosen: argparse.Namespace) -> Outcome:
    """The same operations on the same server, before and after it grows."""
    with (
        EmbeddedServer(ephemeral=True) as server,
        producer(server.url) as client,
        runtime(server.url) as worker,
    ):
        templates = _templates(client, worker)
        _grow(server.url, templates, FEW - len(templates))
        _times(client, worker, 5)
        few = _times(client, worker, chosen.looks)
        _grow(server.url, templates, chosen.finished - FEW)
        many = _times(client, worker, chosen.looks)
    how = f"median of {chosen.looks} with {FEW:,} and with {chosen.finished:,} finished runs (copies of a real one) in one store."
    outcome = Outcome("growth", how)
    for name, before_ms in few.items():
        ratio = many[name] / before_ms
        outcome.add(f"{name}: time ratio", ratio, "x", "<= 1.5", ratio <= 1.5)
        outcome.add(f"  with {FEW:,}", before_ms, "ms")
        outcome.add(f"  with {chosen.finished:,}", many[name], "ms")
    return outcome


def _templates(client: Client, worker: Runtime) -> dict[str, str]:
    """One finished run in each shard: prefix → run id."""
    found: dict[str, str] = {}
    while len(found) < keys.SHARDS:
        run_id = client.enqueue("bench", "1 1").id
        execute_all(worker, [run_id])
        found.setdefault(keys.prefix_of(run_id), run_id)
    return found


def _grow(url: str, templates: dict[str, str], count: int) -> None:
    store: Any = redis.Redis.from_url(url, socket_timeout=60)
    copy = store.register_script(COPY)
    each = -(-count // len(templates))
    for prefix, template in templates.items():
        shard = int(template[:2])
        for begin in range(0, each, BATCH):
            ids = [keys.new_run_id(shard) for _ in range(min(BATCH, each - begin))]
            copy(keys=[prefix, template], args=["bench", *ids])
    # The server rewrites its file after such growth; that is the price of the copies, not of finished runs.
    wait_until(lambda: not store.info("persistence")["aof_rewrite_in_progress"], pause_s=0.5)
    store.close()


def _times(client: Client, worker: Runtime, looks: int) -> dict[str, float]:
    """Median milliseconds of each operation."""
    store, agents = worker.env.store, list(worker.agents)

    async def publish(run_ids: Sequence[str]) -> None:
        return None

    async def sweeps() -> None:
        await parked.run_once(store, publish)
        await leases.run_once(store, publish)
        await expired.run_once(store)
        await republish.run_once(store, worker.publisher, agents)
        await cleanups.run_once(store, worker.publisher, agents)

    claims: list[float] = []
    for _ in range(looks):
        run = client.enqueue("bench", "0 0")
        claims.append(_on_loop(worker, lambda: _claim(worker, run.id)))  # noqa: B023
    lists = []
    for _ in range(looks):
        began_s = time.perf_counter()
        client.runs(limit=100)
        lists.append(time.perf_counter() - began_s)
    stats = []
    for _ in range(looks):
        began_s = time.perf_counter()
        run_sync(client.store, load_stats("14d"))
        stats.append(time.perf_counter() - began_s)
    swept = [_on_loop(worker, sweeps) for _ in range(looks)]
    measured = {
        "client.runs(limit=100)": lists,
        "the numbers of 14 days": stats,
        "all sweeps of 16 shards": swept,
        "a claim": claims,
    }
    return {name: quantile(values, 0.5) * 1000 for name, values in measured.items()}


async def _claim(worker: Runtime, run_id: str) -> None:
    """A claim alone, in the name of a worker that never ends what it claims."""
    op = claim_run(
        shard_prefix=keys.prefix_of(run_id),
        nonce=secrets.token_hex(8),
        worker="bench",
        agents=["bench"],
        lease_ms=600_000,
    )
    assert await worker.env.store.do(op) is not None


def _on_loop(worker: Runtime, work: Callable[[], Awaitable[None]]) -> float:
    async def timed() -> float:
        began_s = time.perf_counter()
        await work()
        return time.perf_counter() - began_s

    return asyncio.run_coroutine_threadsafe(timed(), worker._loop).result()


if __name__ == "__main__":
    alone(measure, options)

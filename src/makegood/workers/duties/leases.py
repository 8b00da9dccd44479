"""Runs of workers whose lease has expired are continued by others (their host or supervisor is gone)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from makegood.store.async_store import AsyncStore
from makegood.store.keys import all_prefixes
from makegood.store.ops.leases import lose_worker, sweep_leases


async def run_once(store: AsyncStore, announce: Callable[[Sequence[str]], Awaitable[None]]) -> list[str]:
    """Sweep every shard and announce what waits to be continued; the caller has watched the server's clock."""
    prefixes = all_prefixes()
    expired = await store.do_all([sweep_leases(prefix) for prefix in prefixes])
    ops = [
        lose_worker(prefix, worker, only_expired=True, death=False)
        for prefix, workers in zip(prefixes, expired, strict=True)
        for worker in workers
    ]
    lost = [run_id for answer in await store.do_all(ops) for run_id in answer.run_ids]
    if lost:
        await announce(lost)
    return lost

"""Parked runs that are due go back to the queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from makegood.store.async_store import AsyncStore
from makegood.store.keys import all_prefixes
from makegood.store.ops.sweep import sweep_parked


async def run_once(store: AsyncStore, announce: Callable[[Sequence[str]], Awaitable[None]]) -> list[str]:
    """Sweep every shard and announce what is due; each run is moved once, by whichever worker comes first."""
    found = await store.do_all([sweep_parked(prefix) for prefix in all_prefixes()])
    due = [run_id for shard in found for run_id in shard]
    if due:
        await announce(due)
    return due

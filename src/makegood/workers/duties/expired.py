"""Queued runs that waited longer than their `expires_in` end as expired."""

from __future__ import annotations

from makegood.store.async_store import AsyncStore
from makegood.store.keys import all_prefixes
from makegood.store.ops.sweep import sweep_expired


async def run_once(store: AsyncStore) -> list[str]:
    """Sweep every shard; returns the runs that were ended."""
    found = await store.do_all([sweep_expired(prefix) for prefix in all_prefixes()])
    return [run_id for shard in found for run_id in shard]

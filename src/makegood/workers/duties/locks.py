"""Locks of runs that are stopping outlive their attempt: whatever still hangs in them may still act (invariant 13)."""

from __future__ import annotations

from collections.abc import Mapping

from makegood.store.async_store import AsyncStore
from makegood.store.ops.locks import extend_lock
from makegood.tasks.engine.attempt import Attempt
from makegood.workers.jobs import Work


async def run_once(store: AsyncStore, attempts: Mapping[str, Work], lease_s: float) -> int:
    """Let each of these locks last one more lease; returns how many still belong to whoever took them."""
    ops = [
        extend_lock(
            run_id=attempt.run_id,
            fence=lock.fence,
            holder=lock.holder,
            name=lock.name,
            lifetime_ms=round(lease_s * 1000),
        )
        for attempt in attempts.values()
        if isinstance(attempt, Attempt) and attempt.stopping
        for lock in attempt.locks.values()
    ]
    return sum(await store.do_all(ops))

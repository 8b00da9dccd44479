"""Tell this process's attempts that somebody asked them to stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from makegood.store.async_store import AsyncStore
from makegood.store.keys import prefix_of
from makegood.store.ops.reads import read_cancels
from makegood.workers.jobs import Work


async def run_once(store: AsyncStore, attempts: Mapping[str, Work]) -> int:
    """Look at the shards in which this process has runs; returns how many attempts were told."""
    prefixes = sorted({prefix_of(run_id) for run_id in attempts})
    asked = await store.do_all([read_cancels(prefix) for prefix in prefixes])
    told = 0
    for found in asked:
        for run_id, cause in found.items():
            attempt = attempts.get(run_id)
            if attempt is not None and not attempt.cancel.asked:
                attempt.cancel.ask(cast("Literal['user', 'parent']", cause))
                told += 1
    return told

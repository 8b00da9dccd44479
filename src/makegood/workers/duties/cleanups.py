"""Cleanups that are due are announced: those that waited for an unknown outcome, and those whose message got lost."""

from __future__ import annotations

from collections.abc import Sequence

from makegood.store.async_store import AsyncStore
from makegood.store.keys import all_prefixes
from makegood.store.ops.cleanup import sweep_cleaning
from makegood.tasks.wakeup import CLEANUP_QUEUE, QUARANTINE_QUEUE, Publisher
from makegood.workers.duties.hints import send_missing


async def run_once(
    store: AsyncStore, publisher: Publisher, agents: Sequence[str], *, quarantine: bool = False
) -> list[str]:
    """Announce at most as many as there are more of them than messages in the queue; each once in five seconds."""
    if not agents:
        return []
    found = await store.do_all(
        [sweep_cleaning(prefix, agents, alone=quarantine) for prefix in all_prefixes()]
    )
    waiting = [run_id for shard in found for run_id in shard]
    return await send_missing(publisher, waiting, QUARANTINE_QUEUE if quarantine else CLEANUP_QUEUE)

"""Queued runs whose message got lost are announced again (invariant 12)."""

from __future__ import annotations

from collections.abc import Sequence

from makegood.store.async_store import AsyncStore
from makegood.store.keys import all_prefixes
from makegood.store.ops.sweep import sweep_queued
from makegood.tasks.wakeup import QUARANTINE_QUEUE, RUNS_QUEUE, Publisher
from makegood.workers.duties.hints import send_missing


async def run_once(
    store: AsyncStore, publisher: Publisher, agents: Sequence[str], *, quarantine: bool = False
) -> list[str]:
    """Announce at most as many waiting runs as there are more of them than messages in the queue.

    Runs of an agent that was claimed lately are left alone, and one worker at a time looks at an agent's runs.
    """
    if not agents:
        return []
    found = await store.do_all(
        [sweep_queued(prefix, agents, quarantine=quarantine) for prefix in all_prefixes()]
    )
    waiting = [run_id for shard in found for run_id in shard]
    return await send_missing(publisher, waiting, QUARANTINE_QUEUE if quarantine else RUNS_QUEUE)

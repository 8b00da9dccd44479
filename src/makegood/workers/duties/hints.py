"""Wake-ups of what waits without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from makegood.tasks.wakeup import Publisher


async def send_missing(publisher: Publisher, waiting: Sequence[str], queue: str) -> list[str]:
    """Announce at most as many of these runs as there are more of them than messages in the queue (invariant 12)."""
    if not waiting:
        return []
    in_queue = await asyncio.to_thread(publisher.queue_length, queue)
    missing = list(waiting[: max(0, len(waiting) - in_queue)])
    for run_id in missing:
        await asyncio.to_thread(publisher.wake, run_id, queue)
    return missing

"""Wake-ups that a worker process sends: of runs it let go of, of runs that are due, and of runs that only others serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from makegood.errors import BrokerUnreachable, NotAllowed
from makegood.store.async_store import AsyncStore
from makegood.store.keys import prefix_of
from makegood.store.ops.reads import count_waiting, read_agent, read_whereabouts
from makegood.tasks.wakeup import CLEANUP_QUEUE, QUARANTINE_QUEUE, RUNS_QUEUE, Publisher, queue_for

log = logging.getLogger("makegood.worker")

RETURN_S, MAX_RETURNS, REMEMBERED_RETURNS = 0.2, 10, 1_000
"""Pause before a wake-up goes back to the queue, how often it does for one run, and for how many runs that is known."""


@dataclass(slots=True)
class Wakes:
    """One per process. A wake-up is a hint: one that cannot be sent is a warning, and a sweeper finds its run."""

    store: AsyncStore
    publisher: Publisher
    agents: Container[str]
    queue: str
    _returned: dict[str, int] = field(default_factory=dict)

    @property
    def quarantine(self) -> bool:
        """Whether this process executes suspects."""
        return self.queue == QUARANTINE_QUEUE

    async def released(self, run_id: str) -> None:
        """Announce a run that this process let go of: suspects are executed in quarantine only."""
        await (self.announce([run_id]) if self.quarantine else self.send(run_id, RUNS_QUEUE))

    async def announce(self, run_ids: Sequence[str]) -> None:
        """Announce runs, each on the queue of those that may take it."""
        found = await self.store.do_all([read_whereabouts(run_id) for run_id in run_ids])
        for run_id, where in zip(run_ids, found, strict=True):
            queue = queue_for(where)
            if queue is not None:
                await self.send(run_id, queue)

    async def hand_on(self, hint: str) -> None:
        """A wake-up goes back, a few times, while runs of its agent wait in its shard and only others serve them.

        Not only for its own run: the one that its message was spent on may have been another.
        """
        agent = await self.store.do(read_agent(hint))
        if agent is None or agent in self.agents or self.quarantine:
            return
        cleaning = self.queue == CLEANUP_QUEUE
        if not await self.store.do(count_waiting(prefix_of(hint), agent, cleaning=cleaning)):
            return
        self._returned[hint] = self._returned.get(hint, 0) + 1
        if self._returned[hint] > MAX_RETURNS:  # the sweeper of a worker that serves it announces it again
            return
        while len(self._returned) > REMEMBERED_RETURNS:
            del self._returned[next(iter(self._returned))]
        await asyncio.sleep(RETURN_S)
        await self.send(hint, self.queue)

    async def send(self, run_id: str, queue: str) -> None:
        """Send one wake-up."""
        try:
            await asyncio.to_thread(self.publisher.wake, run_id, queue)
        except (BrokerUnreachable, NotAllowed) as error:
            log.warning("%s", error)

"""Runs that the store says this process holds, though it does not execute them: which it takes up, and when it gives one up."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from makegood.errors import MakegoodError
from makegood.store.keys import prefix_of
from makegood.store.ops.breakers import server_time
from makegood.store.ops.leases import lose_worker
from makegood.store.ops.reads import read_record
from makegood.store.ops.runs import Claim, claim_of
from makegood.tasks.engine.env import Env
from makegood.workers.jobs import Job
from makegood.workers.wakes import Wakes

log = logging.getLogger("makegood.worker")

MAX_ADOPTIONS = 3
"""So often a process takes up one claim. A lost reply or a store that was away needs one; a record that is refused, all."""

REMEMBERED = 1_000
"""Claims whose number is known."""


@dataclass(slots=True)
class Adoptions:
    """One per process; belongs to its event loop."""

    _seen: set[str] = field(default_factory=set)
    _under_way: set[str] = field(default_factory=set)
    _times: dict[str, tuple[str, int]] = field(default_factory=dict)

    def due(self, found: set[str], *, claiming: bool) -> set[str]:
        """What to take up now of what a heartbeat has found: what the one before has found, too. Each is then under way.

        `claiming`: the process waits for the reply of a claim, which may be of one of these.
        """
        due = set() if claiming else (found & self._seen) - self._under_way
        self._seen = found
        self._under_way |= due
        return due

    def over(self, run_id: str) -> None:
        """It is taken up, or need not be."""
        self._under_way.discard(run_id)

    def count(self, run_id: str, fence: str) -> int:
        """Note that a claim is about to be taken up; gives how often it was, this time included."""
        known, times = self._times.pop(run_id, (fence, 0))
        times = times + 1 if known == fence else 1
        self._times[run_id] = (fence, times)
        while len(self._times) > REMEMBERED:
            del self._times[next(iter(self._times))]
        return times

    async def take_up(
        self, env: Env, wakes: Wakes, jobs: Sequence[Job], run_id: str, held: Container[str]
    ) -> tuple[Job, Claim] | None:
        """The claim to go on with, and the kind of its work; None when there is none, or it was taken up too often."""
        fields, now_ms = await env.store.do_all([read_record(run_id), server_time()])
        state = fields.get("state", b"").decode()
        job = next((each for each in jobs if state in each.states), None)
        if run_id in held or job is None or fields.get("worker") != env.worker.encode():
            return None
        claim = claim_of(run_id, now_ms, fields)
        times = self.count(run_id, claim.fence)
        if times > MAX_ADOPTIONS:
            if times == MAX_ADOPTIONS + 1:
                await give_up(env, wakes, run_id)
            return None
        log.warning("run %s is held by this process, which does not execute it; it is taken up now", run_id)
        return job, claim


async def give_up(env: Env, wakes: Wakes, run_id: str) -> None:
    """Whatever was to be written of the run is refused each time: it counts as lost, and the bound on losses ends it."""
    message = f"Run {run_id} was taken up {MAX_ADOPTIONS} times by worker {env.worker}, which could not end it; it gives it up."
    env.report_bug(MakegoodError(message), {"run_id": run_id})
    lost = await env.store.do(
        lose_worker(prefix_of(run_id), env.worker, only_expired=False, death=False, run_id=run_id)
    )
    await wakes.announce(lost.run_ids)

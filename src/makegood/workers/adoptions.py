"""Runs that the store says this process holds, though it does not execute them: which it takes up, and when it gives one up."""

from __future__ import annotations

from dataclasses import dataclass, field

from makegood.errors import MakegoodError
from makegood.store.keys import prefix_of
from makegood.store.ops.leases import lose_worker
from makegood.tasks.engine.env import Env
from makegood.workers.wakes import Wakes

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


async def give_up(env: Env, wakes: Wakes, run_id: str) -> None:
    """Whatever was to be written of the run is refused each time: it counts as lost, and the bound on losses ends it."""
    message = f"Run {run_id} was taken up {MAX_ADOPTIONS} times by worker {env.worker}, which could not end it; it gives it up."
    env.report_bug(MakegoodError(message), {"run_id": run_id})
    lost = await env.store.do(
        lose_worker(prefix_of(run_id), env.worker, only_expired=False, death=False, run_id=run_id)
    )
    await wakes.announce(lost.run_ids)

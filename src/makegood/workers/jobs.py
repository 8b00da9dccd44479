"""The two kinds of work a process takes from a queue: to execute a run, and to clean one up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from makegood.cleanup import run as cleaning
from makegood.cleanup.case import Case
from makegood.store.ops import runs
from makegood.store.ops.cleanup import claim_cleanup
from makegood.store.ops.runs import Claim
from makegood.store.scripts import Op
from makegood.store.states import State
from makegood.tasks.cancel import Cancel
from makegood.tasks.engine import run as running
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.env import Env
from makegood.tasks.wakeup import CLEANUP_QUEUE, QUARANTINE_QUEUE


class Work(Protocol):
    """A claimed run that is executed or cleaned up; `on_stopping`: it hangs, and its slot is free for others."""

    claim: Claim
    cancel: Cancel
    on_stopping: asyncio.Event

    @property
    def run_id(self) -> str:
        """Id of the run."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who claims, and what of a shard; `hint`: the run that the message names, '' when it is another's turn to count it."""

    shard_prefix: str
    nonce: str
    worker: str
    agents: Sequence[str]
    lease_ms: int
    alone: bool
    hint: str = ""


class Job(Protocol):
    """One kind of work."""

    points: tuple[str, str]
    states: frozenset[str]

    def claim(self, asking: Asking) -> Op[Claim | None]:
        """Claim what is due."""

    async def open(self, env: Env, claim: Claim) -> Work:
        """Make the work of a claim."""

    async def execute(self, work: Any) -> None:
        """Do it; never raises."""

    async def refuse(self, env: Env, claim: Claim, message: str) -> None:
        """End a claim whose record cannot be opened."""


class RunJob:
    """Execute runs."""

    points = ("before_claim", "after_claim")
    states = frozenset({"running", "stopping"})

    def claim(self, asking: Asking) -> Op[Claim | None]:
        """The oldest due run."""
        return runs.claim_run(
            shard_prefix=asking.shard_prefix,
            nonce=asking.nonce,
            worker=asking.worker,
            agents=asking.agents,
            lease_ms=asking.lease_ms,
            quarantine=asking.alone,
            hint=asking.hint,
        )

    async def open(self, env: Env, claim: Claim) -> Work:
        """Its attempt."""
        return await running.open_attempt(env, claim)

    async def execute(self, work: Attempt) -> None:
        """Execute the attempt to its end."""
        await running.execute(work)

    async def refuse(self, env: Env, claim: Claim, message: str) -> None:
        """The run ends as failed, through a cleanup: nobody could look at what is to be undone."""
        op = runs.end_run(
            run_id=claim.run_id,
            fence=claim.fence,
            op=f"{claim.fence}/open",
            state=State.FAILED,
            code="BUG",
            message=message,
            cleaning=runs.Cleaning("failure", State.FAILED, "policy"),
        )
        await env.store.do(op)
        await env.publish_cleanup(claim.run_id)


class CleanupJob:
    """Clean up."""

    points = ("before_cleanup_claim", "after_cleanup_claim")
    states = frozenset({"cleaning"})

    def claim(self, asking: Asking) -> Op[Claim | None]:
        """The cleanup that has been due longest."""
        return claim_cleanup(
            shard_prefix=asking.shard_prefix,
            nonce=asking.nonce,
            worker=asking.worker,
            agents=asking.agents,
            lease_ms=asking.lease_ms,
            alone=asking.alone,
            hint=asking.hint,
        )

    async def open(self, env: Env, claim: Claim) -> Work:
        """Its case."""
        return await cleaning.open_case(env, claim)

    async def execute(self, work: Case) -> None:
        """One pass."""
        await cleaning.clean(work)

    async def refuse(self, env: Env, claim: Claim, message: str) -> None:
        """A person has to look."""
        await cleaning.refuse(env, claim, message)


def jobs_for(queues: Sequence[str]) -> tuple[Job, ...]:
    """What a process on these queues takes; a quarantine process takes suspects of both kinds."""
    if QUARANTINE_QUEUE in queues:
        return (RunJob(), CleanupJob())
    cleanup = (CleanupJob(),) if CLEANUP_QUEUE in queues else ()
    return (RunJob(), *cleanup) if tuple(queues) != (CLEANUP_QUEUE,) else cleanup

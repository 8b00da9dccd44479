"""A worker process: one event loop in its own thread, on which every attempt of the process runs.

Celery's threads hand a wake-up to the loop and wait; the slot is free again when the run has ended, was let go
of, or only hangs in a tool that does not stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from makegood.errors import MakegoodError, NotAllowed, StaleFence, StoreUnreachable
from makegood.monitoring import sentry, sentry_spans
from makegood.settings import Settings
from makegood.spawn import spawn
from makegood.store import faults, keys
from makegood.store.async_store import AsyncStore
from makegood.store.ops import catalog
from makegood.store.ops.numbers import WorkerFacts
from makegood.store.ops.runs import Claim
from makegood.store.scripts import Op
from makegood.tasks.agent import Agent
from makegood.tasks.breakers import BreakerBoard
from makegood.tasks.engine.env import Alert, Env
from makegood.tasks.flows import Flow, run_async
from makegood.tasks.latencies import LatencyBoard
from makegood.tasks.limits import LimitBoard
from makegood.tasks.model.adapter import ModelAdapter, litellm_adapter
from makegood.tasks.threads import SyncPool
from makegood.tasks.wakeup import QUARANTINE_QUEUE, RUNS_QUEUE, Publisher
from makegood.urls import mask_url
from makegood.workers.adoptions import Adoptions
from makegood.workers.heartbeat import Heartbeat, Round
from makegood.workers.jobs import Asking, CleanupJob, Job, RunJob, Work, jobs_for
from makegood.workers.maintenance import Maintenance
from makegood.workers.wakes import Wakes

T = TypeVar("T")
log = logging.getLogger("makegood.worker")

STORE_PATIENCE_S = 40.0
"""A worker waits out a store that is away for so long before an operation fails."""

BEFORE_GRACE_ENDS_S = 2.0
"""So long before the grace ends bodies are cancelled and outcomes written (invariant 11)."""

LAST_WORDS_S = 1.0
"""After that, how long hung work may still take before its process gives up on it."""


class Runtime:
    """The process's loop and everything on it."""

    def __init__(
        self,
        settings: Settings,
        agents: Mapping[str, Agent],
        *,
        adapter: Callable[[], ModelAdapter] | None = None,
        on_recycle: Callable[[str], None] = lambda why: None,
        on_alert: Alert = sentry.alert,
        pulse: Callable[[], None] = lambda: None,
        boot_id: str | None = None,
        queue: str = RUNS_QUEUE,
        also: Sequence[str] = (),
        slots: int | None = None,
    ) -> None:
        self.settings, self.agents = settings, agents
        self.worker = worker_name(boot_id or secrets.token_hex(4))
        self.queue, self.quarantine = queue, queue == QUARANTINE_QUEUE
        self.slots = slots or settings.concurrency
        self.publisher = Publisher(settings.broker_url, mask_url(settings.broker_url))
        self.jobs = jobs_for((queue, *also))
        self.executes = any(isinstance(job, RunJob) for job in self.jobs)
        self.cleans = any(isinstance(job, CleanupJob) for job in self.jobs)
        self.attempts: dict[str, Work] = {}
        self.lag_s = 0.0
        self.answered_s = time.monotonic()
        self._claiming = 0
        self._adoptions = Adoptions()
        self.received = 0
        self._in_hand: set[object] = set()
        self.on_recycle, self._on_alert = on_recycle, on_alert
        self._pulse = pulse
        self._make_adapter = adapter or litellm_adapter
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="makegood-loop", daemon=True)
        self._maintenance: Maintenance | None = None
        self.env: Env
        self.wakes: Wakes
        self.heartbeat: Heartbeat

    # --- from other threads -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loop, connect, publish what is served. Raises StoreUnreachable and the like."""
        self._thread.start()
        self._wait(self._open())

    def perform(self, hint: object) -> None:
        """Handle one wake-up; returns when its slot is free again."""
        with self.hearing():
            if isinstance(hint, str) and keys.is_run_id(hint):
                self._wait(self._work(hint))
            else:
                self.do(catalog.set_aside("The wake-up names no run.", repr(hint).encode()[:1000]))

    @contextlib.contextmanager
    def hearing(self) -> Iterator[None]:
        """A message is in hand: it came through, and takes one of Celery's threads until this is left."""
        self.received += 1
        message = object()
        self._in_hand.add(message)
        try:
            yield
        finally:
            self._in_hand.discard(message)

    @property
    def free_slots(self) -> int:
        """How many more messages Celery's threads could take, also while they only wait for the store."""
        return self.slots - len(self._in_hand)

    def do(self, op: Op[T]) -> T:
        """Execute a store operation."""
        return self._wait(self.env.store.do(op))

    def run_flow(self, flow: Flow[T]) -> T:
        """Run store work that is written as a flow."""
        return self._wait(run_async(self.env.store, flow))

    def drain(self) -> None:
        """Take nothing new; attempts stop at their next step boundary, or when the grace ends. Signal-safe."""
        self._loop.call_soon_threadsafe(self._begin_drain)

    def dispose(self) -> None:
        """Stop every body now and let go of all runs. Signal-safe."""
        self._loop.call_soon_threadsafe(lambda: self._keep(spawn(self._dispose(), name="dispose")))

    def stop(self) -> None:
        """Close everything; called when no wake-up is being handled any more."""
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self.publisher.close()

    @property
    def has_stuck_threads(self) -> bool:
        """Whether threads hang in tools that did not stop."""
        return self.env.threads.stuck > 0

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- on the loop --------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        store = AsyncStore(self.settings.redis_url, patience_s=STORE_PATIENCE_S)
        breakers, latencies, limits = BreakerBoard(store), LatencyBoard(store), LimitBoard(store)
        self.heartbeat = self._make_heartbeat()
        self.wakes = Wakes(store, self.publisher, self.agents, self.queue)
        threads = SyncPool(self.settings.sync_threads, on_exhausted=self._on_exhausted)
        self.env = Env(
            store=store,
            adapter=self._make_adapter(),
            threads=threads,
            breakers=breakers,
            latencies=latencies,
            limits=limits,
            agents=self.agents,
            worker=self.worker,
            publish=self.wakes.released,
            publish_cleanup=lambda run_id: self.wakes.announce([run_id]),
            report_bug=sentry.report_bug,
            alert=self._on_alert,
            recycle=self.on_recycle,
            lease=self.heartbeat.lease,
            quarantine=self.quarantine,
            may_act=self.heartbeat.valid,
            secret_fields=self.settings.secret_fields,
            spans=sentry_spans.subscribe(self.settings.sentry_traces, payloads=self.settings.sentry_payloads),
        )
        await breakers.refresh()
        await limits.refresh()
        if self.agents:
            await store.do(
                catalog.publish_agents({name: each.declaration() for name, each in self.agents.items()})
            )
            if self.executes:  # cleanup asks no model
                await self.env.adapter.warm_up()
        self.answered_s = time.monotonic()
        self._maintenance = Maintenance(self)
        self._maintenance.start()
        self.heartbeat.start()

    def _make_heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self.settings.redis_url,
            self.worker,
            self.settings.lease_s,
            self.settings.loop_stall_s,
            held=lambda: {run_id: attempt.claim.fence for run_id, attempt in list(self.attempts.items())},
            loop_answered_s=lambda: self.answered_s,
            on_beat=lambda beats: self._from_thread(lambda: self._heard(beats)),
            facts=self._facts,
            pulse=self._pulse,
        )

    def _facts(self) -> WorkerFacts:
        queue = "quarantine" if self.quarantine else "runs" if self.executes else "cleanup"
        return WorkerFacts(self.worker, queue, self.slots, round(self.lag_s, 3), self.env.threads.stuck)

    def _from_thread(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(work)

    def _heard(self, round_: Round) -> None:
        """Stop work that is someone else's; take up runs whose claim this process never heard of."""
        found: set[str] = set()
        for beat in round_.beats:
            for run_id in beat.lost:
                attempt = self.attempts.get(run_id)
                if (
                    attempt is not None
                    and attempt.claim.fence == round_.held[run_id]
                    and not attempt.cancel.asked
                ):
                    log.warning(
                        "run %s is executed by another worker; this one stops its own work on it", run_id
                    )
                    attempt.cancel.ask("disposed")
            found.update(run_id for run_id in beat.found if run_id not in self.attempts)
        # A turn later, when the bodies of what is lost were told to stop: they must not see a valid lease.
        self._loop.call_soon(self.heartbeat.lease.renew, round_.valid_until_s)
        for run_id in self._adoptions.due(found, claiming=self._claiming > 0):
            self._keep(spawn(self._adopt(run_id), name=f"adopt-{run_id}"))

    async def _adopt(self, run_id: str) -> None:
        """The store says that this process holds the run: its claim's reply was lost, or the store was away too long."""
        try:
            taken = await self._adoptions.take_up(self.env, self.wakes, self.jobs, run_id, self.attempts)
            work = None if taken is None else await self._open_work(*taken)
        finally:
            self._adoptions.over(run_id)
        if taken is not None and work is not None:
            await self._execute(taken[0], work)

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """A task of the process that is awaited at its end."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _work(self, hint: str) -> None:
        """Claim and do one piece of work of the hint's shard, unless this process takes nothing."""
        if self.takes_nothing:
            await self.wakes.send(hint, self.queue)
            await asyncio.sleep(1.0)  # the message may come straight back
            return
        self._claiming += 1  # until it is among the attempts, a heartbeat must not take it for a lost claim
        try:
            job, claim = await self._claim(hint)
            if claim is None or claim.run_id != hint:  # the hint's own run may be one that only others serve
                self._keep(spawn(self.wakes.hand_on(hint), name="hand-on"))
            if claim is None:
                return
            faults.point(job.points[1])
            work = await self._open_work(job, claim)
        finally:
            self._claiming -= 1
        if work is not None:
            await self._execute(job, work)

    async def _claim(self, hint: str) -> tuple[Job, Claim | None]:
        """What is due of the first kind of work that has something due."""
        claim = None
        for job in self.jobs:
            asking = Asking(
                shard_prefix=keys.prefix_of(hint),
                nonce=secrets.token_hex(8),
                worker=self.worker,
                agents=list(self.agents),
                lease_ms=round(self.settings.lease_s * 1000),
                alone=self.quarantine,
                hint=hint if job is self.jobs[-1] else "",
            )
            faults.point(job.points[0])
            claim = await self.env.store.do(job.claim(asking))
            if claim is not None:
                break
        return job, claim

    async def _open_work(self, job: Job, claim: Claim) -> Work | None:
        try:
            work = await job.open(self.env, claim)
        except (
            StoreUnreachable,
            NotAllowed,
        ) as error:  # it stays held, and is taken up with a later heartbeat
            log.warning("run %s could not be opened: %s", claim.run_id, error)
            return None
        except Exception as error:
            await self._give_up(job, claim, error)
            return None
        known = self.attempts.get(claim.run_id)
        if known is not None and known.claim.fence == claim.fence:  # it was taken up in the meantime
            return None
        self.attempts[claim.run_id] = work
        return work

    async def _execute(self, job: Job, work: Work) -> None:
        task = self._keep(spawn(job.execute(work), name=f"run-{work.run_id}"))
        task.add_done_callback(lambda _: self._forget(work))
        hangs = spawn(work.on_stopping.wait(), name="stopping")
        await asyncio.wait({task, hangs}, return_when=asyncio.FIRST_COMPLETED)
        hangs.cancel()

    def _forget(self, work: Work) -> None:
        """Work is over; by now this process may have claimed the run again."""
        if self.attempts.get(work.run_id) is work:
            del self.attempts[work.run_id]

    async def _give_up(self, job: Job, claim: Claim, error: Exception) -> None:
        """A record that cannot be opened ends or goes to a person; the worker lives on."""
        sentry.report_bug(error, {"run_id": claim.run_id})
        message = f"The run's record cannot be read: {type(error).__name__}: {error}"[:500]
        with contextlib.suppress(StaleFence):
            await job.refuse(self.env, claim, message)

    def _on_exhausted(self) -> None:
        self.on_recycle("as many threads hang in tools as the pool has")

    @property
    def takes_nothing(self) -> bool:
        """Whether this process claims no further run: it shuts down, its loop lags, or its threads hang."""
        lags = self.lag_s * 1000 > self.settings.loop_lag_ms
        full = self.env.threads.exhausted
        return self.env.draining.is_set() or full or lags or not self.env.may_act()

    def _begin_drain(self) -> None:
        if self.env.draining.is_set():
            return
        self.env.draining.set()
        log.info("draining: %d runs stop at their next step boundary", len(self.attempts))
        grace_s = max(0.0, self.settings.grace_s - BEFORE_GRACE_ENDS_S)
        self._loop.call_later(grace_s, lambda: self._keep(spawn(self._dispose(), name="dispose")))

    async def _dispose(self) -> None:
        self.env.draining.set()
        for attempt in list(self.attempts.values()):
            attempt.cancel.ask("disposed")
        await asyncio.sleep(LAST_WORDS_S)
        self.env.abandon.ask("disposed")

    async def _close(self) -> None:
        if self._maintenance is not None:
            await self._maintenance.stop()
        executing = [task for task in self._running if (task.get_name() or "").startswith("makegood-run-")]
        if executing:
            await self._dispose()
            await asyncio.wait(executing, timeout=5)
        await asyncio.to_thread(self.heartbeat.stop)
        self.env.threads.close()
        await self.env.adapter.aclose()
        with contextlib.suppress(MakegoodError):
            await self.env.store.aclose()


def worker_name(boot_id: str) -> str:
    """Name of a worker process: its host and the id of its start."""
    return f"{socket.gethostname()}-{boot_id}"

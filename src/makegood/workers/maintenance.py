"""What a worker process does beside its runs: each duty a file with one `run_once`, repeated at its own pace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from makegood.errors import MakegoodError
from makegood.spawn import spawn
from makegood.store.ops.breakers import server_time
from makegood.store.ops.leases import read_server
from makegood.workers.duties import (
    cancels,
    checkin,
    cleanups,
    deaf,
    expired,
    leases,
    locks,
    parked,
    republish,
)
from makegood.workers.watch import Watch, look, trusted

if TYPE_CHECKING:
    from makegood.workers.runtime import Runtime

log = logging.getLogger("makegood.worker")

CANCEL_POLL_S = 0.1
"""A cancel reaches a running worker within twice this."""

SWEEP_S = 1.0
REPUBLISH_S = 5.0
LATENCY_S = 5.0
LAG_S = 0.1

Duty = tuple[str, float, Callable[[], Awaitable[object]]]
"""Its name, the pause between two rounds in seconds, and one round."""


class Maintenance:
    """Repeats the duties of one process until it is stopped."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: list[asyncio.Task[None]] = []
        self._watch = Watch()
        self._hearing = deaf.Hearing()
        self._sweeping: list[Duty] = [
            ("parked", SWEEP_S, lambda: parked.run_once(runtime.env.store, runtime.wakes.announce)),
            ("time", min(SWEEP_S, runtime.settings.lease_s / 4), self._end_by_time),
            ("republish", REPUBLISH_S, self._republish),
            ("cleanups", SWEEP_S, self._announce_cleanups),
        ]
        self._sweeps = checkin.Sweeps([name for name, _, _ in self._sweeping])

    def start(self) -> None:
        """Begin every duty."""
        env, runtime, lease_s = self._runtime.env, self._runtime, self._runtime.settings.lease_s
        duties: list[Duty] = [
            ("cancels", CANCEL_POLL_S, lambda: cancels.run_once(env.store, runtime.attempts)),
            ("locks", lease_s / 3, lambda: locks.run_once(env.store, runtime.attempts, lease_s)),
            ("breakers", SWEEP_S, env.breakers.refresh),
            ("limits", SWEEP_S, env.limits.refresh),
            ("latencies", LATENCY_S, env.latencies.refresh),
            *self._sweeping,
            ("hearing", REPUBLISH_S, self._listen),
            ("liveness", SWEEP_S, self._touch),
            ("check-in", checkin.EVERY_S, self._check_in),
        ]
        self._tasks = [
            spawn(self._repeat(name, pause_s, duty), name=f"duty-{name}") for name, pause_s, duty in duties
        ]
        self._tasks.append(spawn(self._measure_lag(), name="duty-lag"))

    async def stop(self) -> None:
        """End every duty."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, name: str, pause_s: float, duty: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await duty()
                self._sweeps.worked(name, time.monotonic())
            except MakegoodError as error:
                log.warning("%s: %s", name, error)
            except Exception:
                log.exception("duty %s failed; it goes on", name)
            await asyncio.sleep(pause_s)

    async def _measure_lag(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(LAG_S)
            self._runtime.answered_s = time.monotonic()
            self._runtime.lag_s = max(0.0, self._runtime.answered_s - began_s - LAG_S)

    async def _announce_cleanups(self) -> None:
        runtime = self._runtime
        if runtime.cleans:
            await cleanups.run_once(
                runtime.env.store, runtime.publisher, list(runtime.agents), quarantine=runtime.quarantine
            )

    async def _republish(self) -> None:
        runtime = self._runtime
        if not runtime.executes:
            return
        await republish.run_once(
            runtime.env.store, runtime.publisher, list(runtime.agents), quarantine=runtime.quarantine
        )

    async def _listen(self) -> None:
        """A process that hears nothing while its queue holds messages is replaced."""
        runtime = self._runtime
        in_queue = await asyncio.to_thread(runtime.publisher.queue_length, runtime.queue)
        self._hearing = deaf.look(
            self._hearing, received=runtime.received, in_queue=in_queue, free_slots=runtime.free_slots
        )
        if deaf.is_deaf(self._hearing) and not runtime.env.draining.is_set():
            self._hearing = deaf.Hearing()
            runtime.on_recycle("messages wait, but none reaches this process")

    async def _end_by_time(self) -> None:
        """Leases and expiry are acted upon only after the same server was watched for a full lease (invariant 5)."""
        runtime, store = self._runtime, self._runtime.env.store
        server, now_ms = await store.do_all([read_server(), server_time()])
        identity = (server.run_id, server.replication_id)
        if (
            self._watch.identity[0] and identity != self._watch.identity
        ):  # a failover may have lost claims: their runs are stopped at once
            runtime.heartbeat.soon()
        lease_s = runtime.settings.lease_s
        self._watch = look(self._watch, identity, now_ms, time.monotonic(), lease_s)
        if trusted(self._watch, lease_s, time.monotonic()):
            await leases.run_once(store, runtime.wakes.announce)
            await expired.run_once(store)

    async def _check_in(self) -> None:
        """Sentry hears once a minute that runs are swept, from whichever process comes first, or that they are not."""
        swept = self._sweeps.verdict(time.monotonic())
        await checkin.run_once(self._runtime.env.store, self._runtime.worker, swept=swept)

    async def _touch(self) -> None:
        path = self._runtime.settings.liveness_file
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

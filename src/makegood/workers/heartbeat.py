"""The heartbeat of a worker process, on a thread of its own so that a busy loop does not cost the lease.

It also watches the loop: one that has not answered for `loop_stall_s` ends its process, so that a takeover
always means a proven death.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from makegood.errors import MakegoodError
from makegood.store.connect import open_sync
from makegood.store.keys import all_prefixes, prefix_of
from makegood.store.ops.leases import Beat, renew_lease
from makegood.store.ops.numbers import WorkerFacts, forget_worker, tell_worker
from makegood.store.sync_store import SyncStore
from makegood.tasks.lease_page import LeasePage
from makegood.workers.exits import GAVE_UP

log = logging.getLogger("makegood.worker")

BEATS_PER_LEASE = 3
PULSES_PER_LEASE = 8


@dataclass(frozen=True, slots=True)
class Round:
    """What one good round found: what was held when it began (run id → fence), what the store said, and until when
    the process may act once it has taken note of that."""

    held: Mapping[str, str]
    beats: list[Beat]
    valid_until_s: float


class Heartbeat:
    """Renews the leases of a process.

    Args:
        held: the runs that the process holds now, with their fences; read from this thread.
        loop_answered_s: monotonic time at which the loop last answered.
        on_beat: told after each good round (on this thread); whoever acts for the runs takes note of what was lost
            and then renews `lease`, so that nothing lost is seen under a valid one.
        facts: what the process says of itself, for the numbers; asked after each round.
        pulse: called for the supervisor to see that the process lives, whether or not the store answers.
    """

    def __init__(
        self,
        url: str,
        worker: str,
        lease_s: float,
        loop_stall_s: float,
        *,
        held: Callable[[], Mapping[str, str]],
        loop_answered_s: Callable[[], float],
        on_beat: Callable[[Round], None],
        facts: Callable[[], WorkerFacts],
        pulse: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = SyncStore(url, client=open_sync(url, retries=0, reply_s=max(0.5, lease_s / 2)))
        self._worker, self._lease_s, self._loop_stall_s = worker, lease_s, loop_stall_s
        self._held, self._loop_answered_s, self._on_beat, self._pulse = held, loop_answered_s, on_beat, pulse
        self._facts = facts
        self._stop, self._due = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="makegood-heartbeat", daemon=True)
        self._pulse_thread = threading.Thread(target=self._show_life, name="makegood-pulse", daemon=True)
        self.lease = LeasePage(time.monotonic() + lease_s)
        self._failing_since_s: float | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._due.set()
        self._thread.start()
        self._pulse_thread.start()

    def soon(self) -> None:
        """Beat now: what the store holds may have changed. Called by any thread."""
        self._due.set()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._due.set()
        self._thread.join(timeout=5)
        with contextlib.suppress(MakegoodError):
            self._store.do(forget_worker(self._worker))
        self._store.close()

    def valid(self) -> bool:
        """Whether the process may still act for its runs (invariants 3 and 4)."""
        return self.lease.valid()

    def once(self) -> None:
        """One round over all shards: a claim whose reply was lost may be in any (where nothing is held, nothing is written)."""
        began_s = time.monotonic()
        held = dict(self._held())
        by_shard: dict[str, list[str]] = defaultdict(list)
        for run_id in held:
            by_shard[prefix_of(run_id)].append(run_id)
        lease_ms = round(self._lease_s * 1000)
        ops = [
            renew_lease(prefix, self._worker, lease_ms, by_shard.get(prefix, [])) for prefix in all_prefixes()
        ]
        self._on_beat(Round(held, self._store.do_all(ops), began_s + self._lease_s))
        with contextlib.suppress(MakegoodError):  # a number that a full server does not take costs no lease
            self._store.do(tell_worker(self._facts(), lease_ms))

    def _show_life(self) -> None:
        while not self._stop.wait(self._lease_s / PULSES_PER_LEASE):
            self._pulse()

    def _run(self) -> None:
        pause_s = self._lease_s / BEATS_PER_LEASE
        while True:
            self._due.wait(pause_s)
            self._due.clear()
            if self._stop.is_set():
                return
            self._check_loop()
            try:
                self.once()
            except MakegoodError as error:
                self._note_failure(str(error))
                pause_s = min(1.0, self._lease_s / 10)
            except Exception:
                log.exception("heartbeat failed; it goes on")
            else:
                self._note_success()
                pause_s = self._lease_s / BEATS_PER_LEASE

    def _note_failure(self, why: str) -> None:
        """An outage is logged once, however many beats it costs."""
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()
            log.warning("heartbeat: %s", why)

    def _note_success(self) -> None:
        if self._failing_since_s is not None:
            log.warning("heartbeat: it works again after %.1f s", time.monotonic() - self._failing_since_s)
            self._failing_since_s = None

    def _check_loop(self) -> None:
        silent_s = time.monotonic() - self._loop_answered_s()
        if silent_s > self._loop_stall_s:
            log.critical("the event loop has not answered for %.0f s; this process ends", silent_s)
            os._exit(GAVE_UP)

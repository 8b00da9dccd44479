"""`makegood worker`: a parent that starts the Celery processes, watches and restarts them, and reports their ends.

It imports the libraries once and forks, so a restart is ready at once. A process that has ended is reported only
when its whole group is killed and reaped (invariant 11). The parent has no threads.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from makegood.errors import MakegoodError
from makegood.settings import Settings
from makegood.tasks.wakeup import QUARANTINE_QUEUE, RUNS_QUEUE
from makegood.workers.children import Child, Slot, start_child
from makegood.workers.exits import GAVE_UP
from makegood.workers.obituary import Obituary, report, waiting_suspects
from makegood.workers.runtime import worker_name

RESTART_MIN_S = 0.5
RESTART_MAX_S = 30.0
STABLE_S = 60.0
"""A process that lived this long is restarted without delay."""

TICK_S = 0.5
REPORT_AGAIN_S = 1.0
START_AGAIN_S = 1.0
STOP_GAP_S = 0.3
"""Two signals that come together are one; so much later the second is a second one for every process."""

SUSPECTS_S = 10.0
START_S = 120.0
"""A process that does not consume after this long is killed and started again."""

USAGE, UNREACHABLE = 2, 8
"""Exit codes with which a process says that starting it again cannot help."""


class Supervisor:
    """Keeps one process per slot. `run()` returns the exit code once everything has ended."""

    def __init__(
        self, slots: Sequence[Slot], settings: Settings, *, env: Mapping[str, str], announce: str
    ) -> None:
        self._slots, self._settings, self._env, self._announce = list(slots), settings, dict(env), announce
        self._children: list[Child] = []
        self._due: list[tuple[float, Slot]] = []
        self._reports: list[tuple[float, Obituary]] = []
        self._failures: dict[Slot, int] = {}
        self._stops = self._stops_sent = 0
        self._stop_at_s = float("inf")
        self._stop_again_s = 0.0
        self._announced = False
        self._suspects_at_s = 0.0
        self._serves_runs = any(slot.queue == RUNS_QUEUE for slot in slots)
        self._code = 0
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()

    def run(self) -> int:
        """Start the processes and keep them until SIGTERM or SIGINT."""
        self._listen_for_signals()
        for slot in self._slots:
            self._start(slot)
        while self._children or (self._due and not self._stops):
            self._listen()
            self._reap()
            self._send_stops()
            self._kill_silent()
            self._send_reports()
            self._look_for_suspects()
            self._restart_due()
        self._send_reports(last=True)
        signal.set_wakeup_fd(-1)
        return self._code

    # --- signals and pipes --------------------------------------------------------------------------------------

    def _listen_for_signals(self) -> None:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake the selector
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        self._selector.register(self._wake_r, selectors.EVENT_READ)

    def _on_stop(self, *_: object) -> None:
        self._stops += 1

    def _listen(self) -> None:
        for key, _ in self._selector.select(TICK_S):
            with contextlib.suppress(BlockingIOError):
                said = os.read(key.fd, 4096)
                if key.data is not None:
                    self._heard(key.data, said)

    def _heard(self, child: Child, said: bytes) -> None:
        child.hear(said)
        if not said:
            self._forget_pipe(child)
        if child.ready:
            self._announce_once()

    def _announce_once(self) -> None:
        if self._announced:
            return
        ready = {child.slot for child in self._children if child.ready}
        if ready >= set(self._slots):
            self._announced = True
            print(self._announce, file=sys.stderr, flush=True)

    def _forget_pipe(self, child: Child) -> None:
        """Close a pipe once: its number may soon be another pipe's."""
        if child.pulse_fd >= 0:
            self._selector.unregister(child.pulse_fd)
            os.close(child.pulse_fd)
            child.pulse_fd = -1

    # --- processes ----------------------------------------------------------------------------------------------

    def _start(self, slot: Slot) -> None:
        pipes = [child.pulse_fd for child in self._children if child.pulse_fd >= 0]
        try:
            child = start_child(
                slot, self._env, [self._wake_r, self._wake_w, self._selector.fileno(), *pipes]
            )
        except OSError as error:  # no memory or no room for a process: later, perhaps
            self._say(
                f"a process for {slot.queue} could not be started ({error.strerror}); it is tried again."
            )
            self._due.append((time.monotonic() + START_AGAIN_S, slot))
            return
        self._children.append(child)
        self._selector.register(child.pulse_fd, selectors.EVENT_READ, child)

    def _reap(self) -> None:
        for child in [each for each in self._children if each.poll() is not None and each.bury()]:
            self._children.remove(child)
            self._forget_pipe(child)
            code = child.code or 0
            died = code not in (0, GAVE_UP) and not child.killed and not self._stops
            self._reports.append((0.0, Obituary(worker_name(child.boot_id), died and child.ready)))
            if self._stops:
                continue
            if not child.ready and not self._announced and code in (USAGE, UNREACHABLE):
                self._code = code
                self._stops += 1
                continue
            self._plan_restart(child, code)

    def _plan_restart(self, child: Child, code: int) -> None:
        lived_s = time.monotonic() - child.started_s
        count = 0 if lived_s > STABLE_S else self._failures.get(child.slot, 0)
        self._failures[child.slot] = count + 1
        wait_s = min(RESTART_MAX_S, RESTART_MIN_S * 2 ** (count - 1)) if count else 0.0
        self._say(
            f"the process for {child.slot.queue} ended with code {code} after {lived_s:.0f} s; it starts again in "
            f"{wait_s:g} s."
        )
        self._due.append((time.monotonic() + wait_s, child.slot))

    def _restart_due(self) -> None:
        now_s = time.monotonic()
        for entry in [each for each in self._due if each[0] <= now_s and not self._stops]:
            self._due.remove(entry)
            self._start(entry[1])

    def _kill_silent(self) -> None:
        """A process that is silent for half a lease is killed and reaped before anybody takes over its runs."""
        now_s = time.monotonic()
        for child in self._children:
            limit_s = self._settings.lease_s / 2 if child.ready else START_S
            if now_s - child.heard_s > limit_s and not child.killed:
                self._say(f"the process for {child.slot.queue} is silent for {limit_s:g} s; it is killed.")
                child.killed = True
                child.kill_group()

    def _look_for_suspects(self) -> None:
        """Suspects may wait whose own supervisor is gone, or reported them before this one started."""
        if self._stops or not self._serves_runs or time.monotonic() < self._suspects_at_s:
            return
        self._suspects_at_s = time.monotonic() + SUSPECTS_S
        agents: set[str] = set().union(*(child.agents for child in self._children))
        if agents and waiting_suspects(self._settings, sorted(agents)):
            self._want_quarantine()

    def _want_quarantine(self) -> None:
        slot = Slot(QUARANTINE_QUEUE, 1)
        if (
            self._serves_runs
            and all(child.slot != slot for child in self._children)
            and all(due[1] != slot for due in self._due)
        ):
            self._due.append((0.0, slot))

    # --- ends ---------------------------------------------------------------------------------------------------

    def _send_stops(self) -> None:
        """First signal: drain. Second: stop bodies now and let go of the runs. Past the grace: kill."""
        if self._stops_sent < min(self._stops, 2) and time.monotonic() >= self._stop_again_s:
            self._due.clear()
            self._stop_again_s = time.monotonic() + STOP_GAP_S
            if self._stops_sent == 0:
                self._stop_at_s = time.monotonic() + self._settings.grace_s + 1
            for child in self._children:
                child.signal(signal.SIGTERM)
            self._stops_sent += 1
        if time.monotonic() > self._stop_at_s:
            for child in self._children:
                child.kill_group()

    def _send_reports(self, *, last: bool = False) -> None:
        now_s = time.monotonic()
        for entry in [each for each in self._reports if each[0] <= now_s or last]:
            self._reports.remove(entry)
            try:
                _, suspects = report(self._settings, entry[1])
            except Exception as error:  # whatever it is, the other processes go on
                why = str(error) if isinstance(error, MakegoodError) else f"{type(error).__name__}: {error}"
                self._say(f"the end of a process could not be reported: {why}")
                if not last:
                    self._reports.append((time.monotonic() + REPORT_AGAIN_S, entry[1]))
                continue
            if suspects and not self._stops:
                self._want_quarantine()

    def _say(self, text: str) -> None:
        print(f"makegood worker: {text}", file=sys.stderr, flush=True)

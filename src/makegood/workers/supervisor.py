"""`makegood worker`: a small parent that starts the Celery processes, restarts them, and ends them in order."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RESTART_MIN_S = 0.5
RESTART_MAX_S = 30.0
STABLE_S = 60.0
"""A process that lived this long is restarted without delay."""

TICK_S = 0.2
USAGE, UNREACHABLE = 2, 8
"""Exit codes with which a process says that starting it again cannot help."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One process to keep alive: its queue and how many runs it takes at once."""

    queue: str
    concurrency: int


@dataclass(slots=True)
class Child:
    """A started process and what the supervisor knows of it."""

    slot: Slot
    process: subprocess.Popen[bytes]
    ready_fd: int
    started_s: float = field(default_factory=time.monotonic)
    ready: bool = False


class Supervisor:
    """Keeps one process per slot. `run()` returns the exit code once everything has ended."""

    def __init__(self, slots: Sequence[Slot], *, env: Mapping[str, str], grace_s: float, announce: str) -> None:
        self._slots, self._env, self._grace_s, self._announce = list(slots), dict(env), grace_s, announce
        self._children: list[Child] = []
        self._due: list[tuple[float, Slot]] = []
        self._failures: dict[Slot, int] = {}
        self._stops = 0
        self._announced = False
        self._code = 0
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()

    def run(self) -> int:
        """Start the processes and keep them until SIGTERM or SIGINT."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._on_signal)
        os.set_blocking(self._wake_w, False)
        signal.set_wakeup_fd(self._wake_w)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        for slot in self._slots:
            self._start(slot)
        stop_at_s = None
        stops_sent = 0
        while self._children or (self._due and not self._stops):
            self._listen()
            self._reap()
            if self._stops > stops_sent:
                stop_at_s = stop_at_s or time.monotonic() + self._grace_s
                stops_sent = self._send_stop(stops_sent)
            if stop_at_s is not None and time.monotonic() > stop_at_s + 1:
                self._kill_all()
            self._restart_due()
        signal.set_wakeup_fd(-1)
        return self._code

    def _on_signal(self, *_: object) -> None:
        self._stops += 1

    def _send_stop(self, sent: int) -> int:
        """First signal: drain. Second: stop bodies now, write what is known, let go of the runs."""
        self._due.clear()
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM if sent == 0 else signal.SIGUSR1)
        return sent + 1

    def _start(self, slot: Slot) -> None:
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-m", "makegood.workers.process", "--queue", slot.queue]
        command += ["--concurrency", str(slot.concurrency), "--ready-fd", str(write_fd)]
        process = subprocess.Popen(
            command, env=self._env, pass_fds=(write_fd,), start_new_session=True, stdin=subprocess.DEVNULL
        )
        os.close(write_fd)
        child = Child(slot, process, read_fd)
        self._children.append(child)
        self._selector.register(read_fd, selectors.EVENT_READ, child)

    def _listen(self) -> None:
        for key, _ in self._selector.select(TICK_S):
            if key.data is None:
                os.read(self._wake_r, 1024)
                continue
            child: Child = key.data
            said = os.read(child.ready_fd, 64)
            self._forget_pipe(child)
            if said:
                child.ready = True
                self._announce_once()

    def _announce_once(self) -> None:
        ready = {child.slot for child in self._children if child.ready}
        if not self._announced and all(child.ready for child in self._children) and ready == set(self._slots):
            self._announced = True
            print(self._announce, file=sys.stderr, flush=True)

    def _forget_pipe(self, child: Child) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(child.ready_fd)
            os.close(child.ready_fd)

    def _reap(self) -> None:
        for child in [each for each in self._children if each.process.poll() is not None]:
            self._children.remove(child)
            self._forget_pipe(child)
            kill_group(child.process.pid)
            code = child.process.returncode
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
        wait_s = min(RESTART_MAX_S, RESTART_MIN_S * 2**count) if count else 0.0
        print(
            f"makegood worker: the process for {child.slot.queue} ended with code {code} after {lived_s:.0f} s; "
            f"it starts again in {wait_s:g} s.",
            file=sys.stderr,
            flush=True,
        )
        self._due.append((time.monotonic() + wait_s, child.slot))

    def _restart_due(self) -> None:
        now_s = time.monotonic()
        for entry in [each for each in self._due if each[0] <= now_s]:
            self._due.remove(entry)
            self._start(entry[1])

    def _kill_all(self) -> None:
        for child in self._children:
            kill_group(child.process.pid)


def kill_group(pid: int) -> None:
    """Kill a process and everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

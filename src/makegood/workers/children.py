"""Child processes of the supervisor: forked from it, so that a restart needs no imports."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from makegood.tasks.child import die_with_parent

BURY_S = 1.0
"""What a dead process left behind is killed within milliseconds; one that hangs in the kernel is looked at again."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One process to keep alive: its queue, how many runs it takes at once, its number among its like."""

    queue: str
    concurrency: int
    number: int = 0


@dataclass(slots=True)
class Child:
    """A started process and what the supervisor knows of it. `agents`: what it serves, once it has said so."""

    slot: Slot
    pid: int
    boot_id: str
    pulse_fd: int
    started_s: float = field(default_factory=time.monotonic)
    heard_s: float = field(default_factory=time.monotonic)
    ready: bool = False
    agents: set[str] = field(default_factory=set)
    killed: bool = False
    code: int | None = None
    rest: bytes = b""

    def hear(self, said: bytes) -> None:
        """Take in what came through the pipe (`Boot.supervised`)."""
        self.heard_s = time.monotonic()
        *lines, self.rest = (self.rest + said).split(b"\n")
        for line in lines:
            word, _, name = line.partition(b" ")
            if word == b"serves":
                self.agents.add(name.decode())
            self.ready = self.ready or word == b"ready"

    def poll(self) -> int | None:
        """Exit code once the process has ended (negative: the signal), reaped."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill the process and everything it started (tools with `isolation="process"` have groups of their own)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in session_members(self.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def bury(self) -> bool:
        """After its end: kill what it left behind and wait until that is gone; False when it is not gone yet."""
        until_s = time.monotonic() + BURY_S
        while True:
            self.kill_group()
            if not session_members(self.pid):
                return True
            if time.monotonic() > until_s:
                return False
            time.sleep(0.005)


def session_members(session: int) -> list[int]:
    """Processes of a session that have not ended. Only Linux tells; elsewhere the process group is all there is."""
    names = (path.name for path in Path("/proc").glob("[0-9]*"))
    return [int(name) for name in names if _session_of(name) == session]


def _session_of(pid: str) -> int:
    """The session of a process; 0 when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    state, _, _, session = stat.rpartition(")")[2].split()[:4]
    return 0 if state in "ZX" else int(session)


def start_child(slot: Slot, env: Mapping[str, str], inherited_fds: Sequence[int]) -> Child:
    """Fork a process for a slot. `inherited_fds` belong to the supervisor and are closed in the child. Raises OSError."""
    boot_id, parent = secrets.token_hex(4), os.getpid()
    read_fd, write_fd = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(read_fd)
        os.close(write_fd)
        raise
    if pid == 0:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        os._exit(_child_main(slot, env, [*inherited_fds, read_fd], write_fd, boot_id))
    os.close(write_fd)
    os.set_blocking(read_fd, False)
    return Child(slot, pid, boot_id, read_fd)


def _child_main(slot: Slot, env: Mapping[str, str], fds: Sequence[int], pulse_fd: int, boot_id: str) -> int:
    """Everything between fork and exit; no exception leaves it."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        os.environ.update(env)
        from makegood.workers.process import serve

        return serve(slot.queue, slot.concurrency, pulse_fd, boot_id)
    except SystemExit as error:
        if isinstance(error.code, str):
            os.write(2, f"{error.code}\n".encode())
            return 2
        return int(error.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1

"""The process between an owner and its embedded Valkey: it makes sure that the server never outlives its owner.

It is run as a script (`python -I -S embedded_guard.py OWNER_PID [FOLDER…] -- valkey-server …`), as the direct child of the
owner and the direct parent of the server, so it imports nothing but the standard library. It ends in one of three ways:

- the server exits: so does the guard, with the server's code (128 + signal when a signal ended it);
- the guard gets SIGTERM: it passes it on, waits, and kills the server after `STOP_LIMIT_S`;
- the owner is gone, however it went: the same, and then the temporary folders are removed.

A pipe to the owner would not do: children that the owner forks (Celery does) would keep its other end open. A death
signal on the server would not do either: the kernel ties it to the thread that forked. So the guard watches the owner's
process itself, and only the server, child of this single-threaded process, gets a death signal, for the day the guard is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time

STOP_LIMIT_S = 10.0
"""How long a server may take to write its last bytes after SIGTERM before it is killed."""

POLL_MS = 200
"""How often the owner is looked for where the kernel cannot tell us (no pidfd: macOS, old kernels)."""

PR_SET_PDEATHSIG = 1
EXIT_CANNOT_START = 127


def run_server(command: list[str], guard_pid: int) -> None:
    """Become the server. Runs in the forked child, with SIGTERM blocked, and never returns."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == guard_pid:
            os.dup2(2, 1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"cannot execute {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(EXIT_CANNOT_START)


def watch_owner(owner_pid: int) -> int | None:
    """A descriptor that becomes readable when the owner ends; None where only polling can tell."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(owner_pid)
    return None


def reaped(server_pid: int) -> int | None:
    """The server's exit code when it has ended, in the shell's form; None while it runs."""
    pid, status = os.waitpid(server_pid, os.WNOHANG)
    if pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def guard(owner_pid: int, server_pid: int, wakeup_fd: int, stop_asked: list[bool]) -> tuple[int, bool]:
    """Wait for the end of the server, bringing it about if asked to or if the owner is gone.

    Returns (the server's exit code, whether the owner is gone).
    """
    poller = select.poll()
    poller.register(wakeup_fd, select.POLLIN)
    owner_fd = watch_owner(owner_pid)
    if owner_fd is not None:
        poller.register(owner_fd, select.POLLIN)
    kill_at_s: float | None = None
    while (code := reaped(server_pid)) is None:
        owner_gone = os.getppid() != owner_pid
        if kill_at_s is None and (owner_gone or stop_asked):
            if owner_fd is not None:
                poller.unregister(owner_fd)
            os.kill(server_pid, signal.SIGTERM)
            kill_at_s = time.monotonic() + STOP_LIMIT_S
        if kill_at_s is not None and time.monotonic() >= kill_at_s:
            os.kill(server_pid, signal.SIGKILL)
        blind = owner_fd is None or kill_at_s is not None
        for ready_fd, _ in poller.poll(POLL_MS if blind else None):
            if ready_fd == wakeup_fd:
                os.read(wakeup_fd, 4096)
    return code, os.getppid() != owner_pid


def main(arguments: list[str]) -> int:
    """Start the server, report its pid on stdout (one line), and guard it to its end."""
    separator = arguments.index("--")
    owner_pid, *temporary_dirs = arguments[:separator]
    command = arguments[separator + 1 :]
    stop_asked: list[bool] = []
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: stop_asked.append(True))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    guard_pid = os.getpid()
    # Blocked across the fork: a SIGTERM for the server that came before it is the server would be lost in our handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    server_pid = os.fork()
    if server_pid == 0:
        run_server(command, guard_pid)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.write(1, f"{server_pid}\n".encode())
    os.close(1)
    code, owner_gone = guard(int(owner_pid), server_pid, read_fd, stop_asked)
    if owner_gone:
        for folder in temporary_dirs:
            shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

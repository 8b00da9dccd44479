"""One life of the embedded server: the guard and the server as processes, and the wait until the server answers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from makegood.errors import StoreUnreachable
from makegood.workers.embedded_files import last_line, open_log

START_LIMIT_S = 120.0
"""How long the server may take to answer; it loads its data first (an append-only file of 137 MB takes 2 s)."""

STOP_LIMIT_S = 15.0
"""How long the guard may take to end; it kills the server itself after 10 s."""

ASK_AGAIN_S = 0.01
ANSWER_LIMIT_S = 5.0

GUARD_SCRIPT = Path(__file__).with_name("embedded_guard.py")


@dataclass(frozen=True)
class Address:
    """Where the server listens: a unix socket, or a port of 127.0.0.1."""

    socket_path: Path | None = None
    port: int | None = None

    @property
    def url(self) -> str:
        """`unix:///…` or `redis://127.0.0.1:PORT/0`."""
        if self.socket_path is not None:
            return f"unix://{quote(str(self.socket_path))}"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def options(self) -> list[str]:
        """The server's options for listening here and nowhere else."""
        if self.socket_path is not None:
            return ["--port", "0", "--unixsocket", str(self.socket_path), "--unixsocketperm", "700"]
        return ["--bind", "127.0.0.1", "--port", str(self.port)]

    def ask(self, command: str) -> str:
        """Send one command on a connection of its own and return the start of the raw answer. Raises OSError."""
        family = socket.AF_INET if self.socket_path is None else socket.AF_UNIX
        target = ("127.0.0.1", self.port) if self.socket_path is None else str(self.socket_path)
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_LIMIT_S)
            connection.connect(target)
            connection.sendall(f"{command}\r\nQUIT\r\n".encode())
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer.decode(errors="replace")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Whether nobody listens on this port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class ServerProcess:
    """The guard process and, below it, the server. Made by `launch`."""

    def __init__(self, guard: subprocess.Popen[bytes], pid: int) -> None:
        self._guard = guard
        self.pid = pid

    @property
    def alive(self) -> bool:
        """Whether the server runs (the guard ends with it)."""
        return self._guard.poll() is None

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the server's end; its exit code, 128 + signal when a signal ended it. Raises TimeoutError."""
        try:
            return self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(
                f"The embedded server (process {self.pid}) still runs after {timeout_s} s."
            ) from None

    def stop(self) -> None:
        """SIGTERM, wait for the end, SIGKILL after the limit. A server that has ended is fine."""
        self._guard.terminate()
        try:
            self.wait(STOP_LIMIT_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._guard.kill()
            self.wait()


def launch(
    command: list[str], address: Address, log_path: Path, *, lock_fd: int, temporary_dirs: list[Path]
) -> ServerProcess:
    """Start the command under a guard and return once it answers PING at the address.

    lock_fd is inherited by both processes; temporary_dirs are removed by the guard if this process dies first.
    Raises StoreUnreachable with the last line of the log when the server ends or does not answer.
    """
    log_start = log_path.stat().st_size if log_path.exists() else 0
    log_fd = open_log(log_path)
    guard_command = [
        sys.executable,
        "-I",
        "-S",
        str(GUARD_SCRIPT),
        str(os.getpid()),
        *map(str, temporary_dirs),
        "--",
    ]
    try:
        guard = subprocess.Popen(
            [*guard_command, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            cwd=log_path.parent,
            pass_fds=(lock_fd,),
            start_new_session=True,  # Ctrl-C is for the owner, who stops the server last
        )
    finally:
        os.close(log_fd)
    assert guard.stdout is not None
    with guard.stdout as first_line:
        pid = first_line.readline().strip()
    if not pid:
        raise _not_started(f"its guard ended with code {guard.wait()}", log_path, log_start)
    server = ServerProcess(guard, int(pid))
    try:
        problem = _wait_until_ready(server, address)
    except BaseException:
        server.stop()
        raise
    if problem:
        server.stop()
        raise _not_started(problem, log_path, log_start)
    return server


def _not_started(problem: str, log_path: Path, log_start: int) -> StoreUnreachable:
    reason = last_line(log_path, log_start).rstrip(".") or "it wrote nothing to its log"
    return StoreUnreachable(
        f"The embedded server did not start ({problem}): {reason}; its log is {log_path}."
    )


def _wait_until_ready(server: ServerProcess, address: Address) -> str:
    """ "" once the server answers, else why it never will."""
    give_up_at_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up_at_s:
        if not server.alive:
            return f"it ended with code {server.wait()}"
        with contextlib.suppress(OSError):
            if address.ask("PING").startswith("+PONG"):
                if f"process_id:{server.pid}\r\n" in address.ask("INFO server"):
                    return ""
                return f"another server answers at {address.url}"
        with contextlib.suppress(TimeoutError):
            server.wait(ASK_AGAIN_S)
    return f"no answer within {START_LIMIT_S:.0f} s"

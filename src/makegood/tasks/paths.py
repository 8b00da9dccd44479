"""The prior state of a file, link or folder, taken and put back; behind the resource kind `path` (CONTRACT E2).

Content, permissions and targets of links are kept; owner, times and hard links are not. Links are never followed.
"""

from __future__ import annotations

import base64
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from makegood.errors import DeclarationError

MAX_BYTES = 1024 * 1024
"""What one declaration may keep, contents and names together."""

ENTRY_BYTES = 128
"""What an entry costs beside its content and name: so that a folder of very many empty files is too large as well."""

State = dict[str, Any]
"""`{"type": "absent" | "file" | "link" | "folder", …}`, as JSON."""


def checked_path(id: str) -> Path:  # noqa: A002  # the word of the interface
    """The path that an id names. Raises DeclarationError for one that another process could not find."""
    path = Path(id)
    if not path.is_absolute() or "\0" in id:
        raise DeclarationError(
            f"Path {id[:200]!r} is not absolute; give the whole path, since cleanup works in another process."
        )
    if ".." in path.parts:
        raise DeclarationError(
            f"Path {id[:200]!r} goes up with '..'; give the path itself, since what lies before it may become a link."
        )
    if path.parent == path:
        raise DeclarationError(f"Path {id!r} is the root of the file system; declare what is below it.")
    return path


def take(path: Path) -> State:
    """The state of what is at the path now. Raises DeclarationError when it cannot be kept."""
    return _Taking(path).state_of(path)


def put_back(path: Path, prior: State, check: Callable[[], None] = lambda: None) -> None:
    """Bring the path back to a state: what was created goes, what was there returns. Safe to repeat.

    `check` is called right before each change and raises when nothing more may be changed.
    """
    _PuttingBack(check).state(path, prior)


class _Taking:
    """One snapshot, which may not grow beyond its limit."""

    def __init__(self, root: Path) -> None:
        self._root, self._left = root, MAX_BYTES

    def state_of(self, path: Path) -> State:
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return {"type": "absent"}
        if stat.S_ISLNK(found.st_mode):
            return {"type": "link", "target": self._named(str(path.readlink()))}
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            return {"type": "folder", "mode": mode, "entries": self._entries(path)}
        if stat.S_ISREG(found.st_mode):
            return {"type": "file", "mode": mode, "content": self._content(path)}
        raise self._refusal(f"{str(path)!r} is neither a file nor a folder nor a link, and cannot be kept")

    def _entries(self, folder: Path) -> dict[str, State]:
        entries: dict[str, State] = {}
        with os.scandir(folder) as found:
            for entry in found:
                state = self.state_of(folder / entry.name)
                if state["type"] != "absent":  # it went meanwhile
                    entries[self._named(entry.name)] = state
        return entries

    def _content(self, path: Path) -> str:
        with path.open("rb") as file:
            content = file.read(self._left + 1)
        self._take(len(content))
        return base64.b64encode(content).decode()

    def _named(self, name: str) -> str:
        try:
            self._take(ENTRY_BYTES + len(name.encode()))
        except UnicodeEncodeError:
            raise self._refusal(f"it holds the name {name!r}, which is no UTF-8") from None
        return name

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise self._refusal("it holds more than 1 MiB, which is too much to keep")

    def _refusal(self, why: str) -> DeclarationError:
        return DeclarationError(
            f"Path {str(self._root)[:200]!r} cannot be declared: {why}; declare a kind of your own with @resource, which "
            "knows how to bring it back."
        )


class _PuttingBack:
    """One roll-back, which looks before each change whether it still may."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def state(self, path: Path, prior: State) -> None:
        match prior["type"]:
            case "absent":
                self._remove(path)
            case "folder":
                self._folder(path, prior)
            case _:
                self._leaf(path, prior)

    def _folder(self, path: Path, prior: State) -> None:
        if path.is_symlink() or not path.is_dir():
            self._remove(path)
            self._check()
            path.mkdir(parents=True)
        self._check()
        path.chmod(stat.S_IRWXU)
        entries: dict[str, State] = prior["entries"]
        for entry in list(path.iterdir()):
            if entry.name not in entries:
                self._remove(entry)
        for name, state in entries.items():
            self.state(path / name, state)
        self._check()
        path.chmod(prior["mode"])

    def _leaf(self, path: Path, prior: State) -> None:
        """A file or link: made beside its place, then moved there, so that no reader sees half of it."""
        if _is_there(path, prior):
            return
        if path.is_dir() and not path.is_symlink():
            self._remove(path)
        self._check()
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".makegood-{secrets.token_hex(6)}")
        try:
            if prior["type"] == "link":
                beside.symlink_to(prior["target"])
            else:
                _write(beside, base64.b64decode(prior["content"]), prior["mode"])
            self._check()
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    def _remove(self, path: Path) -> None:
        """Remove whatever is there, folders with all that is in them, and nothing that a link points to."""
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        self._check()
        if not stat.S_ISDIR(found.st_mode):
            path.unlink(missing_ok=True)
            return
        path.chmod(stat.S_IRWXU)
        for entry in list(path.iterdir()):
            self._remove(entry)
        self._check()
        path.rmdir()


def _write(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())


def _is_there(path: Path, prior: State) -> bool:
    """Whether the path is in that state already: then its inode stays, with whoever has it open."""
    try:
        if prior["type"] == "link":
            return path.is_symlink() and str(path.readlink()) == prior["target"]
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != prior["mode"]:
            return False
        return path.read_bytes() == base64.b64decode(prior["content"])
    except OSError:
        return False

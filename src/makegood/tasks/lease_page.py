"""Until when a worker's lease is valid, in memory that its child processes share.

A child is not frozen together with its worker: it looks at the lease itself right before it sends (invariants 3, 4).
Monotonic time is the same for all processes of a host.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Callable

SIZE = 8
"""One double at the beginning of a page: it is read and written in one piece, never half."""


class LeasePage:
    """The worker's side. `fd` is passed to a child, which calls `lease_seen`; it is open as long as this object lives."""

    def __init__(self, valid_until_s: float) -> None:
        self.fd = _anonymous_file()
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, SIZE)
        self._cell = memoryview(mmap.mmap(self.fd, SIZE)).cast("d")
        self.renew(valid_until_s)

    def renew(self, valid_until_s: float) -> None:
        """The worker may act for its runs until this monotonic time; every child sees it at once."""
        self._cell[0] = valid_until_s

    def valid(self) -> bool:
        """Whether it may now."""
        return time.monotonic() < self._cell[0]


def lease_seen(fd: int) -> Callable[[], bool]:
    """In a child: whether its worker's lease is valid now. Closes the descriptor."""
    cell = memoryview(mmap.mmap(fd, SIZE, access=mmap.ACCESS_READ)).cast("d")
    os.close(fd)
    return lambda: time.monotonic() < cell[0]


def _anonymous_file() -> int:
    """A file without a name: in memory on Linux, an unlinked one elsewhere."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("makegood-lease")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

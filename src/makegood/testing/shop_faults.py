"""Faults of the test shop: small frozen values, and who meets which."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Stall:
    """The effect is done, then nothing is ever sent."""


@dataclass(frozen=True, slots=True)
class Close:
    """The effect is done, then the connection is closed without an answer."""


@dataclass(frozen=True, slots=True)
class Fail:
    """A status and no effect."""

    status: int


@dataclass(frozen=True, slots=True)
class Slow:
    """The effect is done, its answer comes this many seconds later."""

    delay_s: float


Fault: TypeAlias = Stall | Close | Fail | Slow


@dataclass(slots=True)
class _Planned:
    path: str
    fault: Fault
    left: int | None


class Faults:
    """Planned faults; the oldest that fits a request is the one it meets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []

    def add(self, path: str, fault: Fault, times: int | None) -> None:
        """Plan a fault for the next `times` requests whose path begins with `path`; None = all of them."""
        with self._lock:
            self._planned.append(_Planned(path, fault, times))

    def remove(self, path: str) -> None:
        """Forget the faults whose path begins with `path`."""
        with self._lock:
            self._planned = [each for each in self._planned if not each.path.startswith(path)]

    def take(self, path: str) -> Fault | None:
        """The fault that a request for `path` meets, used up once."""
        with self._lock:
            for each in self._planned:
                if not path.startswith(each.path):
                    continue
                if each.left is not None:
                    each.left -= 1
                    if each.left <= 0:
                        self._planned.remove(each)
                return each.fault
        return None

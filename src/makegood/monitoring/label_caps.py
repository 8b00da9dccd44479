"""How many values a label may have: a series for each of them lives in every Prometheus that scrapes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType

OTHER = "other"
"""The value that stands for all above the cap."""

OPEN_CAP = 200
"""Values of agent, tool, model and name: far above what one deployment declares, and still few enough that the
histograms of all of them (200 tools × 4 results × 14 samples) stay below what one scrape can carry."""

CLOSED_CAP = 50
"""Values of every other label. They come from closed lists; the cap holds if a newer worker counts under others."""

CAPS: Mapping[str, int] = MappingProxyType(dict.fromkeys(("agent", "tool", "model", "name"), OPEN_CAP))


class LabelCaps:
    """Who has a series of its own: whoever came first, as long as the process lives.

    A value is never moved into `other` or out of it, so that no sum over values goes down. Safe to use from several
    threads.
    """

    def __init__(self, caps: Mapping[str, int] = CAPS, default: int = CLOSED_CAP) -> None:
        self._caps, self._default = caps, default
        self._seen: dict[str, dict[str, str]] = {}
        self._own: dict[str, int] = {}
        self._lock = threading.Lock()

    def admit(self, label: str, value: str) -> str:
        """The value to show: itself, or `other`."""
        seen = self._seen.setdefault(label, {})
        shown = seen.get(value)
        return self._enter(label, value) if shown is None else shown

    def admit_all(self, label: str, values: Iterable[str]) -> None:
        """Give these a place, in this order, before whatever comes later."""
        for value in values:
            self.admit(label, value)

    def _enter(self, label: str, value: str) -> str:
        with self._lock:
            seen = self._seen[label]
            if value not in seen:
                own = self._own.get(label, 0)
                fits = own < self._caps.get(label, self._default)
                self._own[label] = own + fits
                seen[value] = value if fits else OTHER
            return seen[value]

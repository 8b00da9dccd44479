"""One read at a time, shared by all who ask for it meanwhile; nobody waits longer than its limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from makegood.errors import MakegoodError

T = TypeVar("T")

log = logging.getLogger("makegood.monitor")


class _Job(Generic[T]):
    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.ended = threading.Event()
        self.value: T | None = None


class SharedRead(Generic[T]):
    """Runs `read` in a thread of its own.

    A read that hangs (a frozen server, a name that does not resolve) holds that one thread and nothing else: until it
    comes to an end no other is begun, and whoever asks after its limit is told at once that there is nothing.

    Args:
        what: what is read, for the log: a phrase such as `The state store`.
        read: never returns None.
        limit_s: how long to wait for a read, counted from its beginning.
        fresh_s: a value of that age is good enough; 0: read each time.
        keep_s: up to that age the last value is handed out while a new one is being read, and when a read fails.
    """

    def __init__(
        self, what: str, read: Callable[[], T], *, limit_s: float, fresh_s: float = 0.0, keep_s: float = 0.0
    ) -> None:
        self._what, self._read = what, read
        self._limit_s, self._fresh_s, self._keep_s = limit_s, fresh_s, keep_s
        self._lock = threading.Lock()
        self._job: _Job[T] | None = None
        self._last: tuple[float, T] | None = None
        self.why = ""
        """What the last read failed with, one sentence; empty after one that did not."""

    def begin(self) -> None:
        """Start reading, unless a read is under way or the last value is fresh."""
        with self._lock:
            under_way = self._job is not None and not self._job.ended.is_set()
            if under_way or self._kept(self._fresh_s) is not None:
                return
            self._job = _Job()
            name = f"makegood-read-{self._what.replace(' ', '-')}"
            threading.Thread(target=self._work, args=(self._job,), name=name, daemon=True).start()

    def result(self) -> T | None:
        """The value, or None when there is none within the limit."""
        kept = self._kept(self._keep_s)
        job = self._job
        if kept is not None or job is None:
            return kept
        job.ended.wait(max(0.0, job.began_s + self._limit_s - time.monotonic()))
        with self._lock:
            if job.ended.is_set():
                return job.value
            self._tell(f"{self._what} has not answered within {self._limit_s:g} s; is it running?")
            return None

    def get(self) -> T | None:
        """Begin, and wait for the result."""
        self.begin()
        return self.result()

    def _kept(self, age_s: float) -> T | None:
        """The last value if it is younger than that."""
        last = self._last
        return last[1] if last is not None and time.monotonic() - last[0] < age_s else None

    def _work(self, job: _Job[T]) -> None:
        why = ""
        try:
            job.value = self._read()
        except Exception as error:  # whatever stands behind the URL: a scrape tells of it and goes on
            why = self._sentence(error)
        with self._lock:
            if job.value is not None:
                self._last = (time.monotonic(), job.value)
            self._tell(why)
            job.ended.set()

    def _sentence(self, error: Exception) -> str:
        first = next(iter(str(error).splitlines()), "")[:300] or type(error).__name__
        if isinstance(error, MakegoodError):
            return first
        return f"{self._what} could not be read ({type(error).__name__}: {first.rstrip('.')})."

    def _tell(self, why: str) -> None:
        """Log a change, not each repetition."""
        if bool(why) != bool(self.why):
            if why:
                log.warning("%s", why)
            else:
                log.warning("%s answers again", self._what)
        self.why = why

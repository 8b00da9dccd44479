"""The bounded pool in which sync tools run (CONTRACT A6).

A thread past its limit cannot be stopped. It is replaced, up to twice the pool; from then on the pool is
exhausted and its worker takes nothing more, drains and recycles itself.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from makegood.spawn import Ending, first_of

T = TypeVar("T")
Job = tuple[Callable[[], Any], Ending]


class SyncPool:
    """Threads for sync tools; every method but the threads' own loop runs on the event loop's thread."""

    def __init__(self, size: int, *, on_exhausted: Callable[[], None] = lambda: None) -> None:
        self.size = size
        self._on_exhausted = on_exhausted
        self._loop = asyncio.get_running_loop()
        self._idle: list[queue.SimpleQueue[Job | None]] = []
        self._busy = 0
        self._stuck: set[Ending] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def stuck(self) -> int:
        """Threads past their limit that have not returned."""
        return len(self._stuck)

    @property
    def exhausted(self) -> bool:
        """Whether as many threads are stuck as the pool has: nothing can be replaced any more."""
        return len(self._stuck) >= self.size

    def try_reserve(self) -> bool:
        """Take a slot if one is free now."""
        if self._waiters or self._busy >= self._capacity():
            return False
        self._busy += 1
        return True

    async def reserve(self) -> None:
        """Wait for a slot, first come first served; cancelling the wait gives up the place."""
        if self.try_reserve():
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def release(self) -> None:
        """Give back a reserved slot that was not used."""
        self._busy -= 1
        self._wake()

    def run(self, work: Callable[[], Any]) -> Ending:
        """Run work in the slot that was reserved; returns what will say how it ended."""
        ending = Ending()
        if self._idle:
            inbox = self._idle.pop()
        else:
            inbox = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), daemon=True, name="makegood-tool").start()
        inbox.put((work, ending))
        return ending

    async def call(self, work: Callable[[], T]) -> T:
        """Run work of an async body in a slot; over when this returns or raises, however often it is cancelled (E6)."""
        await self.reserve()
        ending = self.run(work)
        cancelled: asyncio.CancelledError | None = None
        while ending.outcome is None:
            try:
                await first_of(ending.follow, timeout_s=None)
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    self.mark_stuck(ending)
                cancelled = error
        if cancelled is not None:
            raise cancelled
        succeeded, value = ending.outcome
        if not succeeded:
            raise value
        return value  # type: ignore[no-any-return]

    def mark_stuck(self, ending: Ending) -> None:
        """Say that a job is past its limit and does not stop: its thread is replaced."""
        if ending.done() or ending in self._stuck:
            return
        self._stuck.add(ending)
        self._wake()
        if self.exhausted:
            self._on_exhausted()

    def close(self) -> None:
        """Let idle threads end; busy ones end with their job, stuck ones with the process."""
        self._closed = True
        for inbox in self._idle:
            inbox.put(None)
        self._idle.clear()

    def _capacity(self) -> int:
        return self.size + min(len(self._stuck), self.size)

    def _wake(self) -> None:
        while self._waiters and self._busy < self._capacity():
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._busy += 1
                waiter.set_result(None)

    def _serve(self, inbox: queue.SimpleQueue[Job | None]) -> None:
        while (job := inbox.get()) is not None:
            work, ending = job
            try:
                answer = (True, work())
            except BaseException as error:  # MemoryError and SystemExit end the run, not the worker
                answer = (False, error)
            try:
                self._loop.call_soon_threadsafe(self._finished, inbox, ending, answer)
            except RuntimeError:  # the loop is closed: the worker is gone
                return
            del work, ending, job, answer

    def _finished(
        self, inbox: queue.SimpleQueue[Job | None], ending: Ending, answer: tuple[bool, Any]
    ) -> None:
        self._busy -= 1
        self._stuck.discard(ending)
        if self._closed or self._busy >= self._capacity():
            inbox.put(None)
        else:
            self._idle.append(inbox)
        if not ending.done():
            ending.set(answer)
        self._wake()

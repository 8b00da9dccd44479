"""How a sync tool reaches its residue: from its thread, while the event loop does the work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from makegood.tasks.residue import LAST_WORDS_S, Residue, checked_name
from makegood.tasks.rollbacks import look_of

T = TypeVar("T")


class SyncResidue:
    """The residue of a sync tool, used in its thread while the loop does the work; `abort()` takes waits back."""

    def __init__(self, residue: Residue, loop: asyncio.AbstractEventLoop) -> None:
        self.residue, self._loop = residue, loop
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._aborted = False

    def declare(self, kind: str, id: str, prior: object | None = None) -> None:  # noqa: A002
        """See Residue. What may block does so in this thread, which its call has anyway."""
        residue = self.residue
        residue.check(kind, id, prior)
        if self.call(residue.has_to_look(kind, id)):
            look, is_async = look_of(kind, id, residue.store.url)
            prior = self.call(look()) if is_async else look()
        self.call(residue.record(kind, id, prior))

    def lock(self, name: str) -> SyncHold:
        """`with … as token`: the lock is held inside."""
        return SyncHold(self, checked_name(name))

    @property
    def touched(self) -> bool:
        """See Residue."""
        return self.residue.touched

    @touched.setter
    def touched(self, value: bool) -> None:
        self.residue.touched = value

    def abort(self) -> None:
        """Cancel what is waited for and refuse what would follow. Called on the loop's thread."""
        self._aborted = True
        for waiting in list(self._open):
            waiting.cancel()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on the loop."""
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._open.add(waiting)
        try:
            if self._aborted:  # between the last look and the registration
                waiting.cancel()
            return waiting.result()
        except concurrent.futures.CancelledError:
            raise TimeoutError(
                "The call was told to stop, or its limit is reached; nothing new may begin."
            ) from None
        finally:
            self._open.discard(waiting)

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that also a stopped call must do."""
        try:
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is gone: so is the worker
            work.close()
            return
        with contextlib.suppress(concurrent.futures.CancelledError, TimeoutError):
            waiting.result(timeout=LAST_WORDS_S)


class SyncHold:
    """A lock in a sync tool."""

    def __init__(self, door: SyncResidue, name: str) -> None:
        self._door, self._name, self._holder = door, name, ""

    def __enter__(self) -> int:
        """See Hold."""
        residue = self._door.residue
        holder = residue.new_holder()
        try:
            token = self._door.call(residue.take(self._name, holder))
        except TimeoutError:  # it may have been taken in the moment in which the call was stopped
            self._door.finish(residue.given_back(self._name, holder, quiet=True))
            raise
        self._holder = holder  # only now: one object may be entered by several, and one of them is inside
        return token

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        residue = self._door.residue
        self._door.finish(residue.given_back(self._name, self._holder, quiet=error is not None))

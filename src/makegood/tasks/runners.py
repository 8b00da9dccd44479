"""The three ways in which a tool body runs: as a task of the loop, in a thread, in a process of its own."""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from makegood.spawn import Ending, spawn
from makegood.tasks.cancel import CancelView
from makegood.tasks.context import CallLogger, DeadlineView, ToolContext, log
from makegood.tasks.http import AttemptHttp, Bridge, CallFacts, async_client, sync_client
from makegood.tasks.residue import Residue
from makegood.tasks.residue_threads import SyncResidue
from makegood.tasks.threads import SyncPool


class Work(Protocol):
    """What a body runs: a tool, or a probe, a compensation, a roll-back of cleanup."""

    @property
    def name(self) -> str:
        """For logs and tasks."""

    @property
    def fn(self) -> Callable[..., Any]:
        """Called with the context and the arguments."""


ResidueOf = Callable[[Callable[[], bool]], Residue]
"""Makes the residue of a body from what says whether it was told to stop."""


async def awaited(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of an async function, which a plain wrapper may stand in front of."""
    value = fn(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def returned(name: str, value: Any) -> Any:
    """What a sync function returned; an awaitable is none: nobody would await it, and nothing would have been done."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            f"{name} returned an awaitable; declare it with async def, or let its decorator do so."
        )
    return value


class TaskRunning:
    """Work as a task of the loop whose end is a value; `stop()` cancels it, again each time it is called."""

    def __init__(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.ending = Ending()
        self._task = spawn(self._settle(work), name=name)

    def stop(self) -> None:
        """Cancel the task."""
        if self._task.cancel():
            self._task.add_done_callback(self._never_began)

    async def _settle(self, work: Coroutine[Any, Any, Any]) -> None:
        """What the work raised is a value, so that SystemExit ends a run and not the loop."""
        try:
            outcome = True, await work
        except BaseException as error:
            if isinstance(error, GeneratorExit) and self._is_closed():
                raise
            outcome = False, error
        self._ended(outcome)

    def _is_closed(self) -> bool:
        """Whether this goes on only to be collected: its loop is gone, or runs something else."""
        try:
            return asyncio.current_task() is not self._task
        except RuntimeError:
            return True

    def _ended(self, outcome: tuple[bool, Any]) -> None:
        self.ending.set(outcome)

    def _never_began(self, _: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first turn runs nothing, not even `_settle`."""
        if not self.ending.done():
            self._ended((False, asyncio.CancelledError()))


class TaskBody(TaskRunning):
    """An async tool."""

    def __init__(
        self,
        tool: Work,
        facts: CallFacts,
        where: Mapping[str, Any],
        pool: AttemptHttp,
        kwargs: Mapping[str, Any],
        residue_of: ResidueOf | None = None,
    ) -> None:
        self._view = CancelView()
        self._log = CallLogger(log, dict(where))
        live = until_stopped(facts, self._view)
        residue = None if residue_of is None else residue_of(self._view.is_set)
        context = make_context(live, where, self._view, self._log, lambda: async_client(pool, live), residue)
        super().__init__(awaited(tool.fn, context, **kwargs), f"tool-{tool.name}")

    def stop(self) -> None:
        """Tell the tool and cancel its task."""
        self._view.set()
        super().stop()

    def _ended(self, outcome: tuple[bool, Any]) -> None:
        self._log.over = True
        super()._ended(outcome)


class ThreadRunning:
    """Sync work in a reserved slot of the pool; it cannot be stopped, so from the second request on it counts as stuck."""

    def __init__(self, threads: SyncPool, work: Callable[[], Any], name: str) -> None:
        self._threads = threads
        self._stops = 0
        self.ending = threads.run(lambda: returned(name, work()))

    def stop(self) -> None:
        """Note that the work should have ended."""
        self._stops += 1
        if self._stops > 1:
            self._threads.mark_stuck(self.ending)


@dataclass(frozen=True, slots=True)
class _Part:
    """Async work of a sync body."""

    name: str
    fn: Callable[..., Any]


class ThreadBody(ThreadRunning):
    """A sync tool."""

    def __init__(
        self,
        tool: Work,
        facts: CallFacts,
        where: Mapping[str, Any],
        pool: AttemptHttp,
        kwargs: Mapping[str, Any],
        threads: SyncPool,
        residue_of: ResidueOf | None = None,
    ) -> None:
        self._view = CancelView()
        self._log = CallLogger(log, dict(where))
        self._loop = asyncio.get_running_loop()
        live = until_stopped(facts, self._view)
        self._bridge = Bridge(pool, live, self._loop)
        self._residue = None if residue_of is None else SyncResidue(residue_of(self._view.is_set), self._loop)
        context = make_context(
            live, where, self._view, self._log, lambda: sync_client(self._bridge), self._residue
        )
        context._on_loop = lambda fn: self._on_loop(
            lambda: TaskBody(_Part(tool.name, fn), facts, where, pool, {})
        )
        self._part: TaskBody | None = None
        super().__init__(threads, lambda: tool.fn(context, **kwargs), tool.name)
        self.ending.follow(self._ended)

    def stop(self) -> None:
        """Tell the tool and cut its requests and waits; from the second time on its thread counts as stuck."""
        self._view.set()
        self._bridge.abort()
        if self._residue is not None:
            self._residue.abort()
        if self._part is not None:
            self._part.stop()
        super().stop()

    def _on_loop(self, start: Callable[[], TaskBody]) -> Any:
        """From the thread: the result of async work, which is over when this returns, also when it was stopped."""
        ended: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def begin() -> None:
            if self._view.is_set():
                ended.put((False, TimeoutError("It was told to stop; nothing more begins.")))
                return
            part = self._part = start()
            part.ending.follow(lambda: ended.put(part.ending.outcome or (True, None)))

        self._loop.call_soon_threadsafe(begin)
        succeeded, value = ended.get()
        if succeeded:
            return value
        raise value

    def _ended(self) -> None:
        self._log.over = True


def until_stopped(facts: CallFacts, view: CancelView) -> CallFacts:
    """The facts of a call that sends nothing more once its tool was told to stop."""
    return replace(facts, may_send=lambda: facts.may_send() and not view.is_set())


def make_context(
    facts: CallFacts,
    where: Mapping[str, Any],
    view: CancelView,
    call_log: CallLogger,
    open_http: Callable[[], Any],
    residue: Residue | SyncResidue | None = None,
) -> ToolContext:
    """The context of one try."""
    return ToolContext(
        run_id=facts.run_id,
        attempt=where["attempt"],
        step=where["step"],
        call_key=where["call_key"],
        idempotency_key=facts.idempotency_key,
        deadline=DeadlineView(facts.deadline, facts.monotonic),
        cancelled=view,
        log=call_log,
        _open_http=open_http,
        _residue=residue,
        _may_act=facts.may_send,
    )

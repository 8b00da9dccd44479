"""An agent's hooks: `snapshot(ctx, input)`, which declares resources (CONTRACT E2), `before_step(ctx)` and
`before_end(ctx, output)`, which may stop the run (F1, F2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from makegood.errors import InvalidInput, StaleFence, StoreUnreachable
from makegood.tasks.cancel import Cancel
from makegood.tasks.checks import is_async
from makegood.tasks.context import CallLogger, DeadlineView, log
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.bodies import residue_of
from makegood.tasks.engine.signals import EndRun
from makegood.tasks.residue import Owner, Residue
from makegood.tasks.residue_threads import SyncResidue
from makegood.tasks.rollbacks import SNAPSHOT
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.runners import ThreadRunning, awaited


@dataclass(frozen=True, slots=True)
class HookContext:
    """What a hook sees. `cancel(reason)` stops the run; `cancelled` tells whether something else did."""

    run_id: str
    attempt: int
    step: int
    deadline: DeadlineView
    log: CallLogger
    _cancel: Cancel
    _loop: asyncio.AbstractEventLoop

    def cancel(self, reason: str = "") -> None:
        """End the run as cancelled, for a reason of the hook's own. Works in any thread."""
        self._loop.call_soon_threadsafe(self._cancel.ask, "hook", reason)

    @property
    def cancelled(self) -> Cancel:
        """The attempt's cancel holder: `.asked`, `await .wait()`."""
        return self._cancel


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """What `snapshot` sees. `declare(kind, id, prior=None)` is awaited in an async hook, and called in a sync one."""

    run_id: str
    attempt: int
    deadline: DeadlineView
    log: CallLogger
    cancelled: Cancel
    _residue: Residue | SyncResidue

    def declare(self, kind: str, id: str, prior: object | None = None) -> Any:  # noqa: A002  # the interface's name
        """Say what the attempt may create or change; see ToolContext.declare."""
        return self._residue.declare(kind, id, prior)


async def run_snapshot(attempt: Attempt, deadline: Deadline) -> None:
    """Run the agent's `snapshot` hook, if it has one, before the first step of an attempt."""
    hook = attempt.agent.snapshot
    if hook is None:
        return
    try:
        value = attempt.agent.typed_input(attempt.input)
    except InvalidInput as error:
        raise EndRun("INVALID_REQUEST", str(error)) from error
    owner = Owner(attempt.run_id, attempt.claim.fence, attempt.number, 0, SNAPSHOT, 0)
    residue = residue_of(attempt, owner, deadline, lambda: _is_over(attempt, deadline))
    on_loop = is_async(hook)
    context = SnapshotContext(
        attempt.run_id,
        attempt.number,
        DeadlineView(deadline),
        _logger(attempt, SNAPSHOT),
        attempt.cancel,
        residue if on_loop else SyncResidue(residue, asyncio.get_running_loop()),
    )
    await _performed(attempt, hook, (context, value), deadline, SNAPSHOT)


async def run_hook(
    attempt: Attempt, hook: Callable[..., Any] | None, step: int, deadline: Deadline, name: str, *args: Any
) -> None:
    """Run a hook within the step's limit; what it raises is a bug and ends the run."""
    if hook is None:
        return
    context = HookContext(
        attempt.run_id,
        attempt.number,
        step,
        DeadlineView(deadline),
        _logger(attempt, name),
        attempt.cancel,
        asyncio.get_running_loop(),
    )
    await _performed(attempt, hook, (context, *args), deadline, name)


def _is_over(attempt: Attempt, deadline: Deadline) -> bool:
    return attempt.cancel.asked or deadline.expired(time.monotonic())


def _logger(attempt: Attempt, name: str) -> CallLogger:
    return CallLogger(log, {"run_id": attempt.run_id, "attempt": attempt.number, "call_key": name})


async def _performed(
    attempt: Attempt, hook: Callable[..., Any], args: Sequence[Any], deadline: Deadline, name: str
) -> None:
    try:
        await _called(attempt, hook, args, deadline, name)
    except (StaleFence, StoreUnreachable):
        raise
    except Exception as error:
        attempt.env.report_bug(error, {"agent": attempt.agent.name, "run_id": attempt.run_id, "hook": name})
        raise EndRun("BUG", f"{name} failed: {type(error).__name__}: {error}"[:500]) from error
    await asyncio.sleep(0)  # a cancel that the hook asked for is heard now
    attempt.check(deadline, name)


async def _called(
    attempt: Attempt, hook: Callable[..., Any], args: Sequence[Any], deadline: Deadline, name: str
) -> None:
    """An async hook on the loop; a sync one in a thread of the pool, so that it may block."""
    if is_async(hook):
        await attempt.value_of(awaited(hook, *args), deadline, name)
        return
    threads = attempt.env.threads
    await attempt.value_of(threads.reserve(), deadline, f"a free thread for {name}")
    running = ThreadRunning(threads, lambda: hook(*args), name)
    attempt.value_in(await attempt.supervised(running, deadline, name), name)

"""An agent's hooks: `before_step(ctx)` and `before_end(ctx, output)`; both may stop the run (CONTRACT F1, F2)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from makegood.tasks.cancel import Cancel
from makegood.tasks.context import CallLogger, DeadlineView, log
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.signals import EndRun
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.runners import ThreadRunning


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


async def run_hook(
    attempt: Attempt, hook: Callable[..., Any] | None, step: int, deadline: Deadline, name: str, *args: Any
) -> None:
    """Run a hook within the step's limit; what it raises is a bug and ends the run."""
    if hook is None:
        return
    where = {"run_id": attempt.run_id, "attempt": attempt.number, "call_key": name}
    context = HookContext(
        attempt.run_id,
        attempt.number,
        step,
        DeadlineView(deadline),
        CallLogger(log, where),
        attempt.cancel,
        asyncio.get_running_loop(),
    )
    try:
        await _called(attempt, hook, (context, *args), deadline, name)
    except Exception as error:
        attempt.env.report_bug(error, {"agent": attempt.agent.name, "run_id": attempt.run_id, "hook": name})
        raise EndRun("BUG", f"{name} failed: {type(error).__name__}: {error}"[:500]) from error
    await asyncio.sleep(0)  # a cancel that the hook asked for is heard now
    attempt.check(deadline, name)


async def _called(
    attempt: Attempt, hook: Callable[..., Any], args: Sequence[Any], deadline: Deadline, name: str
) -> None:
    """An async hook on the loop; a sync one in a thread of the pool, so that it may block."""
    if inspect.iscoroutinefunction(hook):
        await attempt.value_of(hook(*args), deadline, name)
        return
    threads = attempt.env.threads
    await attempt.value_of(threads.reserve(), deadline, f"a free thread for {name}")
    running = ThreadRunning(threads, lambda: hook(*args))
    attempt.value_in(await attempt.supervised(running, deadline, name), name)

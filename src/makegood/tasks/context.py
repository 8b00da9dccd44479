"""What a tool sees of its run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from makegood.errors import DeclarationError, NotBuilt
from makegood.tasks.cancel import CancelView
from makegood.tasks.rules.deadline import Deadline

log = logging.getLogger("makegood.tool")


class DeadlineView:
    """`ctx.deadline`: how long the call may still take, by whichever limit comes first (CONTRACT A2)."""

    def __init__(self, deadline: Deadline, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._deadline, self._monotonic = deadline, monotonic

    def remaining(self) -> float:
        """Seconds that are left, never negative."""
        return self._deadline.left_s(self._monotonic())

    @property
    def at(self) -> datetime:
        """The moment in wall time (UTC) at which the limit is reached, as it looks now; `datetime.max` without a limit."""
        try:
            return datetime.now(UTC) + timedelta(seconds=self.remaining())
        except OverflowError:  # there is no limit
            return datetime.max.replace(tzinfo=UTC)


class CallLogger(logging.LoggerAdapter[logging.Logger]):
    """`ctx.log`: every line names run, attempt and call; nothing is logged once the call is over (CONTRACT E6)."""

    over = False

    def isEnabledFor(self, level: int) -> bool:
        return not self.over and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra = self.extra or {}
        where = f"run={extra.get('run_id')} attempt={extra.get('attempt')} call={extra.get('call_key')}"
        return f"{msg} [{where}]", kwargs


@dataclass(slots=True)
class ToolContext:
    """Handed to a tool as its first argument; one per try of a call.

    Attributes:
        run_id, attempt, step, call_key: where the call stands.
        idempotency_key: the same in every attempt and try of this call (CONTRACT D3).
        deadline: `.remaining()` in seconds, `.at` as a datetime.
        cancelled: set when the tool should stop: `is_set()`; `await wait()` in an async tool.
        log: a logger whose lines name run and call.
        http: `httpx.AsyncClient`, in a sync tool `httpx.Client`; sends `Idempotency-Key`, `X-Run-Id` and
            `X-Deadline-Ms`, and times out with the call.

    In a sync tool `declare` and `lock` are used without `await` and `async`.
    """

    run_id: str
    attempt: int
    step: int
    call_key: str
    idempotency_key: str
    deadline: DeadlineView
    cancelled: CancelView
    log: CallLogger
    _open_http: Callable[[], Any]
    _residue: Any = None
    _may_act: Callable[[], bool] = lambda: True
    _on_loop: Callable[[Callable[[ToolContext], Any]], Any] | None = None
    _http: Any = field(default=None, init=False)

    @property
    def http(self) -> Any:
        """The HTTP client of this call."""
        if self._http is None:
            self._http = self._open_http()
        if self._residue is not None:
            self._residue.touched = True
        return self._http

    def declare(self, kind: str, id: str, prior: object | None = None) -> Any:  # noqa: A002  # the interface's name
        """Say what is about to be created or changed, so that cleanup can roll it back (CONTRACT E2); durable on return.

        Kinds: `redis_key` (a key, or `redis://host/0#key`) and `path` (absolute) keep the prior state themselves;
        `callback` (`module:function`) and those of `@resource` get `prior`, JSON of at most 256 KiB.

        Raises:
            DeclarationError: the kind is unknown, or the prior state cannot be kept.
            StaleFence: the run is someone else's by now; let it pass.
        """
        return self._need_residue("declare").declare(kind, id, prior)

    def lock(self, name: str) -> Any:
        """`async with ctx.lock(name) as token`: held by no other run inside; cleanup releases it (CONTRACT E7).

        The token grows each time anybody takes the lock: hand it to a downstream that refuses smaller ones.

        Raises:
            LockTimeout: it was not free within the call's limit.
            StaleFence: the run is someone else's by now; let it pass.
        """
        return self._need_residue("lock").lock(name)

    def _check_may_act(self) -> None:
        """Raise when nothing more may be changed."""
        if not self._may_act():
            raise TimeoutError("It was told to stop, or its worker's lease is over; nothing more is changed.")

    def _call_async(self, fn: Callable[[ToolContext], Any]) -> Any:
        """From the thread of a sync body: the result of an async function, which gets an async tool's context."""
        assert self._on_loop is not None
        return self._on_loop(fn)

    def _need_residue(self, name: str) -> Any:
        if self._residue is None:
            raise DeclarationError(
                f"ctx.{name} is for the body of a tool; what undoes or probes it goes without."
            )
        return self._residue

    def progress(self, share: float, message: str = "") -> NoReturn:
        """Tell listeners how far the call is."""
        raise _not_built("ctx.progress")

    def run_agent(self, agent: object, input: object) -> NoReturn:  # noqa: A002  # the interface's name
        """Run another agent inside this call (CONTRACT G3)."""
        raise _not_built("ctx.run_agent")


def _not_built(name: str) -> NotBuilt:
    return NotBuilt(f"{name} is not built yet; leave it out.")

"""What a worker process lends to every attempt, handed on explicitly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from makegood.store.async_store import AsyncStore
from makegood.tasks.agent import Agent
from makegood.tasks.breakers import BreakerBoard
from makegood.tasks.cancel import Cancel
from makegood.tasks.latencies import LatencyBoard
from makegood.tasks.lease_page import LeasePage
from makegood.tasks.limits import LimitBoard
from makegood.tasks.model.adapter import ModelAdapter
from makegood.tasks.spans import Spans
from makegood.tasks.threads import SyncPool

BugReport = Callable[[BaseException, Mapping[str, Any]], None]

AlertKind = Literal["review", "stuck"]
"""A run waits for a person; work that was told to stop does not end."""

Alert = Callable[[AlertKind, str, Mapping[str, Any]], None]


@dataclass(slots=True)
class Env:
    """One per event loop.

    Attributes:
        publish, publish_cleanup: send the wake-up message of a run that was released, or has to be cleaned up.
        report_bug: hands an unexpected exception and its tags to whoever watches (Sentry).
        alert: says what somebody has to look at: its kind, one sentence and its tags.
        recycle: asks for this process to be replaced, since something in it cannot be stopped; says why.
        draining: set when the worker takes no new work; attempts stop at their next step boundary.
        abandon: asked just before the process ends; nobody waits for hung work any more.
        lease: what `may_act` goes by, for child processes.
        quarantine: this process executes one suspect at a time, each until the outcome of one step is recorded.
        may_act: whether the worker's lease still covers its runs; asked before an effect begins (invariant 3).
        secret_fields: names whose values are masked before the model or an agent's code sees them.
        spans: who is told of attempts, model requests and calls while they run; None: nobody.
    """

    store: AsyncStore
    adapter: ModelAdapter
    threads: SyncPool
    breakers: BreakerBoard
    latencies: LatencyBoard
    limits: LimitBoard
    agents: Mapping[str, Agent]
    worker: str
    publish: Callable[[str], Awaitable[None]]
    publish_cleanup: Callable[[str], Awaitable[None]]
    report_bug: BugReport
    alert: Alert
    recycle: Callable[[str], None]
    lease: LeasePage
    quarantine: bool = False
    may_act: Callable[[], bool] = lambda: True
    secret_fields: tuple[str, ...] = ()
    spans: Spans | None = None
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    abandon: Cancel = field(default_factory=Cancel)
    rnd: Callable[[], float] = random.random

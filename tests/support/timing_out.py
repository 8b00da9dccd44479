"""Runs that end timed_out, however fast the machine is, and what their agent's `verify` said of them.

`timing_out` makes agents for them; `clock` shortens a limit at a moment of the test's choice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from makegood import Agent, Result, ToolContext
from makegood.tasks.client import Run
from makegood.tasks.limits import LimitBoard
from makegood.tasks.tool import Tool
from makegood.testing import Behaviour, RequestRecord, Stall
from makegood.workers.runtime import Runtime
from support.engine import LONG_S, MakeProvider, Workers, calls, limits, make_agent

STEP_S = 0.3
"""L2 of the step in which the model says nothing. Those before it may take as long as they like."""


@dataclass
class Clock:
    """Shortens limits of the runs of a test at a moment of its choice, however fast the machine comes there."""

    stalls: bool = False
    total_is_over: bool = False

    def step_s(self, declared_s: float) -> float:
        """L2 of the step that begins now."""
        stalls, self.stalls = self.stalls, False
        return STEP_S if stalls else declared_s

    def total_s(self, declared_s: float) -> float:
        """The total as it holds from now on."""
        return 0.001 if self.total_is_over else declared_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The one of this test."""
    made = Clock()
    monkeypatch.setattr(LimitBoard, "step_s", lambda board, agent: made.step_s(agent.timeouts.step))
    monkeypatch.setattr(LimitBoard, "total_s", lambda board, agent: made.total_s(agent.total_s()))
    return made


MakeTimingOut = Callable[..., Agent]


@pytest.fixture
def timing_out(model: MakeProvider, clock: Clock) -> MakeTimingOut:
    """Makes an agent whose model asks for its tools, one a step, and then says nothing: STEP_TIMEOUT in every attempt."""

    def make(verify: Any, *tools: Tool[Any, Any], **options: Any) -> Agent:
        def play(request: RequestRecord) -> Behaviour:
            done = len(request.results)
            clock.stalls |= done == len(tools) - 1
            return calls((tools[done].name, {})) if done < len(tools) else Stall()

        clock.stalls = not tools
        given: dict[str, Any] = {"timeouts": limits(), "max_attempts": 1, "on_failure": "rollback"} | options
        return make_agent(model(play), *tools, verify=verify, **given)

    return make


class Gate:
    """A `verify` that is asked, waits to be let go, and says False."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.asked: list[str] = []

    def verify(self, ctx: ToolContext, run: Result) -> bool:
        """Of an agent."""
        self.asked.append(run.run_id)
        self.began.set()
        self.go.wait(LONG_S)
        return False

    def enqueue(self, worker: Workers, agent: Agent, **settings: Any) -> tuple[Run, Runtime]:
        """A run of that agent, and the cleaner that asks of it."""
        worker.start(agent)
        cleaner = worker.start_cleaner(**settings)
        run = worker.enqueue(agent)
        assert self.began.wait(LONG_S)
        return run, cleaner


def counted(worker: Workers) -> dict[str, int]:
    """Verdicts by word."""
    name = "timeout_verdicts_total|a|"
    return {key.removeprefix(name): n for key, n in worker.counters().items() if key.startswith(name)}


def verdict_of(run: Run) -> str | None:
    """The verdict in the run's record."""
    known = run.info()["timeout_verdict"]
    assert known is None or known["by"] == "verify"
    return None if known is None else str(known["verdict"])

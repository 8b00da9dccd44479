"""How a call ended: its row, what is counted and said of it, and what it means for the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from makegood.store.ops import steps
from makegood.store.ops.args import NewEvent, Sample
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.signals import EndRun
from makegood.tasks.journal import Entry
from makegood.tasks.latencies import CallResult
from makegood.tasks.rules import counting
from makegood.tasks.rules.breaker import Rejected
from makegood.tasks.rules.deadline import Level
from makegood.tasks.rules.decisions import Stop
from makegood.tasks.rules.rows import Row, RowError

TryResult = CallResult | Literal["breaker_open", "none"]
"""How the last try of a call ended; `none`: this worker made none."""


@dataclass(slots=True)
class Outcome:
    """How a call ended: its final row, what to count, what it means for the run.

    `left_open`: the worker lets go of the run; its next worker takes the call up where the journal says it is.
    `result`: how the last try ended; `counts`: the counters that go with its event.
    """

    entry: Entry
    samples: list[Sample] = field(default_factory=list)
    end_run: EndRun | None = None
    level: Level | None = None
    left_open: bool = False
    result: TryResult = "none"
    counts: counting.Counters = ()

    def to_store(self, body: bytes) -> steps.RowOutcome:
        """As the store records it."""
        row = self.entry.row
        return steps.RowOutcome(self.entry.row_id, row.status, body, row.tries, row.effect != "read")

    def event(self) -> NewEvent:
        """tool.ended, with what the numbers need."""
        row = self.entry.row
        data = {
            "tool": row.tool,
            "status": row.status,
            "code": None if row.error is None else row.error.code,
            "tries": row.tries,
            "result": self.result,
            "level": self.level,
        }
        return NewEvent("tool.ended", data, row.step, row.call_key, self.counts)


def exhausted_text(row: Row, stop: Stop, error: RowError) -> str:
    """Why a call that may not be repeated ends the run, in one sentence."""
    if stop.reason == "unknown_outcome":
        return f"{row.tool} may have had its effect ({error.code}) and cannot be repeated safely."
    if stop.reason == "does_not_fit":
        return (
            f"{row.tool} failed ({error.code}); another try needs {stop.needed_s:.1f} s and the {stop.level} has"
            f" {stop.left_s:.1f} s left."
        )
    times = "once" if row.tries == 1 else f"{row.tries or 'too many'} times"
    return f"{row.tool} failed {times}; the last error: {error.code}: {error.message}"


def breaker_text(name: str, rejected: Rejected, attempt: Attempt) -> str:
    """BREAKER_OPEN with a time, as the model is told."""
    if rejected.until_ms is None:
        return f"The breaker {name} is held open by an operator; the call was not made. Do without it."
    wait_s = max(0.0, (rejected.until_ms - attempt.env.breakers.now_ms()) / 1000)
    return f"The breaker {name} is open for {wait_s:.0f} more seconds; the call was not made. Do without it or finish."

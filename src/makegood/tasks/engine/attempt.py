"""One attempt of a run: what it knows, its limits, and how it writes to the store."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import orjson

from makegood.errors import MakegoodError, StaleFence
from makegood.spawn import Ending, first_of
from makegood.store.ops import steps
from makegood.store.ops.args import NewEvent, Sample
from makegood.store.ops.blobs import spill
from makegood.store.ops.runs import Claim
from makegood.tasks.agent import Agent
from makegood.tasks.body import BodyResult, Cut, OnHang, Raised, Returned, Running, supervise
from makegood.tasks.cancel import Cancel
from makegood.tasks.engine.env import Env
from makegood.tasks.engine.signals import Cancelled, EndRun, HandOver, LimitReached, Signal
from makegood.tasks.history import Decision
from makegood.tasks.http import AttemptHttp
from makegood.tasks.journal import Entry
from makegood.tasks.residue import HeldLock
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.decisions import Left
from makegood.tasks.rules.repeated import Repeats
from makegood.tasks.rules.rows import Row
from makegood.tasks.runners import TaskRunning
from makegood.tasks.spans import NO_SPAN, SafeSpan


class Fenced(TypedDict):
    """What every fenced operation carries."""

    run_id: str
    fence: str
    op: str


class Sends(NamedTuple):
    """What the open step has used up of its sends: retries, and switches to a fallback model (CONTRACT C4)."""

    retries: int = 0
    model: int = 0

    def stored(self) -> str:
        """As the record keeps it while the run waits."""
        return f"{self.retries}:{self.model}"

    @classmethod
    def read(cls, stored: str) -> Sends:
        """The reverse of `stored`; nothing stored is nothing used."""
        retries, _, model = stored.partition(":")
        return cls(int(retries or 0), int(model or 0))


@dataclass(slots=True)
class Attempt:
    """State of one attempt in one worker. Only the engine's modules touch it.

    Attributes:
        entries: journal rows by row id, of all attempts.
        decisions: stored decisions of this attempt, in order.
        positions: the same by number, as a coroutine agent looks them up.
        claimed, asked: what `match_step` needs to know of this attempt.
        bugs: tools that have raised a bug in this attempt; the second one ends the run.
        sends: what the open step has used up, also before it was parked.
        pending: replies that are not awaited yet (outcomes, the end of the last step).
        written: rows that the store has acknowledged as begun, each with the server's time (ms) of its first start.
        locks: those that its calls hold or are about to take, by holder.
        span: what it tells of itself; left_as: the state and code with which it was left, once that is recorded.
        l2_used_s: what the open step used before this claim; step_began_s: since when it is charged again.
        step_s, run_s, total_s: the limits as they hold for the step, the attempt, the run; L3 and total are counted from
            `run_from_s` and `total_from_s`, and `run_moved` is told when that makes another moment of them.
    """

    env: Env
    agent: Agent
    claim: Claim
    number: int
    run: Deadline
    total_at_s: float
    input: Any
    entries: dict[str, Entry] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    positions: dict[int, Decision] = field(default_factory=dict)
    cancel: Cancel = field(default_factory=Cancel)
    http: AttemptHttp = field(default_factory=AttemptHttp)
    claimed: frozenset[str] = frozenset()
    asked: frozenset[tuple[str, str]] = frozenset()
    repeats: Repeats = field(default_factory=Repeats)
    bugs: set[str] = field(default_factory=set)
    pending: list[asyncio.Future[steps.Ack]] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)
    locks: dict[str, HeldLock] = field(default_factory=dict)
    facts: str = ""
    ended_step: int = 0
    sends: Sends = field(default_factory=Sends)
    l2_used_s: float = 0.0
    step_began_s: float | None = None
    step_s: float = math.inf
    run_s: float = math.inf
    total_s: float = math.inf
    run_from_s: float = 0.0
    total_from_s: float = 0.0
    run_moved: Ending = field(default_factory=Ending)
    stopping: bool = False
    on_stopping: asyncio.Event = field(default_factory=asyncio.Event)
    span: SafeSpan = NO_SPAN
    left_as: tuple[str, str] | None = None
    began_s: float = field(default_factory=time.monotonic)
    _ops: Any = field(default_factory=itertools.count)
    _nonce: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.claim.run_id

    @property
    def rows(self) -> list[Row]:
        """Journal rows of all attempts."""
        return [entry.row for entry in self.entries.values()]

    def op(self) -> str:
        """A fresh operation id: a repeat of the same operation is answered, not done again."""
        return f"{self._nonce}-{next(self._ops)}"

    def fresh(self) -> Fenced:
        """Keyword arguments that every fenced operation takes."""
        return Fenced(run_id=self.run_id, fence=self.claim.fence, op=self.op())

    def take_events(self) -> list[NewEvent]:
        """Events that travel with the next operation."""
        events, self.events = self.events, []
        return events

    # --- limits -------------------------------------------------------------------------------------------------

    def left(self, step: Deadline) -> Left:
        """What is left of step, attempt and total now."""
        now_s = time.monotonic()
        total_s = None if math.isinf(self.total_at_s) else max(0.0, self.total_at_s - now_s)
        # A step that its attempt limits has no limit of its own: what is short is then named by its own level.
        step_s = step.left_s(now_s) if step.level == "step" else math.inf
        return Left(step_s, self.run.left_s(now_s), total_s)

    def step_deadline(self) -> Deadline:
        """The limit of a step that begins or goes on now."""
        now_s = self.step_began_s = time.monotonic()
        self.step_s = self.env.limits.step_s(self.agent)
        return self.run.child(max(0.0, self.step_s - self.l2_used_s), now_s, "step")

    def renew_limits(self) -> None:
        """L3 and total as they are set now; a step that has begun keeps what it began with (CONTRACT A7)."""
        self.run_s, self.total_s = self.env.limits.run_s(self.agent), self.env.limits.total_s(self.agent)
        self.total_at_s = self.total_from_s + self.total_s
        run = Deadline(self.total_at_s, "total").min(Deadline(self.run_from_s + self.run_s, "run"))
        if run != self.run:
            self.run, moved = run, self.run_moved
            self.run_moved = Ending()
            moved.set((True, None))

    def l2_spent_s(self) -> float:
        """What the open step has used of L2, over all claims; 0 between two steps."""
        since_s = 0.0 if self.step_began_s is None else time.monotonic() - self.step_began_s
        return self.l2_used_s + since_s

    def check(self, deadline: Deadline, where: str) -> None:
        """Raise when the attempt must stop: cancel first, then the limit (CONTRACT F7)."""
        self.check_cancel()
        if deadline.expired(time.monotonic()) and deadline.level != "call":
            raise LimitReached(deadline.level, where)

    @property
    def hands_over(self) -> bool:
        """Whether the attempt stops at this step boundary: its worker drains, or a suspect has proved itself."""
        proved = self.env.quarantine and self.ended_step > int(self.claim.record.get("ended_step", 0))
        return self.env.draining.is_set() or proved

    def check_cancel(self) -> None:
        """Raise when the attempt was asked to stop."""
        if self.cancel.asked:
            raise HandOver() if self.cancel.cause == "disposed" else Cancelled()

    async def bounded(self, work: Coroutine[Any, Any, Any], deadline: Deadline, name: str) -> BodyResult:
        """Run engine or agent work under a limit; it is over when this returns."""
        return await self.supervised(TaskRunning(work, name), deadline, name)

    async def supervised(self, running: Running, deadline: Deadline, name: str) -> BodyResult:
        """The same for work that was started already."""
        return await supervise(
            running,
            deadline=deadline,
            cancel=self.cancel,
            abandon=self.env.abandon,
            on_hang=self.hang_reporter(None, name),
        )

    async def value_of(self, work: Coroutine[Any, Any, Any], deadline: Deadline, name: str) -> Any:
        """The result of bounded work; raises what it raised, or the signal of what cut it."""
        return self.value_in(await self.bounded(work, deadline, name), name)

    def value_in(self, result: BodyResult, name: str) -> Any:
        """The value of a result; raises what the work raised, or the signal of what cut it."""
        if isinstance(result, Returned):
            return result.value
        if isinstance(result, Raised):
            if isinstance(result.error, Exception | Signal):
                raise result.error
            # SystemExit and the like, or a cancel of its own: it ends the run, never the worker.
            raise EndRun("BUG", f"{name} ended with {type(result.error).__name__}: {result.error}"[:500])
        raise self.signal_of(result, name)

    def signal_of(self, cut: Cut, where: str) -> BaseException:
        """The signal that a cut stands for."""
        if cut.cause is not None:
            return HandOver() if cut.cause == "disposed" else Cancelled()
        return LimitReached(cut.level or "run", where)

    async def value_within_run(self, work: Coroutine[Any, Any, Any], name: str) -> Any:
        """The result of work that may take as long as the attempt, whose limit may be moved meanwhile."""
        running = TaskRunning(work, name)
        while True:
            moved, left_s = self.run_moved, self.run.left_s(time.monotonic())
            timeout_s = None if math.isinf(left_s) else left_s
            await first_of(running.ending.follow, self.cancel.follow, moved.follow, timeout_s=timeout_s)
            if running.ending.done() or self.cancel.asked or not moved.done():
                return self.value_in(await self.supervised(running, self.run, name), name)

    async def sleep(self, delay_s: float, deadline: Deadline, where: str) -> None:
        """Wait; ends at once on cancel (CONTRACT C3)."""
        await self.value_of(asyncio.sleep(delay_s), deadline, where)

    # --- writes -------------------------------------------------------------------------------------------------

    def hang_reporter(self, call_key: str | None, name: str) -> OnHang:
        """Shows the run as stopping, with the call it hangs in and for how long (CONTRACT F8)."""

        async def report(hung_s: float) -> None:
            activity = {"activity": "hanging", "call": name, "call_key": call_key, "for_s": round(hung_s, 1)}
            first, self.stopping = not self.stopping, True
            events = [NewEvent("run.stopping", activity, call_key=call_key)] if first else []
            op = steps.note_activity(
                **self.fresh(), activity=orjson.dumps(activity), stopping=True, new_events=events
            )
            self.heard(await self.env.store.do(op))
            self.on_stopping.set()
            if first:
                tags = {"agent": self.agent.name, "run_id": self.run_id, "code": "STOPPING", "tool": name}
                self.env.alert("stuck", f"{name} does not stop", tags)

        return report

    async def note(
        self,
        activity: dict[str, Any] | None,
        events: Sequence[NewEvent],
        samples: Sequence[Sample] = (),
        pause: steps.Pause | None = None,
    ) -> None:
        """Show an activity (None clears it) and append events, together with those that wait."""
        op = steps.note_activity(
            **self.fresh(),
            activity=b"" if activity is None else orjson.dumps(activity),
            sends=self.sends.stored(),
            pause=pause,
            latencies=samples,
            new_events=[*self.take_events(), *events],
        )
        self.heard(await self.env.store.do(op))

    async def spilled(self, body: bytes) -> tuple[bytes, list[str]]:
        """What to store for a body, after its large parts went ahead."""
        stored, digests, ahead = spill(self.run_id, body)
        if ahead:
            await self.env.store.do_all(ahead)
        return stored, digests

    async def drain_pending(self) -> None:
        """Await every outstanding reply; the first error is raised (a stale fence before others)."""
        waiting, self.pending = self.pending, []
        errors: list[MakegoodError] = []
        for reply in waiting:
            try:
                self.heard(await reply)
            except MakegoodError as error:
                errors.append(error)
        if errors:
            raise next((error for error in errors if isinstance(error, StaleFence)), errors[0])

    def heard(self, ack: steps.Ack) -> None:
        """Take note of a cancel that a reply brought along."""
        if ack.cancel is not None:
            self.cancel.ask("user")

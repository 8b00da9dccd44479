"""One tool call: admission, tries, outcome. Everything about a call that is not pure stands here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from makegood.errors import MakegoodError, StaleFence
from makegood.store.ops import steps
from makegood.store.ops.args import NewEvent, Sample
from makegood.tasks.body import Cut, Raised, Returned, supervise
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.bodies import classify, is_fatal, needs_slot, start_body
from makegood.tasks.engine.outcome import Outcome, TryResult, breaker_text, exhausted_text
from makegood.tasks.engine.plan import ToRun
from makegood.tasks.engine.response import Unusable, usable
from makegood.tasks.engine.signals import EndRun
from makegood.tasks.engine.traces import call_span, end_call
from makegood.tasks.journal import Entry
from makegood.tasks.latencies import CallResult, sample
from makegood.tasks.rules import counting
from makegood.tasks.rules.attempts import try_cost_s
from makegood.tasks.rules.breaker import Rejected
from makegood.tasks.rules.deadline import Deadline, Level
from makegood.tasks.rules.decisions import Retry, Stop
from makegood.tasks.rules.failures import ToolFailure, status_after
from makegood.tasks.rules.rows import Row, RowError, Status
from makegood.tasks.rules.tool_retry import decide_tool_retry, may_repeat
from makegood.tasks.spans import SafeSpan

LEASE_POLL_S = 0.05

LIMITS = {"step": "step's", "run": "attempt's", "total": "run's total"}

GATEWAY = frozenset({"HTTP_401", "HTTP_403", "HTTP_407", "HTTP_429"})
"""Refusals that come from in front of the downstream: after a try of unknown outcome they prove nothing."""


@dataclass(slots=True)
class Calling:
    """A call under way.

    `maybe`: some try may have had its effect. `slot`: a thread is reserved and not in use yet. `planned`: the row
    does not say yet that the call started. `owner`: the try whose end the breaker has not heard yet. `limit_s`: L1 of the
    try that is under way.
    """

    attempt: Attempt
    run: ToRun
    step: Deadline
    maybe: bool
    slot: bool = False
    planned: bool = False
    owner: str = ""
    tries: int = 0
    limit_s: float = 0.0
    last: TryResult = "none"
    samples: list[Sample] = field(default_factory=list)
    first_s: float = field(default_factory=time.monotonic)

    @property
    def row(self) -> Row:
        return self.run.row

    @property
    def all_tries(self) -> int:
        """Tries of the row, also those before this worker."""
        return self.run.tries_before + self.tries

    async def perform(self) -> Outcome:
        """Run the call to its outcome; never raises for what the tool does, but for StaleFence."""
        try:
            while True:
                if self.attempt.cancel.asked and self.tries == 0:
                    return await self._not_entered(None)
                done = await self._admit() or await self._try()
                if done is not None:
                    return done
        finally:
            if self.slot:
                self.attempt.env.threads.release()
            if self.owner:
                with contextlib.suppress(MakegoodError):
                    await self._report("neutral")

    async def _admit(self) -> Outcome | None:
        """A breaker's leave, a slot for a sync tool and a valid lease; the outcome when there is none."""
        self.owner = self.attempt.op()
        name = self.run.tool.breaker
        answer = await self.attempt.env.breakers.admit(name, self.owner, self._limit_now_s())
        if isinstance(answer, Rejected):
            self.owner = ""
            return self._rejected(answer)
        if answer.probe:
            self.attempt.events.append(
                NewEvent("breaker.half_open", {"name": name}, self.row.step, self.row.call_key)
            )
        if needs_slot(self.run) and not self.slot:
            result = await self.attempt.bounded(
                self.attempt.env.threads.reserve(), self.step, "a free thread"
            )
            if isinstance(result, Cut):
                return await self._not_entered(result.level)
            self.slot = True
        cut = await self._wait_for_lease()
        if cut is not None:
            return await self._not_entered(cut.level)
        if self.planned:
            await self._say_started()
        return None

    async def _not_entered(self, level: Level | None) -> Outcome:
        """The body was not entered (CONTRACT F3): no effect, unless an earlier try may have had one."""
        if self._is_let_go and (self.planned or self._may_be_taken_up):
            if not self.planned:  # its row says started, and its body was not entered
                await self.attempt.note(None, [], pause=steps.Pause(self.run.row_id, True))
            return self._left_open()
        if self.maybe:
            message = "An earlier try may have had its effect; this one was not made."
            return self._end("unknown", RowError("TOOL_OUTCOME_UNKNOWN", message), level=level)
        error = RowError("ABORTED_BEFORE_DISPATCH", "The call had not started; it had no effect.")
        return self._end("aborted_before_dispatch", error, level=level)

    async def _say_started(self) -> None:
        event = NewEvent("tool.started", {"tool": self.row.tool}, self.row.step, self.row.call_key)
        op = steps.start_calls(
            **self.attempt.fresh(), rows=[(self.run.row_id, self.row.effect != "read")], new_events=[event]
        )
        ack = await self.attempt.env.store.do(op)
        self.attempt.heard(ack)
        self.attempt.written[self.run.row_id] = ack.now_ms
        self.planned = False

    async def _try(self) -> Outcome | None:
        """One try; None when another one follows."""
        self.tries += 1
        with call_span(self.attempt, self.row, self.all_tries) as span:
            return await self._one_try(span)

    async def _one_try(self, span: SafeSpan) -> Outcome | None:
        self.limit_s = self._limit_now_s()
        deadline = self.step.child(self.limit_s, time.monotonic(), "call")
        began_s = time.monotonic()
        hang = self.attempt.hang_reporter(self.row.call_key, self.row.tool)
        body = start_body(self.attempt, self.run, deadline, repeat=self.maybe)
        self.slot = False  # the pool has it back when the thread ends
        result = await supervise(
            body,
            deadline=deadline,
            cancel=self.attempt.cancel,
            abandon=self.attempt.env.abandon,
            on_hang=hang,
        )
        taken_s = time.monotonic() - began_s
        if isinstance(result, Raised) and isinstance(result.error, StaleFence):
            raise result.error  # what the body was about to leave behind was refused: the run is someone else's
        if isinstance(result, Returned):
            await self._report("success")
            outcome = self._returned(result.value, taken_s)
            end_call(span, outcome.entry.row)
            return outcome
        if isinstance(result, Cut) and result.cause is not None:
            span.end("ABORTED")
            await self._report("neutral")
            if self._is_let_go and self._may_be_taken_up:
                return self._left_open()
            self._tried("aborted", taken_s)
            message = (
                "The run was stopped while the call was running; whether it had its effect is not known."
            )
            return self._end(self._maybe_status(), RowError("ABORTED", message), level=None)
        failure, level = self._failure_of(result, deadline)
        span.end(failure.code)
        cut = level in ("step", "run", "total")  # before its own limit fired: it would have taken longer
        result_of: CallResult = "timeout" if failure.code == "TOOL_TIMEOUT" else "error"
        self._tried(result_of, taken_s, at_least_s=self.limit_s if cut else 0.0)
        await self._report("failure" if failure.kind == "infrastructure" else "neutral")
        return await self._failed(failure, level, result)

    def _tried(self, result: CallResult, taken_s: float, at_least_s: float = 0.0) -> None:
        """A try is over; its duration travels with the event that says so."""
        self.last = result
        self.samples.append(sample(f"tool:{self.row.tool}", taken_s, result, at_least_s=at_least_s))

    async def _wait_for_lease(self) -> Cut | None:
        """A worker that was frozen or cut off begins no effect before its lease is renewed (invariant 3)."""
        while not self.attempt.env.may_act():
            result = await self.attempt.bounded(asyncio.sleep(LEASE_POLL_S), self.step, "the lease")
            if isinstance(result, Cut):
                return result
        return None

    @property
    def _is_let_go(self) -> bool:
        """Whether this worker gives the run away, so that the next one goes on with its open calls."""
        return self.attempt.cancel.cause == "disposed"

    @property
    def _may_be_taken_up(self) -> bool:
        """Whether the next worker may send the call again under its key (CONTRACT C8)."""
        return may_repeat(self.run.tool.effect, self._key_age_s, self._key_ttl_s, nothing_left=False)

    def _left_open(self) -> Outcome:
        return Outcome(Entry(self.row), self.samples, left_open=True)

    @property
    def _key_age_s(self) -> float:
        return self.run.key_age_s + time.monotonic() - self.first_s

    @property
    def _key_ttl_s(self) -> float:
        return float("inf") if self.run.tool.key_ttl is None else self.run.tool.key_ttl

    def _failure_of(self, result: Cut | Raised, deadline: Deadline) -> tuple[ToolFailure, Level | None]:
        now_s = time.monotonic()
        if isinstance(result, Raised):
            failure = classify(result.error, repeat=self.maybe)
            timed_out = failure.code in ("TIMEOUT", "TIMEOUT_CONNECT") and deadline.left_s(now_s) <= 0.05
            if not timed_out:
                return failure, None
        level = deadline.level if isinstance(result, Raised) else result.level
        message = f"{self.row.tool} did not end within its limit ({self.limit_s:g} s, call)."
        if level != "call":
            message = f"{self.row.tool} did not end before the {LIMITS[level or 'run']} limit fired."
        return ToolFailure("infrastructure", "TOOL_TIMEOUT", message), level

    async def _failed(
        self, failure: ToolFailure, level: Level | None, result: Cut | Raised
    ) -> Outcome | None:
        status = self._status(failure)
        error = RowError(failure.code, failure.message)
        if isinstance(result, Raised) and failure.kind == "bug":
            return self._bug(status, error, result.error)
        if level in ("step", "run", "total") or self.attempt.stopping:
            return self._end(status, error, level=level)
        decision = self._decide(failure)
        if isinstance(decision, Retry):
            return await self._back_off(decision, failure, status, error, level)
        if decision.reason == "not_retryable":
            return self._end(status, error, level=level)
        if decision.reason == "does_not_fit":
            self.attempt.events.append(self._skipped(decision, failure))
        why = exhausted_text(replace(self.row, tries=self.tries), decision, error)
        return self._end(status, error, level=level, end_run=EndRun("TOOL_RETRIES", why))

    async def _back_off(
        self, decision: Retry, failure: ToolFailure, status: Status, error: RowError, level: Level | None
    ) -> Outcome | None:
        self.maybe = self.maybe or status == "unknown"
        data = {
            "tool": self.row.tool,
            "retry": self.tries,
            "delay_s": round(decision.delay_s, 3),
            "cause": failure.code,
        }
        told = {**data, "message": failure.message, "result": self.last, "level": level}
        counts = (
            counting.retried("tool", failure.code),
            *counting.call_limit(self.attempt.agent.name, level),
        )
        event = NewEvent("tool.retry", told, self.row.step, self.row.call_key, counts)
        samples, self.samples, self.last = self.samples, [], "none"
        pause = steps.Pause(self.run.row_id, True)
        await self.attempt.note({"activity": "backing_off", **data}, [event], samples, pause)
        waited = await self.attempt.bounded(asyncio.sleep(decision.delay_s), self.step, "tool backoff")
        if isinstance(waited, Cut):
            if self._is_let_go and self._may_be_taken_up:
                return self._left_open()
            return self._end(status, error, level=waited.level)
        await self.attempt.note(None, [], pause=steps.Pause(self.run.row_id, False))
        return None

    def _decide(self, failure: ToolFailure) -> Retry | Stop:
        tool, attempt = self.run.tool, self.attempt
        seen = attempt.env.latencies.get(f"tool:{tool.name}")
        return decide_tool_retry(
            failure.kind,
            self.tries - 1,
            attempt.agent.tool_retry_policy(tool),
            attempt.left(self.step),
            try_cost_s(seen.p99_s, seen.samples, self._limit_now_s()),
            attempt.env.rnd(),
            effect=tool.effect,
            key_age_s=self._key_age_s,
            key_ttl_s=self._key_ttl_s,
            nothing_left=failure.nothing_left and not self.maybe,
        )

    # --- outcomes -----------------------------------------------------------------------------------------------

    def _returned(self, value: Any, taken_s: float) -> Outcome:
        try:
            response, whole = usable(value, self.attempt.env.secret_fields)
        except Unusable as error:
            self._tried("error", taken_s)
            return self._bug(self._maybe_status(), RowError("BUG", str(error)), error)
        self._tried("ok", taken_s)
        row = replace(self.row, status="succeeded", response=response, error=None, tries=self.all_tries)
        return Outcome(Entry(row, whole), self.samples, result="ok")

    def _bug(self, status: Status, error: RowError, raised: BaseException) -> Outcome:
        """Told to the model once; the second bug of the tool, or one that no tool may raise, ends the run."""
        tags = {"agent": self.attempt.agent.name, "tool": self.row.tool, "run_id": self.attempt.run_id}
        self.attempt.env.report_bug(raised, {**tags, "code": error.code})
        again = self.row.tool in self.attempt.bugs or is_fatal(raised)
        self.attempt.bugs.add(self.row.tool)
        told = RowError(error.code, f"The tool has a bug and failed: {error.message}")
        end_run = EndRun("BUG", f"{self.row.tool} failed with a bug: {error.message}") if again else None
        return self._end(status, told, end_run=end_run)

    def _rejected(self, rejected: Rejected) -> Outcome:
        name = self.run.tool.breaker
        data = {"name": name, "until_ms": rejected.until_ms}
        counts = counting.rejected(name, self.row.tool)
        event = NewEvent("breaker.rejected", data, self.row.step, self.row.call_key, counts)
        self.attempt.events.append(event)
        self.last = "breaker_open"
        if self.tries == 0:
            status: Status = "unknown" if self.maybe else "aborted_before_dispatch"
            return self._end(status, RowError("BREAKER_OPEN", breaker_text(name, rejected, self.attempt)))
        data = {"tool": self.row.tool, "reason": "breaker", "until_ms": rejected.until_ms}
        counts = counting.skipped("breaker")
        event = NewEvent("tool.retry_skipped", data, self.row.step, self.row.call_key, counts)
        self.attempt.events.append(event)
        error = RowError("BREAKER_OPEN", breaker_text(name, rejected, self.attempt))
        status = "unknown" if self.maybe and self.row.effect != "read" else "failed"
        return self._end(status, error, end_run=EndRun("TOOL_RETRIES", f"{self.row.tool}: {error.message}"))

    def _status(self, failure: ToolFailure) -> Status:
        if self.maybe and self.row.effect != "read" and failure.code in GATEWAY:
            return "unknown"
        return status_after(failure, self.row.effect)

    def _maybe_status(self) -> Status:
        return "failed" if self.row.effect == "read" else "unknown"

    def _end(
        self, status: Status, error: RowError, *, level: Level | None = None, end_run: EndRun | None = None
    ) -> Outcome:
        row = replace(self.row, status=status, error=error, tries=self.all_tries)
        counts = counting.call_limit(self.attempt.agent.name, level) if self.last == "timeout" else ()
        return Outcome(Entry(row), self.samples, end_run, level, result=self.last, counts=counts)

    def _limit_now_s(self) -> float:
        """L1 of a try that begins now."""
        return self.attempt.env.limits.call_s(self.attempt.agent, self.run.tool)

    async def _report(self, outcome: Literal["failure", "success", "neutral"]) -> None:
        name, owner, self.owner = self.run.tool.breaker, self.owner, ""
        changed = await self.attempt.env.breakers.report(name, self.attempt.agent.breaker, owner, outcome)
        if changed is not None:
            kind = "breaker.closed" if changed == "closed" else "breaker.opened"
            self.attempt.events.append(NewEvent(kind, {"name": name}, self.row.step, self.row.call_key))

    def _skipped(self, stop: Stop, failure: ToolFailure) -> NewEvent:
        data = {
            "tool": self.row.tool,
            "reason": "deadline",
            "level": stop.level,
            "needed_s": stop.needed_s,
            "left_s": stop.left_s,
            "cause": failure.code,
        }
        counts = counting.skipped("deadline")
        return NewEvent("tool.retry_skipped", data, self.row.step, self.row.call_key, counts)

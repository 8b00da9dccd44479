"""Agents written as a coroutine: `ctx.call` and `ctx.model` are journaled like the steps of a declared agent.

A continued attempt runs the code again from its beginning; each `ctx` call is answered from the store by its
position, and a position that does not match ends the run with NONDETERMINISTIC (invariant 15).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from makegood.errors import ToolError
from makegood.spawn import spawn
from makegood.tasks.cancel import Cancel
from makegood.tasks.context import CallLogger, DeadlineView, log
from makegood.tasks.engine import step as steps
from makegood.tasks.engine.ask import ask
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.engine.hooks import run_snapshot
from makegood.tasks.engine.loop import assistant_message, check_size, text_of
from makegood.tasks.engine.plan import Place, StepPlan, plan_wanted, wanted
from makegood.tasks.engine.resume import resume_step
from makegood.tasks.engine.signals import EndRun, HandOver, Signal
from makegood.tasks.history import DecidedCall, Decision
from makegood.tasks.model.types import ModelReply, ToolCallPart, UsageChunk
from makegood.tasks.rules.callkeys import digest
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.rows import Row
from makegood.tasks.tool import Tool


class AgentContext:
    """`ctx` of a coroutine agent.

    Attributes:
        run_id, attempt: which run, which attempt.
        deadline: what is left of the attempt; `cancelled`: the attempt's cancel holder; `log`: a logger.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._position = 0
        self._step = 0
        self._step_deadline = attempt.step_deadline()
        self._open: set[asyncio.Task[Any]] = set()
        self._signal: BaseException | None = None
        self.run_id, self.attempt = attempt.run_id, attempt.number
        self.log = CallLogger(log, {"run_id": attempt.run_id, "attempt": attempt.number, "call_key": "agent"})

    @property
    def deadline(self) -> DeadlineView:
        """What is left of the attempt."""
        return DeadlineView(self._attempt.run)

    @property
    def step(self) -> int:
        """Number of the step: it grows with each `ctx.model`."""
        return max(1, self._step)

    @property
    def cancelled(self) -> Cancel:
        """The attempt's cancel holder."""
        return self._attempt.cancel

    def cancel(self, reason: str = "") -> None:
        """End the run as cancelled for a reason of the agent's own."""
        self._attempt.cancel.ask("hook", reason)

    async def call(self, tool: Tool[Any, Any], /, **kwargs: Any) -> Any:
        """The tool's result, journaled; a call that was made before is answered from the journal.

        Raises ToolError when it failed (`code`, `message`), ArgumentsInvalid for wrong arguments.
        """
        position = self._enter()
        item = wanted(tool, tool.bind(kwargs), self._attempt.env.secret_fields)
        key = digest(["call", tool.name, item.call.request_digest])
        return await self._guarded(self._call(position, key, item))

    async def model(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool[Any, Any]] | None = None
    ) -> ModelReply:
        """A model's reply: `.text`, `.tool_calls` (id, name, raw arguments), `.usage`; begins a new step."""
        position = self._enter()
        self._step += 1
        limit = self._attempt.agent.budgets.steps
        if limit is not None and self._step > limit:
            raise self._stop(EndRun("STEP_LIMIT", f"The attempt took {limit} steps, which is its limit."))
        self._step_deadline = self._attempt.step_deadline()
        plain = [dict(message) for message in messages]
        schemas = [tool.schema for tool in tools or ()]
        key = digest(["model", plain, [schema["function"]["name"] for schema in schemas]])
        reply: ModelReply = await self._guarded(self._model(position, self._step, key, plain, schemas))
        return reply

    async def finished(self) -> None:
        """Wait for calls that the code left running; raise what one of them means for the run."""
        if self._open:
            await asyncio.wait(set(self._open))
        self.log.over = True
        if self._signal is not None:
            raise self._signal

    # --- inside -------------------------------------------------------------------------------------------------

    def _enter(self) -> int:
        """The position of the next operation, fixed before anything is awaited."""
        if self._signal is not None:
            raise self._signal
        self._position += 1
        if self._attempt.hands_over and self._position not in self._attempt.positions:
            raise self._stop(HandOver())
        self._attempt.renew_limits()
        self._attempt.check(self._attempt.run, "agent")
        return self._position

    def _stop(self, signal: BaseException) -> BaseException:
        self._signal = self._signal or signal
        return signal

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Work goes on to its recorded end even if the code stops waiting for it."""
        task = spawn(work, name="agent-operation")
        self._open.add(task)
        task.add_done_callback(self._over)
        try:
            return await asyncio.shield(task)
        except Signal as signal:
            raise self._stop(signal) from None

    def _over(self, task: asyncio.Task[Any]) -> None:
        """An operation has ended. Code that was cut no longer awaits it: its exception is looked at here, or asyncio logs it."""
        self._open.discard(task)
        if not task.cancelled():
            task.exception()

    def _stored(self, position: int, kind: str, key: str) -> Decision | None:
        stored = self._attempt.positions.get(position)
        if stored is None:
            return None
        if stored.kind != kind or stored.digest != key:
            message = f"Operation {position} of the agent's code is not the one that was recorded; it must not depend on"
            raise EndRun("NONDETERMINISTIC", f"{message} time, randomness or state outside of the run.")
        return stored

    async def _call(self, position: int, key: str, item: Any) -> Any:
        attempt = self._attempt
        stored = self._stored(position, "call", key)
        if stored is not None:
            return await self._recorded(position, stored, item)
        step, deadline = self.step, self._step_deadline
        place = Place(attempt.run_id, attempt.number, step, attempt.env.breakers.now_ms())
        plan = plan_wanted([("", item.tool.name, item)], attempt.rows, attempt.claimed, attempt.asked, place)
        decision = Decision({}, plan.calls, digest=key, kind="call")
        decided = self._decided(position, decision, plan, deadline, counts=False)
        outcomes = await steps.perform(attempt, decided)
        steps.judge(attempt, decided, outcomes)
        made = plan.calls[0]
        entry = attempt.entries.get(made.row_id or "")
        return _result(made, None if entry is None else entry.row)

    async def _recorded(self, position: int, stored: Decision, item: Any) -> Any:
        """The result of a call that was decided before; one that was cut by the loss of its worker is finished."""
        attempt, call = self._attempt, stored.calls[0]
        entry = attempt.entries.get(call.row_id or "")
        if call.kind == "run" and entry is not None and entry.row.status in ("planned", "started"):
            kwargs = {call.id: item.kwargs}
            await resume_step(attempt, position, -1, self.step, stored, self._step_deadline, kwargs)
            entry = attempt.entries.get(call.row_id or "")
        return _result(call, None if entry is None else entry.row)

    async def _model(
        self,
        position: int,
        step: int,
        key: str,
        messages: list[dict[str, Any]],
        schemas: list[dict[str, Any]],
    ) -> ModelReply:
        attempt, deadline = self._attempt, self._step_deadline
        stored = self._stored(position, "model", key)
        if stored is not None:
            return _reply(stored)
        check_size(messages)
        answer = await ask(attempt, step, deadline, messages, schemas)
        usage = answer.reply.usage
        kept = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost_usd": usage.cost_usd,
            "estimated": usage.estimated,
            "finish_reason": answer.reply.finish_reason,
        }
        decision = Decision(assistant_message(answer.reply), digest=key, usage=kept)
        plan = StepPlan((), (), attempt.claimed, attempt.asked)
        decided = self._decided(position, decision, plan, deadline, counts=True)
        await steps.perform(attempt, replace(decided, samples=(answer.latency,)))
        return _reply(decision)

    def _decided(
        self,
        position: int,
        decision: Decision,
        plan: StepPlan,
        deadline: Deadline,
        *,
        counts: bool,
    ) -> steps.Decided:
        began_s = self._attempt.step_began_s or time.monotonic()
        return steps.Decided(position, -1, self.step, decision, plan, deadline, began_s, counts=counts)


async def run_code(attempt: Attempt) -> Any:
    """Execute a coroutine agent; returns what it returns, as JSON."""
    code = attempt.agent.code
    assert code is not None
    value = attempt.agent.typed_input(attempt.input)
    if not attempt.positions:
        await run_snapshot(attempt, attempt.step_deadline())
    context = AgentContext(attempt)
    try:
        result = await attempt.value_within_run(code(context, value), f"agent {attempt.agent.name}")
    finally:
        await context.finished()
    try:
        return to_jsonable_python(result)
    except (PydanticSerializationError, ValueError) as error:
        raise EndRun("BUG", f"The agent returned what is no JSON: {str(error)[:300]}") from error


def _result(call: DecidedCall, row: Row | None) -> Any:
    if call.answer is not None:
        error = call.answer["error"]
        raise ToolError(error["message"], code=error["code"])
    if row is not None and row.status == "succeeded":
        return row.response
    if row is not None and row.error is not None:
        raise ToolError(row.error.message, code=row.error.code)
    raise ToolError("Whether the call had its effect is not known.", code="TOOL_OUTCOME_UNKNOWN")


def _reply(decision: Decision) -> ModelReply:
    parts = decision.message.get("tool_calls") or ()
    calls = tuple(ToolCallPart(p["id"], p["function"]["name"], p["function"]["arguments"]) for p in parts)
    usage = decision.usage
    chunk = UsageChunk(
        usage["prompt_tokens"], usage["completion_tokens"], usage["cost_usd"], usage["estimated"]
    )
    return ModelReply(text_of(decision), calls, chunk, usage["finish_reason"])

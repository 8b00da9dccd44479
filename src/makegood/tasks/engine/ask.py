"""One model decision: sends, retries, fallback models, waits. The one place where a request is repeated (CONTRACT C)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

from makegood.errors import MakegoodError
from makegood.store.ops.args import NewEvent, Sample, Spent
from makegood.tasks.body import Raised, Returned
from makegood.tasks.engine.attempt import Attempt, Sends
from makegood.tasks.engine.signals import EndRun, LimitReached, ParkRun
from makegood.tasks.engine.traces import chat_span, end_chat
from makegood.tasks.latencies import sample
from makegood.tasks.model.assemble import collect
from makegood.tasks.model.types import Clocks, Failure, ModelFailure, ModelReply, ModelRequest
from makegood.tasks.policies import Timeouts
from makegood.tasks.rules import counting
from makegood.tasks.rules.attempts import assumed_model_cost_s, try_cost_s
from makegood.tasks.rules.breaker import Rejected
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.decisions import Fallback, Park, Retry, Stop
from makegood.tasks.rules.model_retry import decide_model_retry

HELD_WAIT_S = 30.0
"""How long a run is parked at a breaker that an operator holds open, before it looks again."""

LEASE_POLL_S = 0.05

INFRASTRUCTURE = frozenset(
    {
        "SERVER",
        "TIMEOUT_CONNECT",
        "TIMEOUT_FIRST_TOKEN",
        "TIMEOUT_IDLE",
        "TIMEOUT_CALL",
        "TRANSPORT",
        "EMPTY_RESPONSE",
    }
)
"""Failures that count for a model's breaker; a 429 is a 4xx and does not (CONTRACT C9)."""


@dataclass(slots=True)
class _Asking:
    """Where a decision stands; what it has used up is kept by its attempt, so that it survives a park."""

    attempt: Attempt
    step: int
    deadline: Deadline
    models: tuple[str, ...]

    @property
    def retries(self) -> int:
        return self.attempt.sends.retries

    @property
    def model(self) -> int:
        return min(self.attempt.sends.model, len(self.models) - 1)

    @property
    def name(self) -> str:
        return self.models[self.model]

    @property
    def fallback_left(self) -> int:
        return len(self.models) - self.model - 1

    def use(self, *, retry: int = 0, switch: int = 0) -> None:
        self.attempt.sends = Sends(self.retries + retry, self.model + switch)


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply and the duration of the request that gave it."""

    reply: ModelReply
    latency: Sample


async def ask(
    attempt: Attempt,
    step: int,
    deadline: Deadline,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> Answer:
    """The model's reply, after as many tries as the policy allows.

    Raises EndRun with the failure's code, ParkRun, LimitReached, Cancelled, HandOver.
    """
    asking = _Asking(attempt, step, deadline, (attempt.agent.model, *attempt.agent.fallback_models))
    while True:
        attempt.check(deadline, "model request")
        while (
            not attempt.env.may_act()
        ):  # frozen or cut off: a run that was lost hears of it before it asks anything
            await attempt.sleep(LEASE_POLL_S, deadline, "the lease")
        owner = await _admitted(asking)
        began_s = time.monotonic()
        with chat_span(attempt, asking.name, step, asking.retries + 1, messages) as span:
            outcome = await _send(asking, owner, messages, tools)
            end_chat(span, outcome)
        taken = sample(f"model:{asking.name}", time.monotonic() - began_s)
        if isinstance(outcome, ModelReply):
            attempt.events.append(_tried(asking, outcome))
            return Answer(outcome, taken)
        await _after_failure(asking, outcome, taken)


async def _send(
    asking: _Asking, owner: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> ModelReply | Failure:
    attempt, limits = asking.attempt, asking.attempt.agent.timeouts
    args = dict(attempt.agent.model_args)
    stream = bool(args.pop("stream", False))
    left_s = asking.deadline.left_s(time.monotonic())
    call_s = left_s if limits.model is None else min(limits.model, left_s)
    request = ModelRequest(asking.name, messages, tools, args, stream)
    # The adapter's own clock ends the request; the outer limit only catches work that does not stop.
    work = collect(attempt.env.adapter.stream(request, _clocks(limits, call_s)))
    try:
        result = await attempt.bounded(work, asking.deadline, f"model {asking.name}")
    except (
        MakegoodError
    ):  # it hung, and that could not be reported: the run is someone else's, or the store is away
        with contextlib.suppress(MakegoodError):
            await _report(asking, owner, "neutral")
        raise
    if isinstance(result, Returned):
        await _report(asking, owner, "success")
        reply: ModelReply = result.value
        return reply
    if not isinstance(result, Raised):
        await _report(asking, owner, "neutral")
        cut_by = result.cause or f"{result.level} limit"
        attempt.events.append(_tried(asking, None, cut_by))
        raise attempt.signal_of(result, f"model {asking.name}")
    if not isinstance(result.error, ModelFailure):
        await _report(asking, owner, "neutral")
        raise result.error
    failure = result.error.failure
    await _report(asking, owner, "failure" if failure.code in INFRASTRUCTURE else "neutral")
    if failure.code == "TIMEOUT_CALL" and call_s == left_s:
        attempt.events.append(_tried(asking, failure))
        attempt.check_cancel()
        raise LimitReached(asking.deadline.level, f"model {asking.name}")
    return failure


def _clocks(limits: Timeouts, call_s: float) -> Clocks:
    return Clocks(_or_off(limits.connect, call_s), _or_off(limits.first_token), _or_off(limits.idle), call_s)


def _or_off(limit: float | None, otherwise: float = 0.0) -> float:
    return otherwise if limit is None else limit


async def _after_failure(asking: _Asking, failure: Failure, taken: Sample) -> None:
    attempt, agent = asking.attempt, asking.attempt.agent
    attempt.events.append(_tried(asking, failure))
    attempt.check_cancel()
    retry_after_s = None if failure.retry_after_ms is None else failure.retry_after_ms / 1000
    decision = decide_model_retry(
        str(failure.code),
        retry_after_s,
        asking.retries,
        agent.retry,
        attempt.left(asking.deadline),
        _cost_s(asking),
        attempt.env.rnd(),
        asking.fallback_left,
    )
    if isinstance(decision, Retry):
        await _back_off(asking, decision.delay_s, failure, taken)
    elif isinstance(decision, Park):
        attempt.events.append(_retry_event(asking, decision.delay_s, failure))
        asking.use(retry=1)
        raise ParkRun(decision.delay_s, str(failure.code))
    elif isinstance(decision, Fallback):
        skipped = None if decision.skipped is None else _skipped_event(asking, decision.skipped, failure)
        await _fall_back(asking, str(failure.code), skipped, [taken])
    else:
        await _give_up(asking, decision, failure, taken)


async def _back_off(asking: _Asking, delay_s: float, failure: Failure, taken: Sample) -> None:
    activity = {"activity": "backing_off", "delay_s": round(delay_s, 3), "cause": str(failure.code)}
    event = _retry_event(asking, delay_s, failure)
    asking.use(retry=1)
    await asking.attempt.note(activity, [event], [taken])
    await asking.attempt.sleep(delay_s, asking.deadline, "model backoff")
    await asking.attempt.note(None, [])  # from outside it no longer backs off


async def _fall_back(asking: _Asking, cause: str, skipped: NewEvent | None, taken: Sequence[Sample]) -> None:
    """Switch to the next model. The retries that are used stay used: a step sends 1 + retries + switches (C4)."""
    data = {"from": asking.name, "to": asking.models[asking.model + 1], "cause": cause}
    switch = NewEvent("llm.fallback", data, asking.step)
    asking.use(switch=1)
    await asking.attempt.note(None, [switch] if skipped is None else [skipped, switch], taken)


async def _give_up(asking: _Asking, decision: Stop, failure: Failure, taken: Sample) -> None:
    if decision.reason == "does_not_fit":
        await asking.attempt.note(None, [_skipped_event(asking, decision, failure)], [taken])
    raise EndRun(str(failure.code), failure.message)


def _cost_s(asking: _Asking) -> float:
    limits, policy = asking.attempt.agent.timeouts, asking.attempt.agent.retry
    limit_s = asking.attempt.step_s if limits.model is None else limits.model
    seen = asking.attempt.env.latencies.get(f"model:{asking.name}")
    return try_cost_s(seen.p99_s, seen.samples, assumed_model_cost_s(limit_s, policy.assumed_cost))


# --- the model's breaker ----------------------------------------------------------------------------------------


def breaker_name(model: str, args: Mapping[str, Any]) -> str:
    """Name of a model's breaker: the model, and the place that serves it when the agent names one."""
    base = args.get("api_base") or args.get("base_url")
    place = urlsplit(str(base)).netloc.rpartition("@")[2] if base else ""
    return f"{model}@{place}" if place else model


async def _report(asking: _Asking, owner: str, outcome: Literal["failure", "success", "neutral"]) -> None:
    name = breaker_name(asking.name, asking.attempt.agent.model_args)
    changed = await asking.attempt.env.breakers.report(name, asking.attempt.agent.breaker, owner, outcome)
    if changed is not None:
        kind = "breaker.closed" if changed == "closed" else "breaker.opened"
        asking.attempt.events.append(NewEvent(kind, {"name": name}, asking.step))


async def _admitted(asking: _Asking) -> str:
    """The name under which a request may be sent; an open breaker means a fallback model, or a wait."""
    attempt = asking.attempt
    while True:
        name = breaker_name(asking.name, attempt.agent.model_args)
        owner = attempt.op()
        limit_s = attempt.agent.timeouts.model or attempt.step_s
        answer = await attempt.env.breakers.admit(name, owner, limit_s)
        if not isinstance(answer, Rejected):
            if answer.probe:
                attempt.events.append(NewEvent("breaker.half_open", {"name": name}, asking.step))
            return owner
        data = {"name": name, "until_ms": answer.until_ms}
        counts = counting.rejected(name)
        attempt.events.append(NewEvent("breaker.rejected", data, asking.step, counts=counts))
        if not asking.fallback_left:
            _park_for_breaker(asking, name, answer)
        await _fall_back(asking, "BREAKER_OPEN", None, ())


def _park_for_breaker(asking: _Asking, name: str, rejected: Rejected) -> NoReturn:
    now_ms = asking.attempt.env.breakers.now_ms()
    wait_s = HELD_WAIT_S if rejected.until_ms is None else max(0.1, (rejected.until_ms - now_ms) / 1000)
    total_s = asking.attempt.left(asking.deadline).total_s
    if total_s is not None and wait_s >= total_s:
        raise EndRun(
            "SERVER", f"The breaker of {name} is open for {wait_s:.0f} s, longer than the run's total allows."
        )
    raise ParkRun(wait_s, "BREAKER_OPEN")


# --- events -----------------------------------------------------------------------------------------------------


def _tried(asking: _Asking, outcome: ModelReply | Failure | None, cut_by: str = "") -> NewEvent:
    """One request: what its reply has cost, its failure, or what cut it."""
    data: dict[str, Any] = {"model": asking.name, "try": asking.retries + 1}
    if isinstance(outcome, ModelReply):
        usage = outcome.usage
        data["usage"] = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        spent = Spent(
            usage.prompt_tokens, usage.completion_tokens, usage.cost_usd, usage.estimated, asking.name
        )
        return NewEvent("llm.attempt", data, asking.step, spent=spent)
    if outcome is not None:
        data["failure"] = outcome.to_dict()
    else:
        data["cut_by"] = cut_by
    return NewEvent("llm.attempt", data, asking.step)


def _retry_event(asking: _Asking, delay_s: float, failure: Failure) -> NewEvent:
    data = {
        "model": asking.name,
        "retry": asking.retries + 1,
        "delay_s": round(delay_s, 3),
        "cause": str(failure.code),
    }
    counts = (counting.retried("model", str(failure.code)),)
    return NewEvent("llm.retry", data, asking.step, counts=counts)


def _skipped_event(asking: _Asking, stop: Stop, failure: Failure) -> NewEvent:
    data = {
        "model": asking.name,
        "reason": "deadline",
        "level": stop.level,
        "needed_s": stop.needed_s,
        "left_s": stop.left_s,
        "cause": str(failure.code),
    }
    return NewEvent("llm.retry_skipped", data, asking.step, counts=counting.skipped("deadline"))

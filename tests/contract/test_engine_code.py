"""Agents written as a coroutine: journaled like the steps of a declared agent, continued by re-execution."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from makegood import ALL, Agent, Budgets, RetryPolicy, ToolError, agent, tool
from makegood.errors import ArgumentsInvalid
from makegood.testing import Provider, Reply, Stall, Status
from support.engine import LONG_S, MODEL, MakeProvider, Workers, events_of, eventually, limits


def declared(provider: Provider, *tools: Any, name: str = "code", **options: Any) -> Callable[[Any], Agent]:
    """The `@agent` decorator for that provider."""
    fast = RetryPolicy(retries=2, backoff=0.01, max_backoff=0.05)
    options = {"on_failure": "keep", "retry": fast, "tool_retry": fast, "timeouts": limits(), **options}
    return agent(
        name=name, model=MODEL, tools=tools, model_args={"api_base": provider.url, "api_key": "k"}, **options
    )


def ask(text: str) -> list[dict[str, Any]]:
    """One question."""
    return [{"role": "user", "content": text}]


@tool(effect="write", identity=("n",))
async def make(ctx: Any, n: int) -> dict[str, Any]:
    """Make something."""
    if n < 0:
        raise ToolError("negative", code="NEGATIVE")
    return {"made": n, "key": ctx.idempotency_key}


def test_calls_and_replies_of_the_code_are_journaled_steps(worker: Workers, model: MakeProvider) -> None:
    """ctx.call gives the tool's result, ctx.model a reply with text, calls and usage; the return value is the output."""
    provider = model([Reply("", tool_calls=[("make", '{"n": 5}')]), Reply("fine", usage=(7, 3))])

    @declared(provider, make)
    async def code(ctx: Any, value: Any) -> Any:
        first = await ctx.call(make, n=value["n"])
        asked = await ctx.model(ask("which?"), tools=[make])
        said = await ctx.model(ask("well?"))
        (part,) = asked.tool_calls
        return {
            "made": first["made"],
            "wants": [part.name, part.arguments],
            "says": said.text,
            "in": said.usage.prompt_tokens,
        }

    result, run = worker.run(code, {"n": 4})
    assert result.output == {"made": 4, "wants": ["make", '{"n": 5}'], "says": "fine", "in": 7}
    assert (result.steps, result.calls, result.usage.prompt_tokens) == (2, 1, 17)
    assert [t["function"]["name"] for t in provider.requests[0].tools] == ["make"]
    assert not provider.requests[1].tools
    assert [row["status"] for row in run.journal()] == ["succeeded"]


def test_a_failed_call_raises_tool_error_and_the_code_may_go_on(worker: Workers, model: MakeProvider) -> None:
    """Business errors carry their code; wrong arguments are refused before anything is journaled."""

    @declared(model(), make)
    async def code(ctx: Any, value: Any) -> Any:
        try:
            await ctx.call(make, n=-1)
        except ToolError as error:
            first = [error.code, error.message]
        try:
            await ctx.call(make, n="many")
        except ArgumentsInvalid:
            return first
        return None

    result, run = worker.run(code)
    assert result.output == ["NEGATIVE", "negative"]
    assert len(run.journal()) == 1


@pytest.mark.contract("J29", "D3")
def test_identical_calls_at_the_same_time_are_two_calls_with_two_keys(
    worker: Workers, model: MakeProvider
) -> None:
    """gather of four, two of them equal: four bodies, four rows, four keys."""

    @declared(model(), make)
    async def code(ctx: Any, value: Any) -> Any:
        made = await asyncio.gather(*(ctx.call(make, n=n) for n in (1, 1, 2, 3)))
        return [each["key"] for each in made]

    result, run = worker.run(code)
    assert result.state == "succeeded"
    assert len(set(result.output)) == 4
    assert {row["idempotency_key"] for row in run.journal()} == set(result.output)
    assert result.effects.committed == 4
    assert result.calls == 4


@pytest.mark.contract("D4", "J29")
def test_a_second_attempt_is_given_each_recorded_response_once(worker: Workers, model: MakeProvider) -> None:
    """Three equal calls at the same time, twice over: the second attempt runs none of them; the fourth is its own."""

    @declared(model(), make, timeouts=limits(run=1, total=60))
    async def code(ctx: Any, value: Any) -> Any:
        made = await asyncio.gather(*(ctx.call(make, n=1) for _ in range(3)))
        if ctx.attempt == 1:
            await asyncio.sleep(LONG_S)
        last = await ctx.call(make, n=1)
        return [each["key"] for each in (*made, last)]

    result, run = worker.run(code)
    assert result.state == "succeeded"
    assert result.calls == 4
    assert [row["idempotency_key"] for row in run.journal()] == result.output
    assert [row["attempt"] for row in run.journal()] == [1, 1, 1, 2]


def hand_over(worker: Workers, code: Agent, at: threading.Event, go: threading.Event) -> Any:
    """Run the agent until it is at `at`, hand it over, and wait for its end on a second worker."""
    first = worker.start(code)
    run = worker.enqueue(code)
    assert at.wait(LONG_S)
    first.drain()
    worker.pump.detach(first)
    eventually(first.env.draining.is_set, "the first worker drains")
    go.set()
    eventually(lambda: run.status() == "queued", "the run is handed over")
    worker.start(code)
    return run, run.wait(LONG_S)


@pytest.mark.contract("D7")
def test_a_continued_run_executes_its_code_again_but_nothing_that_it_did(
    worker: Workers, model: MakeProvider
) -> None:
    """Calls and replies before the hand-over come from the store: same values, no body, no request."""
    provider = model([Reply("one"), Reply("two")])
    at, go, runs = threading.Event(), threading.Event(), []

    @tool(effect="write", identity=ALL)
    async def act(ctx: Any) -> str:
        runs.append(ctx.idempotency_key)
        at.set()
        await asyncio.to_thread(go.wait, LONG_S)
        return f"act {len(runs)}"

    @declared(provider, make, act)
    async def code(ctx: Any, value: Any) -> Any:
        one = (await ctx.model(ask("first"))).text
        failed = "no"
        try:
            await ctx.call(make, n=-1)
        except ToolError as error:
            failed = str(error.code)
        acted = await ctx.call(act)
        two = (await ctx.model(ask(f"{one} {acted}"))).text
        return [one, failed, acted, two]

    run, result = hand_over(worker, code, at, go)
    assert result.output == ["one", "NEGATIVE", "act 1", "two"]
    assert result.attempts == 1
    assert len(runs) == 1
    assert len(provider.requests) == 2
    assert result.steps == 2
    assert len(events_of(run, "run.handed_over")) == len(events_of(run, "run.continued")) == 1


def test_code_that_takes_another_way_when_it_is_continued_is_refused(
    worker: Workers, model: MakeProvider
) -> None:
    """It depends on something outside of the run: NONDETERMINISTIC, and nothing more happens."""
    at, go, executions = threading.Event(), threading.Event(), []

    @tool(effect="write", identity=ALL)
    async def act(ctx: Any) -> None:
        at.set()
        await asyncio.to_thread(go.wait, LONG_S)

    @declared(model(), make, act)
    async def code(ctx: Any, value: Any) -> Any:
        executions.append(1)
        await ctx.call(make, n=len(executions))
        await ctx.call(act)
        return await ctx.call(make, n=99)

    run, result = hand_over(worker, code, at, go)
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.code == "NONDETERMINISTIC"
    assert len(executions) == 2
    assert [row["tool"] for row in run.journal()] == ["make", "act"]


def test_a_model_failure_ends_the_run_though_the_code_catches_exceptions(
    worker: Workers, model: MakeProvider
) -> None:
    """What ends an attempt is no Exception, so `except Exception` does not swallow it."""
    provider = model(lambda _: Status(500))

    @declared(provider)
    async def code(ctx: Any, value: Any) -> Any:
        try:
            await ctx.model(ask("x"))
        except Exception:
            return "swallowed"

    result, _ = worker.run(code)
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.code == "SERVER"
    assert len(provider.requests) == 3


def test_code_that_swallows_even_that_does_not_succeed(worker: Workers, model: MakeProvider) -> None:
    """A bare except cannot turn a failed run into a success."""

    @declared(model(lambda _: Status(401)))
    async def code(ctx: Any, value: Any) -> Any:
        try:
            await ctx.model(ask("x"))
        except BaseException:
            return "swallowed"

    result, _ = worker.run(code)
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.code == "AUTH"


@pytest.mark.contract("A1", "C11")
def test_code_that_does_not_end_is_cut_at_the_attempts_limit_and_begins_anew(
    worker: Workers, model: MakeProvider
) -> None:
    """Its second attempt gets the recorded response of what the first one did."""
    attempts: list[int] = []

    @declared(model(), make, timeouts=limits(run=1, total=60))
    async def code(ctx: Any, value: Any) -> Any:
        attempts.append(ctx.attempt)
        made = await ctx.call(make, n=1)
        if ctx.attempt == 1:
            await asyncio.sleep(LONG_S)
        return made["key"]

    result, run = worker.run(code)
    assert result.state == "succeeded"
    assert attempts == [1, 2]
    assert result.calls == 1
    assert result.output == run.journal()[0]["idempotency_key"]


@pytest.mark.contract("F5")
def test_cancel_reaches_the_code_and_its_running_calls(worker: Workers, model: MakeProvider) -> None:
    """The code is cancelled, the model request closed, the run cancelled."""
    provider = model([Stall()])
    ended = threading.Event()

    @declared(provider)
    async def code(ctx: Any, value: Any) -> Any:
        try:
            await ctx.model(ask("x"))
        finally:
            ended.set()

    worker.start(code)
    run = worker.enqueue(code)
    assert provider.arrived().wait(LONG_S)
    assert run.cancel(wait=True, timeout=LONG_S) == "cancelled"
    assert ended.is_set()
    assert provider.requests[0].connection.peer_closed.wait(LONG_S)


@pytest.mark.contract("F1")
def test_code_can_cancel_its_own_run(worker: Workers, model: MakeProvider) -> None:
    """ctx.cancel ends it at the next operation."""
    provider = model()

    @declared(provider)
    async def code(ctx: Any, value: Any) -> Any:
        ctx.cancel("no use")
        await ctx.model(ask("x"))

    result, _ = worker.run(code)
    assert result.state == "cancelled"
    assert not provider.requests


@pytest.mark.contract("G6")
def test_each_model_request_of_the_code_is_a_step_and_the_limit_holds(
    worker: Workers, model: MakeProvider
) -> None:
    """Three are allowed, the fourth is not sent."""
    provider = model()

    @declared(provider, budgets=Budgets(steps=3))
    async def code(ctx: Any, value: Any) -> Any:
        for n in range(10):
            await ctx.model(ask(f"{n}"))

    result, _ = worker.run(code)
    assert result.error is not None
    assert result.error.code == "STEP_LIMIT"
    assert len(provider.requests) == 3


def test_a_call_that_the_code_no_longer_waits_for_is_finished_and_recorded(
    worker: Workers, model: MakeProvider
) -> None:
    """The code gives up waiting; the effect is under way, and the run ends only after its outcome is known."""
    ended: list[float] = []

    @tool(effect="write", identity=ALL)
    async def slow(ctx: Any) -> str:
        await asyncio.sleep(0.3)
        ended.append(time.monotonic())
        return "made"

    @declared(model(), slow)
    async def code(ctx: Any, value: Any) -> Any:
        try:
            await asyncio.wait_for(ctx.call(slow), 0.02)
        except TimeoutError:
            return "gave up"

    result, run = worker.run(code)
    assert result.output == "gave up"
    assert ended
    assert run.journal()[0]["response"] == "made"
    assert result.effects.committed == 1


class Order(BaseModel):
    """The input of a typed agent."""

    n: int


def test_the_code_sees_its_typed_input_and_what_it_returns_must_be_json(
    worker: Workers, model: MakeProvider
) -> None:
    """A model in, a model out as JSON; anything else is a bug."""
    provider = model()

    @declared(provider, name="typed", input=Order)
    async def typed(ctx: Any, value: Order) -> Any:
        return Order(n=value.n + 1)

    @declared(provider, name="wrong")
    async def wrong(ctx: Any, value: Any) -> Any:
        return object()

    worker.start(typed, wrong)
    assert worker.run(typed, {"n": 1})[0].output == {"n": 2}
    result, _ = worker.run(wrong)
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.code == "BUG"


def test_an_exception_of_the_code_is_a_bug_of_the_run(worker: Workers, model: MakeProvider) -> None:
    """The run fails with its name; the worker goes on."""

    @declared(model(), make)
    async def code(ctx: Any, value: Any) -> Any:
        await ctx.call(make, n=1)
        raise LookupError("not there")

    result, _ = worker.run(code)
    assert result.error is not None
    assert result.error.code == "BUG"
    assert "LookupError" in result.error.message
    assert result.effects.committed == 1

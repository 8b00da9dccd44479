"""Unknown outcomes are settled, never guessed (CONTRACT C8, D6; invariants 4, 8, 9)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from makegood import NOT_DONE, UNKNOWN, RecordedCall, ToolContext, tool
from makegood.tasks.tool import Tool
from makegood.testing import Behaviour, Reply, RequestRecord, Reset, Stall, Status
from support.engine import (
    MakeProvider,
    Shop,
    Workers,
    calls,
    events_of,
    limits,
    make_agent,
)

MakeShop = Callable[..., Shop]


def once(name: str) -> Callable[[RequestRecord], Behaviour]:
    """A model that asks for one call, then answers."""
    return lambda request: Reply("done") if request.results else calls((name, {"customer": "c1"}))


def ticket(shop: Shop, **options: Any) -> Tool[Any, Any]:
    """A tool that makes a ticket at the shop; the shop may lose its answer."""

    @tool(**{"effect": "write", "identity": ("customer",), "settle_after": 0, **options})
    async def make_ticket(ctx: ToolContext, customer: str) -> dict[str, Any]:
        answer = await ctx.http.post(shop.url, json={"customer": customer})
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    return make_ticket


def settled(run: Any) -> list[tuple[str, str]]:
    """How calls were settled: (outcome, how)."""
    return [(event["data"]["outcome"], event["data"]["how"]) for event in events_of(run, "cleanup.settled")]


@pytest.mark.contract("D6")
def test_a_probe_finds_the_ticket_whose_answer_was_lost(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """One ticket, never a second; the row is settled as succeeded with the probe's response, and the code stays."""
    there = shop(Reset(), loses=True)
    make = ticket(there)

    @make.probe
    async def find(ctx: ToolContext, call: RecordedCall) -> Any:
        assert ctx.idempotency_key == f"{call.idempotency_key}:probe"
        assert (call.outcome, call.args) == ("unknown", {"customer": "c1"})
        return {"id": there.done[call.idempotency_key]}

    result, run = worker.run(make_agent(model(once("make_ticket")), make))
    assert (result.state, result.error and result.error.code) == ("failed", "TOOL_RETRIES")
    assert len(there.requests) == 1
    (row,) = run.journal()
    assert (row["status"], row["response"]) == ("succeeded", {"id": "T-1"})
    assert row["error"]["code"] == "TRANSPORT"
    assert settled(run) == [("happened", "probe")]
    assert (result.effects.committed, result.effects.unknown) == (1, 0)


@pytest.mark.contract("C8")
def test_not_done_counts_only_when_nothing_of_the_call_can_land_any_more(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Before `settle_after` the run waits without a slot; then NOT_DONE settles the call as failed."""
    there = shop(Reset())
    make = ticket(there, settle_after=1.0)
    asked: list[int] = []

    @make.probe
    async def find(ctx: ToolContext, call: RecordedCall) -> Any:
        asked.append(1)
        return NOT_DONE

    result, run = worker.run(make_agent(model(once("make_ticket")), make))
    assert result.state == "failed"
    assert len(asked) == 2
    assert run.journal()[0]["status"] == "failed"
    assert settled(run) == [("not_happened", "probe")]
    assert (result.effects.committed, result.effects.unknown) == (0, 0)
    first, second = events_of(run, "cleanup.started")
    assert first["data"]["pass"] == second["data"]["pass"] == 1  # a wait is no pass


@pytest.mark.contract("D6")
def test_without_key_or_probe_the_call_is_not_repeated_and_a_person_is_asked(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """A lost answer of a `write`: one request, a review that names the call, one alert."""
    there = shop(Reset(), loses=True)
    result, run = worker.run(make_agent(model(once("make_ticket")), ticket(there)))
    assert result.state == "requires_manual_review"
    assert len(there.requests) == 1
    (item,) = worker.client.review(run.id)["items"]
    assert (item["kind"], item["tool"]) == ("unknown", "make_ticket")
    assert len(worker.alerts) == 1


@pytest.mark.contract("D6")
def test_an_idempotent_call_is_repeated_under_its_key(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Its retries are used up; cleanup sends it once more under the same key and learns the outcome."""
    there = shop(*[Status(503)] * 6, loses=True)
    result, run = worker.run(make_agent(model(once("make_ticket")), ticket(there, effect="idempotent")))
    assert (result.state, result.error and result.error.code) == ("failed", "TOOL_RETRIES")
    assert len(set(there.keys)) == 1
    assert len(there.done) == 1
    assert settled(run) == [("happened", "repeat")]
    assert run.journal()[0]["tries"] == 7


@pytest.mark.contract("C8")
def test_past_its_key_ttl_an_unknown_call_is_not_repeated(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """The downstream may have forgotten the key by then: a person is asked."""
    there = shop(Reset(), loses=True)
    make = ticket(there, effect="idempotent", key_ttl=0.001)
    result, _ = worker.run(make_agent(model(once("make_ticket")), make))
    assert result.state == "requires_manual_review"
    assert len(there.requests) == 1


@pytest.mark.contract("C8")
@pytest.mark.parametrize("handles", [True, False])
def test_an_unknown_call_is_compensated_only_by_a_compensation_that_says_it_can(
    worker: Workers, model: MakeProvider, shop: MakeShop, handles: bool
) -> None:
    """With outcome "unknown"; else a person is asked and nothing is undone."""
    there = shop(Reset(), loses=True)
    make = ticket(there)
    seen: list[str] = []

    @make.compensate(handles_unknown=handles)
    async def withdraw(ctx: ToolContext, call: RecordedCall) -> None:
        seen.append(call.outcome)

    agent = make_agent(model(once("make_ticket")), make, on_failure="rollback")
    result, run = worker.run(agent)
    assert result.state == ("failed" if handles else "requires_manual_review")
    assert seen == (["unknown"] if handles else [])
    assert (result.effects.compensated, result.effects.unknown) == ((1, 0) if handles else (0, 1))
    assert run.journal()[0]["status"] == "unknown"


def test_a_probe_that_raises_or_does_not_know_is_asked_again_and_then_a_person_is(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Whatever a probe raises counts as UNKNOWN; three tries, then review."""
    there = shop(Reset(), loses=True)
    make = ticket(there)
    answers = itertools.cycle([ValueError("bug"), UNKNOWN, ConnectionError("away")])
    asked: list[int] = []

    @make.probe
    def find(ctx: ToolContext, call: RecordedCall) -> Any:
        asked.append(1)
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    result, _ = worker.run(make_agent(model(once("make_ticket")), make))
    assert result.state == "requires_manual_review"
    assert len(asked) == 3


def test_a_run_that_would_succeed_with_an_open_unknown_is_settled_first(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """A bug left the outcome open, the model answered all the same: settled, the run succeeds with its answer."""
    there = shop()

    @tool(effect="write", identity=("customer",), settle_after=0)
    async def make_ticket(ctx: ToolContext, customer: str) -> None:
        await ctx.http.post(there.url)
        raise KeyError("a bug after the effect")

    @make_ticket.probe
    async def find(ctx: ToolContext, call: RecordedCall) -> Any:
        return {"id": "T-1"}

    result, run = worker.run(make_agent(model(once("make_ticket")), make_ticket))
    assert (result.state, result.output) == ("succeeded", "done")
    assert (result.effects.committed, result.effects.unknown) == (1, 0)
    assert [event["type"] for event in run.events()][-2:] == ["cleanup.ended", "run.ended"]


@pytest.mark.contract("J25")
@pytest.mark.contract("C11")
@pytest.mark.parametrize("policy", ["keep", "rollback"])
def test_a_charge_whose_reply_was_lost_is_made_once_though_the_attempt_is_repeated(
    worker: Workers, model: MakeProvider, shop: MakeShop, policy: str
) -> None:
    """charge, mail, notify; the reply of `charge` never comes, the attempt times out and is repeated: one charge, one mail."""

    there, done = shop(Stall("before_headers"), loses=True), []

    @tool(effect="idempotent", identity=("customer",), settle_after=0)
    async def charge(ctx: ToolContext, customer: str) -> Any:
        return (await ctx.http.post(there.url)).json()

    @charge.compensate
    async def refund(ctx: ToolContext, call: RecordedCall) -> None:
        done.append("refund")

    @tool(effect="irreversible", identity=("customer",))
    async def mail(ctx: ToolContext, customer: str) -> None:
        done.append("mail")

    @tool(effect="write", identity=("customer",), on_failure="keep")
    async def notify(ctx: ToolContext, customer: str) -> None:
        done.append("notify")

    names = ["charge", "mail", "notify"]

    def play(request: RequestRecord) -> Behaviour:
        step = len(request.results)
        return calls((names[step], {"customer": "c1"})) if step < 3 else Reply("done")

    agent = make_agent(
        model(play), charge, mail, notify, on_failure=policy, timeouts=limits(step=1.5, call=30)
    )
    result, _ = worker.run(agent)
    assert (result.state, result.attempts) == ("succeeded", 2)
    assert done.count("mail") == 1
    assert done.count("notify") == 1
    standing = len(there.done) - done.count("refund")
    assert standing == 1
    assert result.effects.unknown == 0


@pytest.mark.contract("E8")
def test_while_its_breaker_is_open_cleanup_waits_and_repeats_nothing(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """It gives its slot back until the breaker may close; that uses up a pass, so that it has an end."""
    from makegood import BreakerPolicy, RetryPolicy

    there = shop(*[Status(503)] * 2)
    make = ticket(there, effect="idempotent", retry=RetryPolicy(retries=1, backoff=0))
    agent = make_agent(
        model(once("make_ticket")), make, breaker=BreakerPolicy(failures=2, window=60, open_for=1)
    )
    result, run = worker.run(agent)
    assert result.state == "failed"
    assert len(there.requests) == 3
    assert [event["data"]["pass"] for event in events_of(run, "cleanup.started")] == [1, 2]

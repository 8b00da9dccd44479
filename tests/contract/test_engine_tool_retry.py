"""Tools that fail: what is tried again under which key, what the model is told, what ends the run (CONTRACT C, D6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from makegood import BreakerPolicy, RetryableToolError, RetryPolicy, ToolError, tool
from makegood.tasks.client import Run
from makegood.testing import Close, Provider, Reply, RequestRecord, Reset, Stall, Status
from support import engine_tools
from support.engine import (
    LONG_S,
    MakeProvider,
    Shop,
    Workers,
    calls,
    events_of,
    eventually,
    limits,
    make_agent,
    told,
)

MakeShop = Callable[..., Shop]


def ticket_tool(there: Shop, effect: Any = "idempotent", **options: Any) -> Any:
    """A tool that makes a ticket at the shop."""

    @tool(effect=effect, identity=("customer",), **options)
    async def create_ticket(ctx: Any, customer: str) -> Any:
        response = await ctx.http.post(there.url, json={"customer": customer})
        response.raise_for_status()
        return response.json()

    return create_ticket


def once(provider_of: MakeProvider) -> Provider:
    """A model that asks for one ticket, then answers."""
    return provider_of([calls(("create_ticket", {"customer": "c"})), Reply("done")])


def code_of(run: Run) -> str:
    """The error code of an ended run."""
    error = run.result().error
    assert error is not None
    return error.code


@pytest.mark.contract("D6", "C8", "D3")
@pytest.mark.parametrize(
    "fault", [Stall(), Reset(), Close(), Status(503)], ids=["silence", "reset", "close", "503"]
)
def test_a_lost_answer_of_an_idempotent_tool_makes_no_second_ticket(
    worker: Workers, model: MakeProvider, shop: MakeShop, fault: Any
) -> None:
    """The ticket exists, the answer is lost: the repeat carries the same key and finds it."""
    there = shop(fault, loses=True)
    provider = once(model)
    result, run = worker.run(make_agent(provider, ticket_tool(there, timeout=1)))
    assert result.state == "succeeded"
    assert len(there.done) == 1
    assert len(there.keys) == 2
    assert len(set(there.keys)) == 1
    (row,) = run.journal()
    assert row["status"] == "succeeded"
    assert row["tries"] == 2
    assert row["response"] == {"id": "T-1"}
    assert result.effects.committed == 1
    assert result.effects.unknown == 0
    assert result.calls == 1


@pytest.mark.contract("C8", "D5")
@pytest.mark.parametrize("effect", ["write", "irreversible"])
def test_a_lost_answer_of_a_write_is_not_repeated_and_its_outcome_is_unknown(
    worker: Workers, model: MakeProvider, shop: MakeShop, effect: str
) -> None:
    """One request at the shop, also after cleanup; the journal says maybe, and a person is asked."""
    there = shop(Close(), loses=True)
    result, run = worker.run(make_agent(once(model), ticket_tool(there, effect)))
    assert result.state == "requires_manual_review"
    assert code_of(run) == "TOOL_RETRIES"
    assert len(there.requests) == 1
    assert run.journal()[0]["status"] == "unknown"
    assert result.effects.unknown == 1


@pytest.mark.contract("C8")
def test_a_write_whose_request_cannot_have_left_is_tried_again(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Nobody listens at first: refused connections have no effect; the row is then a plain success."""
    from support.servers import free_port

    port = free_port()
    tried: list[str] = []
    there = shop()

    @tool(effect="write", identity=("customer",))
    async def create_ticket(ctx: Any, customer: str) -> Any:
        tried.append(ctx.idempotency_key)
        url = f"http://127.0.0.1:{port}" if len(tried) < 3 else there.url
        return (await ctx.http.post(url)).json()

    result, run = worker.run(make_agent(once(model), create_ticket))
    assert result.state == "succeeded"
    assert len(tried) == 3
    assert len(set(tried)) == 1
    assert [e["data"]["cause"] for e in events_of(run, "tool.retry")] == ["CONNECT", "CONNECT"]
    assert result.effects.unknown == 0


@pytest.mark.contract("C6")
def test_more_than_five_retries_of_a_tool_fail_the_run(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Six tries, five tool.retry events that count up, TOOL_RETRIES, the model is not asked again."""
    there = shop(*[Status(503)] * 10)
    provider = once(model)
    _, run = worker.leave(make_agent(provider, ticket_tool(there)))
    assert code_of(run) == "TOOL_RETRIES"
    assert len(there.requests) == 6
    assert len(provider.requests) == 1
    assert [e["data"]["retry"] for e in events_of(run, "tool.retry")] == [1, 2, 3, 4, 5]
    (row,) = run.journal()
    assert row["tries"] == 6
    assert row["status"] == "unknown"
    assert row["error"]["code"] == "HTTP_503"


@pytest.mark.contract("C6")
def test_the_default_backoff_of_a_tool_doubles_from_one_second(worker: Workers, model: MakeProvider) -> None:
    """The first wait is a second, more or less a tenth, and can be read from outside."""

    @tool(effect="read")
    async def create_ticket(ctx: Any, customer: str) -> None:
        raise RetryableToolError("not now")

    provider = once(model)
    agent = make_agent(provider, create_ticket, tool_retry=RetryPolicy(retries=5, backoff=1, max_backoff=16))
    worker.start(agent)
    run = worker.enqueue(agent)
    info = eventually(lambda: (i := run.info())["activity"] and i, "an activity")
    assert info["activity"] == "backing_off"
    assert 0.9 <= info["activity_detail"]["delay_s"] <= 1.1
    assert run.cancel(wait=True, timeout=LONG_S) == "cancelled"


@pytest.mark.contract("C6")
@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "HTTP_400"), (401, "HTTP_401"), (404, "HTTP_404"), (409, "HTTP_409"), (429, "HTTP_429")],
)
def test_a_refusal_of_the_downstream_is_told_to_the_model_and_not_retried(
    worker: Workers, model: MakeProvider, shop: MakeShop, status: int, code: str
) -> None:
    """4xx: one request, the text goes back, the row is failed, no effect."""
    there = shop(Status(status, {"detail": "no such customer"}))
    provider = once(model)
    result, run = worker.run(make_agent(provider, ticket_tool(there)))
    assert result.state == "succeeded"
    assert len(there.requests) == 1
    error = told(provider.requests[1])
    assert error["code"] == code
    assert "no such customer" in error["message"]
    assert run.journal()[0]["status"] == "failed"
    assert result.effects.committed == result.effects.unknown == 0


def test_a_tool_error_is_told_with_its_own_code(worker: Workers, model: MakeProvider) -> None:
    """A business failure in the tool's own words."""

    @tool(effect="write", identity=("customer",))
    def create_ticket(ctx: Any, customer: str) -> None:
        raise ToolError("no such customer", code="NO_CUSTOMER")

    provider = once(model)
    result, run = worker.run(make_agent(provider, create_ticket))
    assert result.state == "succeeded"
    assert told(provider.requests[1]) == {
        "code": "NO_CUSTOMER",
        "message": "no such customer",
    }
    assert run.journal()[0]["status"] == "failed"


@pytest.mark.contract("C8")
@pytest.mark.parametrize("in_process", [False, True])
def test_a_conflict_on_a_repeat_means_in_progress_and_is_tried_again(
    worker: Workers, model: MakeProvider, shop: MakeShop, in_process: bool
) -> None:
    """409 to the first try would be a refusal; to a repeat under the same key it says that the first one is at work."""
    there = shop(Status(503), Status(409), loses=True)
    post = engine_tools.post_checked if in_process else ticket_tool(there)
    call = ("post_checked", {"url": there.url}) if in_process else ("create_ticket", {"customer": "c"})
    provider = model([calls(call), Reply("done")])
    result, run = worker.run(make_agent(provider, post))
    assert result.state == "succeeded"
    assert len(there.requests) == 3
    assert len(there.done) == 1
    assert [e["data"]["cause"] for e in events_of(run, "tool.retry")] == ["HTTP_503", "IN_PROGRESS"]


@pytest.mark.contract("C8", "D6")
@pytest.mark.parametrize("in_process", [False, True])
def test_a_refusal_after_a_lost_answer_does_not_prove_that_nothing_happened(
    worker: Workers, model: MakeProvider, shop: MakeShop, in_process: bool
) -> None:
    """The first try may have worked; the repeat is refused for its key: unknown, not failed, and to be settled."""
    there = shop(Status(503), Status(422), loses=True)
    post = engine_tools.post_checked if in_process else ticket_tool(there)
    call = ("post_checked", {"url": there.url}) if in_process else ("create_ticket", {"customer": "c"})
    provider = model([calls(call), Reply("done")])
    result, run = worker.leave(make_agent(provider, post))
    assert run.journal()[0]["status"] == "unknown"
    assert result.effects.unknown == 1
    assert len(there.requests) == 2


@pytest.mark.contract("C7")
def test_a_tool_retry_that_does_not_fit_is_skipped_with_both_numbers(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """A wait of a second and a try of 9 s do not fit into a step of 8 s."""
    there = shop(Status(503))
    slow = RetryPolicy(retries=5, backoff=1, max_backoff=16, jitter=0)
    agent = make_agent(once(model), ticket_tool(there, timeout=9), tool_retry=slow, timeouts=limits(step=8))
    _, run = worker.leave(agent)
    (skipped,) = events_of(run, "tool.retry_skipped")
    assert skipped["data"]["needed_s"] == 10
    assert 0 < skipped["data"]["left_s"] < 8
    assert code_of(run) == "TOOL_RETRIES"
    assert len(there.requests) == 1
    assert skipped["data"]["level"] == "step"


@pytest.mark.contract("C8")
def test_past_its_key_ttl_an_idempotent_call_is_not_repeated(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """The downstream has forgotten the key by the time of the repeat: unknown."""
    there = shop(Status(503), loses=True)
    late = RetryPolicy(retries=5, backoff=0.5, max_backoff=1)
    agent = make_agent(once(model), ticket_tool(there, key_ttl=0.1, retry=late))
    _, run = worker.leave(agent)
    assert len(there.requests) == 1
    assert run.journal()[0]["status"] == "unknown"
    assert code_of(run) == "TOOL_RETRIES"


@pytest.mark.contract("C9", "J22")
def test_eight_failed_tries_open_the_breaker_and_the_ninth_call_does_not_reach_the_network(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Seven tries in one run, an eighth in the next; then the model is told BREAKER_OPEN with a time and goes on."""
    there = shop(*[Status(503)] * 20)
    provider = model(lambda r: Reply("done") if r.results else calls(("create_ticket", {"customer": "c"})))
    seven = RetryPolicy(retries=6, backoff=0)
    agent = make_agent(provider, ticket_tool(there), tool_retry=seven)
    _, first = worker.leave(agent)
    assert len(there.requests) == 7
    assert not events_of(first, "breaker.opened")
    _, second = worker.leave(agent)
    assert len(there.requests) == 8
    assert len(events_of(second, "breaker.opened")) == 1
    (skipped,) = events_of(second, "tool.retry_skipped")
    assert skipped["data"]["reason"] == "breaker"
    assert code_of(second) == "TOOL_RETRIES"
    began_s = time.monotonic()
    result, third = worker.run(agent)
    assert result.state == "succeeded"
    assert len(there.requests) == 8
    assert time.monotonic() - began_s < 10
    error = told(provider.requests[-1])
    assert error["code"] == "BREAKER_OPEN"
    assert "seconds" in error["message"]
    (row,) = third.journal()
    assert row["status"] == "aborted_before_dispatch"
    assert row["tries"] == 0
    assert result.effects.not_started == 1
    assert result.calls == 0


@pytest.mark.contract("C9", "A5")
def test_an_open_breaker_does_not_count_as_a_repeated_failure(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """The model asks again and again while it is open, then answers: no REPEATED_FAILURE."""
    there = shop(*[Status(503)] * 2)
    provider = model(
        lambda r: Reply("done") if len(r.results) == 5 else calls(("create_ticket", {"customer": "c"}))
    )
    policy = BreakerPolicy(failures=2, open_for=300)
    agent = make_agent(
        provider, ticket_tool(there), breaker=policy, tool_retry=RetryPolicy(retries=1, backoff=0)
    )
    worker.leave(agent)
    result, _ = worker.run(agent)
    assert result.state == "succeeded"
    assert len(there.requests) == 2


@pytest.mark.contract("C9")
def test_a_breaker_that_one_worker_opens_is_seen_by_the_other(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Within a refresh the second worker's call ends without touching the network; after the pause one probe closes it."""
    there = shop(*[Status(503)] * 2)
    opener, asker = (
        once(model),
        model(lambda r: Reply("done") if r.results else calls(("create_ticket", {"customer": "c"}))),
    )
    policy = BreakerPolicy(failures=2, open_for=3)
    make = ticket_tool(there)
    one = make_agent(opener, make, name="one", breaker=policy, tool_retry=RetryPolicy(retries=1, backoff=0))
    two = make_agent(asker, make, name="two", breaker=policy)
    first, second = worker.start(one), worker.start(two)
    worker.pump.detach(second)
    worker.leave(one)
    eventually(lambda: second.env.breakers.rejects("create_ticket"), "the other worker sees the breaker")
    worker.pump.detach(first)
    worker.pump.attach(second, 8)
    result, run = worker.run(two)
    assert result.state == "succeeded"
    assert len(there.requests) == 2
    assert run.journal()[0]["error"]["code"] == "BREAKER_OPEN"
    eventually(lambda: not second.env.breakers.rejects("create_ticket"), "the breaker may be probed")
    result, run = worker.run(two)
    assert result.state == "succeeded"
    assert len(there.requests) == 3
    assert run.journal()[0]["status"] == "succeeded"
    assert events_of(run, "breaker.closed")


@pytest.mark.contract("C9")
def test_refusals_and_cancelled_tries_do_not_open_a_breaker(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Ten 404 and a cancel later the tool is still called."""
    there = shop(*[Status(404)] * 5, Stall())

    def answer(request: RequestRecord) -> Reply:
        asked = calls(*[("create_ticket", {"customer": f"c{i}"}) for i in range(5)])
        return asked if not request.results else Reply("done")

    agent = make_agent(model(answer), ticket_tool(there), breaker=BreakerPolicy(failures=1))
    worker.run(agent)
    run = worker.enqueue(agent)
    assert there.provider.arrived(6).wait(LONG_S)
    assert run.cancel(wait=True, timeout=LONG_S) == "cancelled"
    result, _ = worker.run(agent)
    assert result.state == "succeeded"
    assert result.effects.committed == 5

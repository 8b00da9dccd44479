"""What operators decide, carried out by real workers (CONTRACT E11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from makegood import RecordedCall, ToolContext, tool
from makegood.testing import Behaviour, Reply, RequestRecord, Reset
from support.engine import MakeProvider, Shop, Workers, calls, eventually, make_agent

MakeShop = Callable[..., Shop]
WHO: dict[str, Any] = {"actor": "ann", "reason": "asked the shop"}


def once(request: RequestRecord) -> Behaviour:
    """A model that asks for one ticket, then answers."""
    return Reply("done") if request.results else calls(("make_ticket", {"customer": "c1"}))


def ticket(shop: Shop, undone: list[Any]) -> Any:
    """A tool that makes a ticket at the shop, which may lose its answer, and can withdraw it."""

    @tool(effect="write", identity=("customer",), settle_after=0)
    async def make_ticket(ctx: ToolContext, customer: str) -> dict[str, Any]:
        answer = await ctx.http.post(shop.url, json={"customer": customer})
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    @make_ticket.compensate
    async def withdraw(ctx: ToolContext, call: RecordedCall) -> None:
        undone.append((call.outcome, call.response, ctx.idempotency_key.removeprefix(call.idempotency_key)))

    return make_ticket


@pytest.mark.contract("E11")
def test_what_a_person_found_out_is_what_the_cleanup_goes_by(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """The ticket is there: marked done, the retry withdraws it, once, and the run ends as it had failed."""
    undone: list[Any] = []
    there = shop(Reset(), loses=True)
    result, run = worker.run(make_agent(model(once), ticket(there, undone), on_failure="rollback"))
    assert (result.state, undone) == ("requires_manual_review", [])
    (item,) = worker.client.review(run.id)["items"]
    worker.client.mark(run.id, item["call_key"], "done", **WHO)
    worker.client.retry_cleanup(run.id, **WHO)
    eventually(lambda: run.status() == "failed", "the cleanup ends")
    result = run.result()
    assert undone == [("succeeded", None, ":undo")]
    assert (result.error and result.error.code, result.effects.compensated) == ("TOOL_RETRIES", 1)
    assert [each["action"] for each in worker.client.audit(run.id)] == ["mark", "retry"]


@pytest.mark.contract("E11")
def test_a_resumed_run_does_its_work_after_all(worker: Workers, model: MakeProvider, shop: MakeShop) -> None:
    """The ticket is not there: marked undone, a new attempt makes it, though all attempts were used."""
    undone: list[Any] = []
    there = shop(Reset())
    agent = make_agent(model(once), ticket(there, undone), on_failure="rollback", max_attempts=1)
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    (item,) = worker.client.review(run.id)["items"]
    worker.client.mark(run.id, item["call_key"], "undone", **WHO)
    worker.client.resume(run.id, **WHO)
    eventually(lambda: run.status() == "succeeded", "the new attempt ends")
    result = run.result()
    assert (result.output, result.error, result.attempts, undone) == ("done", None, 2, [])
    assert (result.effects.committed, result.effects.unknown) == (1, 0)


@pytest.mark.contract("E11")
def test_a_succeeded_run_is_undone_when_an_operator_says_so(
    worker: Workers, model: MakeProvider, shop: MakeShop
) -> None:
    """Also under keep, and only with `undo_succeeded`; it keeps its state and output."""
    undone: list[Any] = []
    result, run = worker.run(make_agent(model(once), ticket(shop(), undone)))
    assert result.state == "succeeded"
    assert [each["result"] for each in worker.client.cleanup([run.id], **WHO)] == ["refused"]
    assert [each["result"] for each in worker.client.cleanup([run.id], undo_succeeded=True, **WHO)] == [
        "requested"
    ]
    eventually(lambda: run.status() == "succeeded", "the cleanup ends")
    again = run.result()
    assert (again.output, again.error, again.effects.compensated) == (result.output, None, 1)
    assert undone == [("succeeded", {"id": "T-1"}, ":undo")]
    assert [each["result"] for each in worker.client.cleanup([run.id], undo_succeeded=True, **WHO)] == [
        "nothing_to_do"
    ]

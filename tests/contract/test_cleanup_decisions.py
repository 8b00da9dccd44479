"""What operators decide, carried out by real workers (CONTRACT E11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from makegood import ALL, Conflict, RecordedCall, RetryPolicy, ToolContext, tool
from makegood.store.ops.review import mark_call
from makegood.tasks.journal import load_journal
from makegood.testing import Behaviour, Reply, RequestRecord, Reset
from support.engine import MakeProvider, Shop, Workers, calls, eventually, make_agent

MakeShop = Callable[..., Shop]
WHO: dict[str, Any] = {"actor": "ann", "reason": "asked the shop"}
ONCE = RetryPolicy(retries=0)


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


def answered(worker: Workers, run: Any, means: str) -> None:
    """Give the answer to the review's only question that is printed with these words."""
    (item,) = worker.client.review(run.id)["items"]
    (command,) = (each["command"].split() for each in item["answers"] if each["means"] == means)
    assert command[:4] == ["makegood", "review", "mark", run.id]
    worker.client.mark(run.id, command[4], command[5], generation=int(command[7]), **WHO)


def flight(undo: str, sold: dict[str, str], undone: list[str]) -> Any:
    """A tool whose answer is lost in the first attempt, and whose undo works and loses its answer, or does not work.

    `sold`: what the shop remembers by key; it answers a key that it knows and sells nothing.
    """

    @tool(effect="write", identity=ALL, settle_after=0)
    async def book(ctx: ToolContext) -> str:
        if ctx.idempotency_key not in sold:
            sold[ctx.idempotency_key] = "sold"
        if ctx.attempt == 1:
            raise ConnectionResetError("the answer was lost")
        return "booked"

    @book.compensate(handles_unknown=True)
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        undone.append(call.idempotency_key)
        if undo == "works":
            sold[call.idempotency_key] = "cancelled"
        raise ConnectionResetError("the answer was lost")

    return book


def booking(request: RequestRecord) -> Behaviour:
    """A model that books one flight, then answers."""
    return Reply("done") if request.results else calls(("book", {}))


@pytest.mark.contract("E11", "E9")
def test_an_unknown_effect_that_may_stay_is_not_undone_again(worker: Workers, model: MakeProvider) -> None:
    """Its undo failed three times; one answer, as it is printed, and the retry leaves it alone."""
    undone: list[str] = []
    agent = make_agent(model(booking), flight("fails", {}, undone), on_failure="rollback", tool_retry=ONCE)
    result, run = worker.run(agent)
    assert (result.state, len(undone)) == ("requires_manual_review", 3)
    answered(worker, run, "it may stay")
    worker.client.retry_cleanup(run.id, **WHO)
    eventually(lambda: run.status() == "failed", "the cleanup ends")
    effects = run.result().effects
    assert (effects.committed, effects.compensated, effects.unknown, len(undone)) == (1, 0, 0, 3)


@pytest.mark.contract("E11", "E9", "D3")
def test_what_was_undone_by_hand_is_done_anew_under_a_new_key(worker: Workers, model: MakeProvider) -> None:
    """The shop remembers the first key: it would answer that it is sold, and sell nothing."""
    sold: dict[str, str] = {}
    agent = make_agent(model(booking), flight("works", sold, []), on_failure="rollback", tool_retry=ONCE)
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    assert [each["command"].split()[2] for each in worker.client.review(run.id)["decisions"]] == [
        "retry",
        "resolve",
    ]
    with pytest.raises(Conflict, match="undoing was begun and not finished"):
        worker.client.resume(run.id, **WHO)
    answered(worker, run, "it is undone, by hand")
    worker.client.resume(run.id, **WHO)
    eventually(lambda: run.status() == "succeeded", "the new attempt ends")
    assert list(sold.values()) == ["cancelled", "sold"]
    effects = run.result().effects
    assert (effects.committed, effects.compensated, effects.unknown) == (1, 1, 0)


@pytest.mark.contract("E11")
def test_an_effect_that_may_be_half_undone_is_not_taken_for_done(
    worker: Workers, model: MakeProvider
) -> None:
    """Its undo worked and its answer was lost: no attempt begins that would be told that it was done."""
    booked: list[str] = []

    @tool(effect="idempotent", identity=ALL)
    async def book(ctx: ToolContext) -> str:
        booked.append(ctx.idempotency_key)
        return "booked"

    @book.compensate(effect="write")
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        booked.remove(call.idempotency_key)
        raise ConnectionResetError("the answer was lost")

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            raise SystemExit("broken")
        return "fine"

    def play(request: RequestRecord) -> Behaviour:
        asks = (("book", {}), ("look", {}))
        return calls(asks[len(request.results)]) if len(request.results) < 2 else Reply("done")

    result, run = worker.run(make_agent(model(play), book, look, on_failure="rollback"))
    assert (result.state, booked) == ("requires_manual_review", [])
    with pytest.raises(Conflict, match="undoing was begun and not finished"):
        worker.client.resume(run.id, **WHO)
    answered(worker, run, "it is undone, by hand")
    worker.client.resume(run.id, **WHO)
    eventually(lambda: run.status() == "succeeded", "the new attempt ends")
    (key,) = booked
    assert key.endswith(":2")


@pytest.mark.contract("E11")
def test_a_mark_that_arrives_twice_is_made_once(worker: Workers, model: MakeProvider, shop: MakeShop) -> None:
    """Its answer was lost, somebody else decides, and it is sent again: the ticket does not stay for that."""
    undone: list[Any] = []
    there = shop(Reset(), loses=True)
    result, run = worker.run(make_agent(model(once), ticket(there, undone), on_failure="rollback"))
    assert result.state == "requires_manual_review"
    (entry,) = worker.client.run_flow(load_journal(run.id))
    row = entry.row
    body = b'{"response":null,"response_digest":null,"error":null}'
    mark = mark_call(
        run_id=run.id,
        row_id=entry.row_id,
        call_key=row.call_key,
        tool=row.tool,
        mark="done",
        body=body,
        **WHO,
    )
    first = worker.client.store.do(mark)
    worker.client.retry_cleanup(run.id, **WHO)
    assert worker.client.store.do(mark) == first
    eventually(lambda: run.status() == "failed", "the cleanup ends")
    assert (len(undone), worker.client.store.do(mark)) == (1, first)


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

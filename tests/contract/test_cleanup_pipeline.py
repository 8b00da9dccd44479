"""After an attempt that did not succeed: settle, roll back, compensate, release, decide (CONTRACT E)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from makegood import RecordedCall, ToolContext, tool
from makegood.tasks.tool import Tool
from makegood.testing import Behaviour, Reply, RequestRecord
from support.engine import MakeProvider, Workers, calls, eventually, make_agent


class Ledger:
    """What tools, probes and compensations did, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.keys: dict[str, str] = {}
        self.fails: dict[str, int] = {}
        self.lock = threading.Lock()

    def note(self, line: str, key: str = "") -> None:
        with self.lock:
            self.lines.append(line)
            self.keys[line] = key
            if self.fails.get(line, 0) > 0:
                self.fails[line] -= 1
                raise ConnectionError(f"{line} fails")


def booking(ledger: Ledger, what: str, *, compensates: bool = True, **options: Any) -> Tool[Any, Any]:
    """A tool that books something and can cancel it."""

    async def book(ctx: ToolContext, place: str = "") -> dict[str, str]:
        ledger.note(what, ctx.idempotency_key)
        return {"booked": what}

    book.__name__ = book.__qualname__ = what
    made = tool(**{"effect": "idempotent", "identity": ("place",), **options})(book)
    if compensates:

        @made.compensate
        async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
            ledger.note(f"undo {what}", ctx.idempotency_key)

    return made


def asks_for(*names: str) -> Callable[[RequestRecord], Behaviour]:
    """A model that calls these tools one by one, then answers."""

    def play(request: RequestRecord) -> Behaviour:
        step = len(request.results)
        return calls((names[step], {})) if step < len(names) else Reply("done")

    return play


@tool(effect="read")
async def give_up(ctx: ToolContext) -> None:
    """A bug that ends the run at once, without an effect of its own."""
    raise SystemExit("no car")


@pytest.mark.contract("E3")
@pytest.mark.contract("E1")
def test_a_failed_saga_is_undone_newest_first(worker: Workers, model: MakeProvider) -> None:
    """Flight and hotel are booked, then the run fails: hotel, then flight are undone, each under a key of its own."""
    ledger = Ledger()
    flight, hotel = booking(ledger, "flight"), booking(ledger, "hotel")
    agent = make_agent(
        model(asks_for("flight", "hotel", "give_up")), flight, hotel, give_up, on_failure="rollback"
    )
    result, run = worker.run(agent)
    assert (result.state, result.error and result.error.code) == ("failed", "BUG")
    assert ledger.lines == ["flight", "hotel", "undo hotel", "undo flight"]
    rows = {row["tool"]: row for row in run.journal()}
    assert rows["hotel"]["compensation"] == {"status": "succeeded", "tries": 1, "error": None}
    assert ledger.keys["undo hotel"] == rows["hotel"]["idempotency_key"] + ":undo"
    assert (result.effects.committed, result.effects.compensated, result.effects.unknown) == (0, 2, 0)


@pytest.mark.contract("E4")
def test_under_keep_what_is_finished_stays(worker: Workers, model: MakeProvider) -> None:
    """No cleanup is needed, and nothing is undone; a tool of its own policy is."""
    ledger = Ledger()
    flight, hotel = booking(ledger, "flight"), booking(ledger, "hotel", on_failure="rollback")
    agent = make_agent(model(asks_for("flight", "hotel", "give_up")), flight, hotel, give_up)
    result, _ = worker.run(agent)
    assert result.state == "failed"
    assert ledger.lines == ["flight", "hotel", "undo hotel"]
    assert (result.effects.committed, result.effects.compensated) == (1, 1)


@pytest.mark.contract("E8")
@pytest.mark.contract("J27")
def test_an_undo_that_fails_three_times_reaches_a_person_and_the_others_are_still_done(
    worker: Workers, model: MakeProvider
) -> None:
    """Review names the hotel; the flight is undone; there is no fourth try; the operator's retry finishes it."""
    ledger = Ledger()
    ledger.fails["undo hotel"] = 3
    flight, hotel = booking(ledger, "flight"), booking(ledger, "hotel")
    agent = make_agent(
        model(asks_for("flight", "hotel", "give_up")), flight, hotel, give_up, on_failure="rollback"
    )
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    assert ledger.lines == ["flight", "hotel", "undo hotel", "undo hotel", "undo hotel", "undo flight"]
    ((message, tags),) = worker.alerts
    assert "hotel" in message
    assert tags["tool"] == "hotel"
    rows = {row["tool"]: row for row in run.journal()}
    assert rows["hotel"]["compensation"]["status"] == "failed"
    assert rows["hotel"]["compensation"]["tries"] == 3
    worker.client.retry_cleanup(run.id, actor="ann", reason="the hotel is back")
    result = eventually(lambda: run.status() == "failed" and run.wait(1), "the retry finishes it")
    assert ledger.lines[-1] == "undo hotel"
    assert ledger.lines.count("undo flight") == 1
    assert len(worker.alerts) == 1
    assert result.effects.compensated == 2

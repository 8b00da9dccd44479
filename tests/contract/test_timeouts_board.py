"""What a worker goes by: limits that were set over those that were declared, and the last ones that it heard of (CONTRACT A7)."""

from __future__ import annotations

import asyncio

import pytest

from contract.test_timeouts_running import WHO
from makegood import Client, ToolContext, tool
from makegood.store.async_store import AsyncStore
from makegood.tasks.limits import LimitBoard
from support.engine import MakeProvider, limits, make_agent
from support.servers import ServerFactory, kill


def test_without_a_store_the_last_known_limits_hold(model: MakeProvider, fresh_server: ServerFactory) -> None:
    """A worker does not fall back to what was declared because its store is away for a moment."""
    server = fresh_server()

    async def play() -> None:
        board = LimitBoard(AsyncStore(server.url, patience_s=0.2))
        await asyncio.to_thread(set_at, server.url)
        await board.refresh()
        await asyncio.to_thread(kill, server)
        with pytest.raises(ConnectionError):
            await board.refresh()
        made = make_agent(model(), look_up)
        assert board.call_s(made, look_up) == 3
        await board.store.aclose()

    asyncio.run(play())


@tool(effect="write", identity=("n",), timeout=8)
async def look_up(ctx: ToolContext, n: int = 1) -> None:
    """With a limit of its own."""


def set_at(url: str) -> None:
    """Set the limit of `look_up` at another server."""
    with Client(url) as client:
        client.set_timeout("call", "look_up", 3, **WHO)


@pytest.mark.contract("A7")
def test_the_limits_of_a_worker_are_those_set_over_those_declared(model: MakeProvider) -> None:
    """Each level for itself; the total follows L3 unless it was declared; a shorter limit settles nothing sooner."""
    made = make_agent(model(), look_up, timeouts=limits(step=20, run=40, cleanup=5), max_attempts=2)
    fixed = make_agent(model(), look_up, name="b", timeouts=limits(total=7))
    board = LimitBoard(store=None)  # type: ignore[arg-type]  # nothing is read here
    declared = (
        board.call_s(made, look_up),
        board.settle_after_s(made, look_up),
        board.step_s(made),
        board.run_s(made),
    )
    assert (*declared, board.total_s(made)) == (8, 8, 20, 40, 85)
    board.set_by_hand = {"call|look_up": 3.0, "step|a": 2.0, "run|a": 100.0, "run|b": 100.0}
    held = (
        board.call_s(made, look_up),
        board.settle_after_s(made, look_up),
        board.step_s(made),
        board.run_s(made),
    )
    assert (*held, board.total_s(made)) == (3, 8, 2, 100, 205)
    assert (board.run_s(fixed), board.total_s(fixed), board.call_s(fixed, look_up)) == (100, 7, 3)

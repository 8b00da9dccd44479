"""What cleanup's own repeats leave behind, and tools that are not there any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.test_cleanup_pipeline import Ledger, asks_for, booking, give_up
from makegood import RecordedCall, RetryPolicy, ToolContext, tool
from support.engine import MakeProvider, Workers, eventually, make_agent


@pytest.mark.contract("E2")
def test_what_a_repeat_in_cleanup_declares_is_rolled_back_too(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """The first try broke before it declared anything; the repeat that settles it creates the file, and cleanup removes it."""
    made, tries = tmp_path / "made.txt", []

    @tool(effect="idempotent", identity=("x",), settle_after=0, retry=RetryPolicy(retries=0))
    async def create(ctx: ToolContext, x: str = "1") -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionResetError("lost on the way")
        await ctx.declare("path", str(made))
        async with ctx.lock("file"):
            made.write_text("x")

    @create.compensate
    async def nothing(ctx: ToolContext, call: RecordedCall) -> None:
        """The file is a declared resource."""

    result, _ = worker.run(make_agent(model(asks_for("create")), create, on_failure="rollback"))
    assert (result.state, result.effects.unknown, result.effects.compensated) == ("failed", 0, 1)
    assert len(tries) == 2
    assert not made.exists()


@pytest.mark.contract("E10")
def test_an_effect_whose_tool_has_left_the_agent_is_not_silently_committed(
    worker: Workers, model: MakeProvider
) -> None:
    """Under rollback a person is asked by name."""
    ledger = Ledger()
    names: dict[str, Any] = {"model": model(asks_for("flight", "give_up"))}
    before = make_agent(names["model"], booking(ledger, "flight"), give_up, on_failure="rollback")
    after = make_agent(names["model"], give_up, on_failure="rollback")
    worker.cleans = False
    worker.start(before)
    run = worker.enqueue(before)
    eventually(lambda: run.status() == "cleaning", "it is to be cleaned up")
    worker.served = {after.name: after}
    worker.start_cleaner()
    assert run.wait(30).state == "requires_manual_review"
    (item,) = worker.client.review(run.id)["items"]
    assert (item["tool"], item["kind"]) == ("flight", "compensation")

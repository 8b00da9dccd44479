"""What an agent's own code raises ends its run, whatever it is; it is never taken for trouble of the store."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from makegood import agent
from makegood.testing import Stall
from support.engine import LONG_S, MODEL, MakeProvider, Workers, eventually, limits


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("refused"),
        TimeoutError("late"),
        OSError(5, "input/output"),
        ValueError("no"),
        asyncio.CancelledError(),
        SystemExit(3),
        KeyboardInterrupt(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_code_ends_its_run(worker: Workers, error: BaseException) -> None:
    """Also one that looks like a lost connection: the run ends, and the worker goes on."""

    @agent(name="code", model=MODEL, on_failure="keep", timeouts=limits())
    async def code(ctx: Any, value: Any) -> Any:
        raise error

    result, _ = worker.run(code, {"n": 1})
    assert result.state == "failed"
    assert result.error is not None
    assert result.error.code == "BUG"


def test_what_an_operation_raises_once_nobody_awaits_it_is_not_logged_by_asyncio(
    worker: Workers, model: MakeProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """The code is cut while a request is under way; that request ends with a signal of its own."""
    provider = model([Stall()])

    @agent(name="code", model=MODEL, timeouts=limits(), model_args={"api_base": provider.url, "api_key": "k"})
    async def code(ctx: Any, value: Any) -> None:
        await ctx.model([{"role": "user", "content": "hello"}])

    worker.start(code)
    run = worker.enqueue(code)
    assert provider.arrived().wait(LONG_S)
    assert run.cancel(wait=True, timeout=LONG_S) == "cancelled"
    eventually(lambda: not worker.runtimes[0].attempts, "the worker lets go of it")
    gc.collect()
    assert [each.getMessage() for each in caplog.records if "never retrieved" in each.getMessage()] == []

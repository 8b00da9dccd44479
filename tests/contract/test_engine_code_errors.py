"""What an agent's own code raises ends its run, whatever it is; it is never taken for trouble of the store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from makegood import agent
from support.engine import MODEL, Workers, limits


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

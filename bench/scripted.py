"""A model that answers at once from what its request says, and the agents that the benchmarks run.

An input `"10 2"` means: ten steps of two calls each, then an answer. `BENCH_FOLDER` is where tools leave notes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from makegood import Agent, Budgets, Timeouts, ToolContext, tool
from makegood.tasks.model.types import (
    Chunk,
    Clocks,
    Finish,
    ModelRequest,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)

FOLDER = os.environ.get("BENCH_FOLDER")
SHOP = os.environ.get("BENCH_SHOP", "")


class InstantModel:
    """An adapter without a provider.

    `hold`: what an answer waits for; `gate`: a file it waits for; `asked`: told about every request.
    """

    def __init__(
        self,
        hold: asyncio.Event | None = None,
        gate: str | None = None,
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        self.hold, self._gate, self._asked = hold, gate, asked
        self.waiting = 0

    async def stream(self, request: ModelRequest, clocks: Clocks) -> AsyncGenerator[Chunk, None]:
        """The next step of the plan in the first message."""
        self._asked()
        self.waiting += 1
        if self.hold is not None:
            await self.hold.wait()
        while self._gate is not None and not Path(self._gate).exists():
            await asyncio.sleep(0.5)
        words = str(request.messages[0]["content"]).split()
        steps, calls = int(words[0]), int(words[1])
        made = sum(1 for message in request.messages if message["role"] == "assistant")
        if made < steps:
            tool_name = words[2] if len(words) > 2 else "put"
            for index in range(calls):
                number = made * calls + index
                name = f'"{words[3]}-{number}"' if len(words) > 3 else str(number)
                yield ToolCallDelta(index, f"c{number}", tool_name, f'{{"n": {name}}}')
            yield UsageChunk(10, 5)
            yield Finish("tool_calls")
        else:
            yield TextDelta("done")
            yield UsageChunk(10, 5)
            yield Finish("stop")

    async def warm_up(self) -> None:
        """Nothing to load."""

    async def aclose(self) -> None:
        """Nothing to close."""


@tool(effect="idempotent", identity=("n",))
async def put(ctx: ToolContext, n: int) -> str:
    """An effect that takes no time."""
    return "ok"


@tool(effect="idempotent", identity=("n",))
async def put_apart(ctx: ToolContext, n: int) -> str:
    """The same, but no two calls of a step end together."""
    await asyncio.sleep(n % 8 * 0.005)
    return "ok"


def begun(name: str) -> None:
    """Note that a call of this name began here and now (one short append is atomic)."""
    if FOLDER is None:
        return
    with Path(FOLDER, "begun").open("a") as notes:
        notes.write(f"{name} {os.getpid()} {time.monotonic()}\n")


async def gate(name: str) -> None:
    """Wait until the benchmark opens the gate of this name."""
    while FOLDER is not None and not Path(FOLDER, name).exists():
        await asyncio.sleep(0.005)


@tool(effect="idempotent", identity=("n",))
async def held(ctx: ToolContext, n: str) -> str:
    """Begins, is noted, and waits for its gate."""
    begun(n)
    await gate("go")
    return "ok"


@tool(effect="read")
async def cooperative(ctx: ToolContext, n: str) -> str:
    """Waits until it is told to stop, and leaves nothing that would have to be cleaned up."""
    begun(n)
    await ctx.cancelled.wait()
    return "stopped"


async def order(ctx: ToolContext, name: str, *, late: bool) -> str:
    """Order something at the shop; `late`: wait for the gate before the effect, else after it."""
    if late:
        begun(name)
        await gate("go")
    answer = await ctx.http.post(f"{SHOP}/orders", json={"customer": "c", "item": name})
    answer.raise_for_status()
    if not late:
        begun(name)
        await gate("go")
    return "ordered"


@tool(effect="idempotent", identity=("n",))
async def order_late(ctx: ToolContext, n: str) -> str:
    """Held before its effect, safe to repeat."""
    return await order(ctx, n, late=True)


@tool(effect="idempotent", identity=("n",))
async def order_early(ctx: ToolContext, n: str) -> str:
    """Held after its effect, safe to repeat."""
    return await order(ctx, n, late=False)


@tool(effect="write", identity=("n",))
async def charge_late(ctx: ToolContext, n: str) -> str:
    """Held before its effect, not safe to repeat."""
    return await order(ctx, n, late=True)


@tool(effect="write", identity=("n",))
async def charge_early(ctx: ToolContext, n: str) -> str:
    """Held after its effect, not safe to repeat."""
    return await order(ctx, n, late=False)


agent = Agent(
    "bench",
    "bench/instant",
    tools=[put, put_apart, held, cooperative, order_late, order_early, charge_late, charge_early],
    on_failure="keep",
    budgets=Budgets(steps=None),
    timeouts=Timeouts(call=300, step=600, run=3000, model=300),
)

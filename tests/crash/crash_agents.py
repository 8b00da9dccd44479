"""Agents of the crash tests: what a run does is written in its input, and every effect goes to the test's shop.

FAULTS names the plan of faults, SHOP_URL and MODEL_URL the test's servers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from typing import Any

from makegood import Agent, RetryPolicy, Timeouts, ToolContext, tool
from makegood.testing.faults import arm, pass_point, strike

SHOP = os.environ["SHOP_URL"]
PLAN = arm(os.environ["FAULTS"])


async def post(ctx: ToolContext, name: str) -> dict[str, Any]:
    """The effect: one ticket of that name."""
    response = await ctx.http.post(f"{SHOP}/tickets", json={"customer": "c", "title": name})
    response.raise_for_status()
    return dict(response.json())


def sync_post(ctx: ToolContext, name: str) -> dict[str, Any]:
    """The same for a sync tool."""
    response = ctx.http.post(f"{SHOP}/tickets", json={"customer": "c", "title": name})
    response.raise_for_status()
    return dict(response.json())


@tool(effect="idempotent", identity=("name",))
async def ticket(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Make a ticket; the point `mid_tool` lies between its effect and its answer."""
    made = await post(ctx, name)
    await pass_point(PLAN, "mid_tool")
    return made


@tool(effect="idempotent", identity=("name",))
async def late_ticket(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Make a ticket; the point `tool_begun` lies before its effect."""
    await pass_point(PLAN, "tool_begun")
    return await post(ctx, name)


@tool(effect="idempotent", identity=("name",))
def sync_ticket(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Make a ticket from a thread."""
    return sync_post(ctx, name)


@tool(effect="write", identity=("name",))
async def charge(ctx: ToolContext, name: str) -> dict[str, Any]:
    """An effect that must not be repeated."""
    made = await post(ctx, name)
    await pass_point(PLAN, "mid_tool")
    return made


@tool(effect="read")
async def look(ctx: ToolContext, name: str) -> str:
    """Nothing but an answer."""
    return f"seen {name}"


@tool(effect="idempotent", identity=("name",), isolation="process")
def boxed(ctx: ToolContext, name: str) -> str:
    """A tool in a process of its own, with a process below it; says who they are and waits to be released."""
    below = subprocess.Popen(["sleep", "1000"])
    (PLAN.folder / "boxed.pids").write_text(f"{os.getpid()} {below.pid}")
    while not PLAN.released("boxed"):
        time.sleep(0.01)
    below.kill()
    below.wait()
    return "out"


@tool(effect="idempotent", identity=("name",), isolation="process")
def boxed_ticket(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Make a ticket from a process of its own; the point `boxed_begun` lies before its effect."""
    if strike(PLAN.passing("boxed_begun")):
        while not PLAN.released("boxed_begun"):
            time.sleep(0.01)
    try:
        return sync_post(ctx, name)
    except Exception as error:
        (PLAN.folder / f"{os.getpid()}.said").write_text(str(error))
        raise


@tool(effect="idempotent", identity=("name",))
async def poison(ctx: ToolContext, name: str) -> str:
    """Takes its process down, whenever it runs; counts how often."""
    PLAN.passing("poison")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool(effect="idempotent", identity=("name",))
def poison_sync(ctx: ToolContext, name: str) -> str:
    """The same in a thread."""
    PLAN.passing("poison")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@tool(effect="read")
async def wait_for_file(ctx: ToolContext, name: str) -> str:
    """Waits for the test."""
    PLAN.passing("waiting")
    while not (PLAN.folder / f"{name}.open").exists():  # noqa: ASYNC110  # another process opens it
        await asyncio.sleep(0.01)
    return "open"


crash = Agent(
    "crash",
    "openai/any",
    tools=[
        ticket,
        late_ticket,
        sync_ticket,
        boxed_ticket,
        charge,
        look,
        boxed,
        poison,
        poison_sync,
        wait_for_file,
    ],
    model_args={"api_base": os.environ["MODEL_URL"], "api_key": "k"},
    on_failure="keep",
    retry=RetryPolicy(retries=5, backoff=0.05, max_backoff=0.5),
    tool_retry=RetryPolicy(retries=5, backoff=0.05, max_backoff=0.5),
    timeouts=Timeouts(call=60, step=120, run=300),
)

"""Agents of the worker processes that the Celery tests start; servers are named in the environment."""

from __future__ import annotations

import os
import threading
from typing import Any

from pydantic import BaseModel

from makegood import ALL, Agent, RetryPolicy, Timeouts, tool

MODEL_URL = os.environ.get("TEST_MODEL_URL", "http://127.0.0.1:1")
SHOP_URL = os.environ.get("TEST_SHOP_URL", "http://127.0.0.1:1")
NONE = RetryPolicy(retries=0)


@tool(effect="idempotent", identity=("n",), timeout=60)
async def act(ctx: Any, n: int) -> Any:
    """Asks the shop, which may take its time."""
    return (await ctx.http.post(f"{SHOP_URL}/act/{n}")).json()


@tool(effect="read", timeout=60)
def look(ctx: Any, n: int) -> str:
    """A quick sync tool."""
    return f"seen {n}"


@tool(effect="write", identity=ALL, timeout=0.5, retry=NONE)
def hang(ctx: Any, n: int) -> None:
    """Hangs until the process ends."""
    threading.Event().wait()


class Order(BaseModel):
    """The input of a typed agent."""

    order: int


ARGS = {"api_base": MODEL_URL, "api_key": "k"}
LIMITS = Timeouts(call=60, step=120, run=300)
TOOLS = (act, look, hang)

support = Agent(
    "support",
    "openai/gpt-5-mini",
    system="You help.",
    tools=TOOLS,
    model_args=ARGS,
    on_failure="keep",
    timeouts=LIMITS,
)
orders = Agent(
    "orders", "openai/gpt-5-mini", input=Order, model_args=ARGS, on_failure="keep", timeouts=LIMITS
)

"""The agents of `makegood demo`: ordinary agents, served by an ordinary worker, with short limits.

The demo names the shop and the model in DEMO_SHOP_URL and DEMO_MODEL_URL.
"""

from __future__ import annotations

import os
from typing import Any

from makegood import Agent, BreakerPolicy, RetryPolicy, Timeouts, ToolContext, tool

SHOP = os.environ.get("DEMO_SHOP_URL", "http://127.0.0.1:9")
MODEL = "openai/demo"
MODEL_ARGS = {"api_base": os.environ.get("DEMO_MODEL_URL", "http://127.0.0.1:9"), "api_key": "demo"}

TICKET_LIMIT_S = 1.5
QUOTE_LIMIT_S = 2.0
QUOTE_BACKOFF_S = 1.5
QUOTE_RUN_S = 4.0
"""Short, but with room for a slow machine: the first model request of a run may take 2 s and nothing changes."""

WAREHOUSE = BreakerPolicy(failures=4, window=60, open_for=30)
STOCK_TRIES = 2


@tool(effect="read")
async def get_price(ctx: ToolContext, item: str) -> dict[str, Any]:
    """The price of an item."""
    response = await ctx.http.get(f"{SHOP}/quotes/{item}")
    response.raise_for_status()
    return dict(response.json())


@tool(effect="idempotent", identity=("customer", "item"))
async def place_order(ctx: ToolContext, customer: str, item: str) -> dict[str, Any]:
    """Order an item for a customer. The shop is told which process asks, so that the demo can kill that one."""
    order, sender = {"customer": customer, "item": item}, {"X-Worker-Pid": str(os.getpid())}
    response = await ctx.http.post(f"{SHOP}/orders", json=order, headers=sender)
    response.raise_for_status()
    return dict(response.json())


@tool(
    effect="idempotent",
    identity=("customer", "title"),
    timeout=TICKET_LIMIT_S,
    retry=RetryPolicy(retries=3, backoff=0.2, jitter=0),
)
async def create_ticket(ctx: ToolContext, customer: str, title: str) -> dict[str, Any]:
    """Open a support ticket."""
    response = await ctx.http.post(f"{SHOP}/tickets", json={"customer": customer, "title": title})
    response.raise_for_status()
    return dict(response.json())


@tool(effect="read", breaker="warehouse", retry=RetryPolicy(retries=STOCK_TRIES - 1, backoff=0.05, jitter=0))
async def check_stock(ctx: ToolContext, item: str) -> dict[str, Any]:
    """How many of an item are left."""
    response = await ctx.http.get(f"{SHOP}/stock/{item}")
    response.raise_for_status()
    return dict(response.json())


@tool(effect="read", timeout=QUOTE_LIMIT_S, retry=RetryPolicy(retries=5, backoff=QUOTE_BACKOFF_S, jitter=0))
async def ask_supplier(ctx: ToolContext, item: str) -> dict[str, Any]:
    """A supplier's offer for an item."""
    response = await ctx.http.get(f"{SHOP}/quotes/{item}")
    response.raise_for_status()
    return dict(response.json())


clerk = Agent(
    "clerk",
    MODEL,
    system="You take orders.",
    tools=[get_price, place_order],
    model_args=MODEL_ARGS,
    on_failure="keep",
)
support = Agent(
    "support",
    MODEL,
    system="You open tickets.",
    tools=[create_ticket],
    model_args=MODEL_ARGS,
    on_failure="keep",
)
stock = Agent(
    "stock",
    MODEL,
    system="You know the warehouse.",
    tools=[check_stock],
    model_args=MODEL_ARGS,
    on_failure="keep",
    breaker=WAREHOUSE,
)
buyer = Agent(
    "buyer",
    MODEL,
    system="You ask suppliers.",
    tools=[ask_supplier],
    model_args=MODEL_ARGS,
    on_failure="keep",
    max_attempts=1,
    timeouts=Timeouts(run=QUOTE_RUN_S),
)

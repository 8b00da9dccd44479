"""The agents of `makegood demo`: ordinary agents, served by an ordinary worker, with short limits.

The demo names the shop and the model in DEMO_SHOP_URL and DEMO_MODEL_URL.
"""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import Any

from makegood import Agent, BreakerPolicy, RecordedCall, RetryPolicy, Timeouts, ToolContext, tool

SHOP = os.environ.get("DEMO_SHOP_URL", "http://127.0.0.1:9")
MODEL = "openai/demo"
MODEL_ARGS = {"api_base": os.environ.get("DEMO_MODEL_URL", "http://127.0.0.1:9"), "api_key": "demo"}

TICKET_LIMIT_S = 1.5
QUOTE_LIMIT_S = 2.0
QUOTE_BACKOFF_S = 1.5
QUOTE_RUN_S = 4.0
"""Short, but with room for a slow machine: the first model request of a run may take 2 s and nothing changes."""
TRIP_RUN_S = 5.0
"""Two bookings take a tenth of a second, or on a slow machine 2 s; the rest is spent waiting for a car."""

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


@tool(effect="idempotent", identity=("customer", "to"))
async def book_flight(ctx: ToolContext, customer: str, to: str) -> dict[str, Any]:
    """Book a flight."""
    response = await ctx.http.post(f"{SHOP}/flights", json={"customer": customer, "to": to})
    response.raise_for_status()
    return dict(response.json())


@book_flight.compensate
async def cancel_flight(ctx: ToolContext, call: RecordedCall) -> None:
    """Cancel the flight that the call has booked."""
    await cancel(ctx, f"{SHOP}/flights/{call.response['id']}")


@tool(effect="idempotent", identity=("customer", "city"))
async def book_hotel(ctx: ToolContext, customer: str, city: str) -> dict[str, Any]:
    """Book a hotel."""
    response = await ctx.http.post(f"{SHOP}/hotels", json={"customer": customer, "city": city})
    response.raise_for_status()
    return dict(response.json())


@book_hotel.compensate
async def cancel_hotel(ctx: ToolContext, call: RecordedCall) -> None:
    """Cancel the hotel that the call has booked."""
    await cancel(ctx, f"{SHOP}/hotels/{call.response['id']}")


async def cancel(ctx: ToolContext, url: str) -> None:
    """Delete a booking; one that is gone already was cancelled in an earlier try."""
    response = await ctx.http.delete(url)
    if response.status_code != HTTPStatus.NOT_FOUND:
        response.raise_for_status()


@tool(effect="read", retry=RetryPolicy(retries=0))
async def find_car(ctx: ToolContext, city: str) -> dict[str, Any]:
    """A car to rent."""
    response = await ctx.http.get(f"{SHOP}/cars/{city}")
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
trips = Agent(
    "trips",
    MODEL,
    system="You book trips, in a hurry.",
    tools=[book_flight, book_hotel, find_car],
    model_args=MODEL_ARGS,
    max_attempts=1,
    timeouts=Timeouts(run=TRIP_RUN_S),
)
holidays = Agent(
    "holidays",
    MODEL,
    system="You book trips.",
    tools=[book_flight, book_hotel, find_car],
    model_args=MODEL_ARGS,
)
"""Both under the default on_failure="rollback"."""

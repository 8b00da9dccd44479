"""The model of `makegood demo`: a script behind a real HTTP endpoint, which decides by what it has been told so far."""

from __future__ import annotations

import json
from typing import Any

from makegood.testing import Behaviour, Reply, RequestRecord
from makegood.testing.provider_behaviours import ToolCall


def answer(request: RequestRecord) -> Behaviour:
    """The reply to one request: the next tool call of the agent's task, or its last word."""
    told = [parsed(message.get("content")) for message in request.messages if message.get("role") == "tool"]
    offered = {each["function"]["name"] for each in request.tools}
    last_word = asked_for(request).rpartition(" ")[2].rstrip(".")
    if "place_order" in offered:
        return _clerk(told, customer=last_word)
    if "create_ticket" in offered:
        return _support(told)
    if "check_stock" in offered:
        return _stock(told)
    if "book_flight" in offered:
        return _trip(told, customer=last_word, city=asked_for(request).split()[-3])
    return (
        Reply(tool_calls=[("ask_supplier", {"item": "lamp"})])
        if not told
        else Reply("I could not get an offer.")
    )


def asked_for(request: RequestRecord) -> str:
    """The run's input: the first user message, "" when there is none."""
    return next((str(each["content"]) for each in request.messages if each.get("role") == "user"), "")


def parsed(content: Any) -> dict[str, Any]:
    """A tool's answer as the model was told it: its object, or the text under `text`."""
    try:
        value = json.loads(content)
    except (TypeError, ValueError):
        return {"text": str(content)}
    return value if isinstance(value, dict) else {"text": str(content)}


def _clerk(told: list[dict[str, Any]], customer: str) -> Behaviour:
    if not told:
        return Reply(tool_calls=[("get_price", {"item": "lamp"})])
    if len(told) == 1:
        return Reply(tool_calls=[("place_order", {"customer": customer, "item": "lamp"})])
    return Reply(f"Order {told[1].get('id')} is placed: one lamp for {told[0].get('price')} euros.")


def _support(told: list[dict[str, Any]]) -> Behaviour:
    if not told:
        return Reply(tool_calls=[("create_ticket", {"customer": "Ada", "title": "The lamp is broken"})])
    return Reply(f"Ticket {told[0].get('id')} is open; somebody will write to you.")


def _stock(told: list[dict[str, Any]]) -> Behaviour:
    if not told:
        return Reply(tool_calls=[("check_stock", {"item": "lamp"})])
    if "left" in told[0]:
        return Reply(f"There are {told[0]['left']} lamps.")
    return Reply("The warehouse does not answer at the moment; please ask again in a minute.")


def _trip(told: list[dict[str, Any]], customer: str, city: str) -> Behaviour:
    calls: list[ToolCall] = [
        ("book_flight", {"customer": customer, "to": city}),
        ("book_hotel", {"customer": customer, "city": city}),
        ("find_car", {"city": city}),
    ]
    if len(told) < len(calls):
        return Reply(tool_calls=[calls[len(told)]])
    return Reply(f"Everything is booked for {city}.")

"""Sentry, switched on for one test: everything that would be sent is kept.

`kept` is the switched-on SDK as a worker process has it; `traced` traces every attempt as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from makegood.monitoring import sentry

DSN = "https://key@sentry.invalid/1"


@dataclass
class Seen:
    """One span as it was sent, in whichever form."""

    op: str
    name: str
    trace: str
    id: str
    parent: str
    status: str
    data: dict[str, Any]


class Kept(Transport):
    """Keeps what would be sent; `breaks`: raises instead."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.breaks, self.tried = breaks, 0
        self.raw: list[bytes] = []
        self.events: list[dict[str, Any]] = []
        self.transactions: list[dict[str, Any]] = []
        self.items: list[dict[str, Any]] = []
        self.check_ins: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        """What sentry-sdk calls to send."""
        self.tried += 1
        if self.breaks:
            raise OSError("the transport is broken")
        self.raw.append(envelope.serialize())
        for item in envelope.items:
            body = item.payload.json or {}
            if item.type == "event":
                self.events.append(body)
            elif item.type == "transaction":
                self.transactions.append(body)
            elif item.type == "check_in":
                self.check_ins.append(body)
            elif item.type == "span":
                self.items += body["items"]

    def said(self, text: str) -> int:
        """How many envelopes hold this text."""
        return sum(text.encode() in each for each in self.raw)

    def roots(self) -> list[Seen]:
        """The transactions."""
        found = []
        for each in self.transactions:
            trace = each["contexts"]["trace"]
            found.append(_seen(trace, each["transaction"], trace["op"], trace.get("data", {})))
        return found

    def spans(self) -> list[Seen]:
        """The spans below them, also those that left as items of their own."""
        inside = [span for each in self.transactions for span in each.get("spans", ())]
        found = [_seen(span, span["description"], span["op"], span.get("data", {})) for span in inside]
        for item in self.items:
            data = {name: attribute["value"] for name, attribute in item["attributes"].items()}
            found.append(_seen(item, item["name"], data["sentry.op"], data))
        return found


def _seen(body: dict[str, Any], name: str, op: str, data: dict[str, Any]) -> Seen:
    return Seen(
        op,
        name,
        body["trace_id"],
        body["span_id"],
        body.get("parent_span_id") or "",
        body.get("status", "ok"),
        data,
    )


@contextmanager
def switched_on(transport: Kept | None = None, **options: Any) -> Iterator[Kept]:
    """Sentry as a worker starts it, with a transport that keeps."""
    transport = transport or Kept()
    assert sentry.start(DSN, transport=transport, **options)
    try:
        yield transport
    finally:
        sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Sentry without traces."""
    with switched_on() as transport:
        yield transport


@pytest.fixture
def traced() -> Iterator[Kept]:
    """Sentry that traces every attempt."""
    with switched_on(traces=1.0) as transport:
        yield transport

"""The test shop's HTTP: from a request to an answer, a fault in between."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from makegood.testing.shop_faults import Close, Fail, Slow, Stall

if TYPE_CHECKING:
    from makegood.testing.shop import Shop


@dataclass(frozen=True, slots=True)
class ShopRequest:
    """One request as it arrived: `key`, `run_id` and `deadline_ms` are headers, "" when absent; `headers` has all of
    them, by their names in small letters; `at_s` is monotonic."""

    method: str
    path: str
    body: Any
    key: str
    run_id: str
    deadline_ms: str
    headers: Mapping[str, str]
    at_s: float


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Read something."""
        self._handle()

    def do_POST(self) -> None:
        """Create something."""
        self._handle()

    def do_DELETE(self) -> None:
        """Delete something."""
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing is printed; `Shop.requests` remembers."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True  # the client went away

    def _handle(self) -> None:
        shop: Shop = self.server.shop  # type: ignore[attr-defined]
        request = self._request()
        match shop.note(request):
            case Fail(status):
                self._answer(status, {"error": f"scripted status {status}"})
            case Stall():
                shop.answer(request)
                shop.pause(None)
                self.close_connection = True
            case Close():
                shop.answer(request)
                self.close_connection = True
            case Slow(delay_s):
                answer = shop.answer(request)
                shop.pause(delay_s)
                self._answer(*answer)
            case None:
                self._answer(*shop.answer(request))

    def _request(self) -> ShopRequest:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        return ShopRequest(
            method=self.command,
            path=unquote(self.path.partition("?")[0]),
            body=body,
            key=self.headers.get("idempotency-key") or "",
            run_id=self.headers.get("x-run-id") or "",
            deadline_ms=self.headers.get("x-deadline-ms") or "",
            headers={name.lower(): value for name, value in self.headers.items()},
            at_s=time.monotonic(),
        )

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

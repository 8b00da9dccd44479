"""A shop's HTTP API for tests and the demo: tickets, orders and bookings with idempotency keys, and faults on demand.

    from makegood.testing.shop import Shop

    with Shop() as shop:
        shop.lose_answer("/tickets")            # the ticket is created, its answer never arrives, once
        ...
        assert len(shop.tickets) == 1
        assert shop.keys("POST", "/tickets") == [key, key]

| request | answer |
|---|---|
| `POST /tickets` `{"customer", "title"}` | 201 with the ticket; a repeat under its `Idempotency-Key` gives the same ticket |
| `POST /orders` `{"customer", "item"}` | 201 with the order, in the same way |
| `POST /flights` `{"customer", "to"}`, `POST /hotels` `{"customer", "city"}` | 201 with the booking, in the same way |
| `GET /tickets/ID` and so on | 200, or 404 |
| `GET /tickets/by-key/KEY` and so on | 200 with what was created under that `Idempotency-Key`, or 404 |
| `DELETE /tickets/ID` and so on | 200 with what was deleted, or 404 |
| `GET /stock/ITEM`, `GET /quotes/ITEM` | 200 with a number that depends on the item only |

A key with another payload is 422, without a key every request creates. It is a real server on a free port of 127.0.0.1 with
a thread per connection; what it saw is in `requests`, what it holds in `tickets`, `orders`, `flights` and `hotels`.
"""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from makegood.testing.shop_faults import Close, Fail, Fault, Faults, Slow, Stall
from makegood.testing.shop_http import Handler, ShopRequest
from makegood.testing.shop_state import Store

__all__ = ["Close", "Fail", "Fault", "Shop", "ShopRequest", "Slow", "Stall"]


class Shop:
    """The server. Use it as a context manager, or call `start` and `stop`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[ShopRequest] = []
        self._store = Store()
        self._faults = Faults()
        self._closing = threading.Event()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address, without a slash at its end; known once started."""
        if self._server is None:
            raise RuntimeError("The shop is not started: call start() first.")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[ShopRequest]:
        """All requests so far, in the order of their arrival."""
        with self._lock:
            return list(self._requests)

    @property
    def tickets(self) -> list[dict[str, Any]]:
        """Tickets that exist, oldest first."""
        return self._store.all("tickets")

    @property
    def orders(self) -> list[dict[str, Any]]:
        """Orders that exist, oldest first."""
        return self._store.all("orders")

    @property
    def flights(self) -> list[dict[str, Any]]:
        """Flights that are booked, oldest first."""
        return self._store.all("flights")

    @property
    def hotels(self) -> list[dict[str, Any]]:
        """Hotels that are booked, oldest first."""
        return self._store.all("hotels")

    def seen(self, method: str, path: str) -> list[ShopRequest]:
        """Requests with this method whose path begins with `path`."""
        return [each for each in self.requests if each.method == method and each.path.startswith(path)]

    def keys(self, method: str, path: str) -> list[str]:
        """The `Idempotency-Key` of each of these requests, "" for none."""
        return [each.key for each in self.seen(method, path)]

    # --- faults: for requests whose path begins with `path`, `times` times, None = until `heal` -------------------

    def lose_answer(self, path: str, *, stall: bool = True, times: int | None = 1) -> None:
        """The effect is done, its answer is not sent: the connection stalls, or is closed at once."""
        self._faults.add(path, Stall() if stall else Close(), times)

    def fail(self, path: str, status: int = 500, *, times: int | None = None) -> None:
        """Answer with this status, without any effect."""
        self._faults.add(path, Fail(status), times)

    def slow(self, path: str, delay_s: float, *, times: int | None = None) -> None:
        """Answer after this many seconds; the effect is done before."""
        self._faults.add(path, Slow(delay_s), times)

    def heal(self, path: str = "/") -> None:
        """End all faults whose path begins with `path`."""
        self._faults.remove(path)

    # --- the server -----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen on a free port of 127.0.0.1."""
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="shop", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """End every answer that is under way, and the thread."""
        self._closing.set()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- what the handler asks ------------------------------------------------------------------------------------

    def note(self, request: ShopRequest) -> Fault | None:
        """Remember a request; returns the fault it meets."""
        with self._lock:
            self._requests.append(request)
        return self._faults.take(request.path)

    def answer(self, request: ShopRequest) -> tuple[int, dict[str, Any]]:
        """Do what a request asks for; returns status and body."""
        return self._store.answer(request.method, request.path, request.body, request.key)

    def pause(self, seconds: float | None) -> None:
        """Wait, but not beyond the end of the server; None waits for that end."""
        self._closing.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, shop: Shop) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.shop = shop

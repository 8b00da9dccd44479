"""The HTTP server of `makegood monitor`: one application, made of routers. Needs the extra `[server]`."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Callable
from http import HTTPStatus

import uvicorn
from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from makegood.errors import MakegoodError, NotAllowed

GRACE_S = 3
"""How long a request that is under way may take once the server is told to stop; a scrape takes no longer."""

PROBLEM = "application/problem+json"


class CannotListen(MakegoodError):
    """Port 9464 of 127.0.0.1 is taken; stop what listens there, or choose another with --port."""


def make_app(*routers: APIRouter) -> FastAPI:
    """The application. What no router serves is answered with problem+json (RFC 9457)."""
    app = FastAPI(title="makegood", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(HTTPException, _problem)
    for router in routers:
        app.include_router(router)
    return app


def metrics_router(registry: CollectorRegistry) -> APIRouter:
    """`/metrics` in the text format that every Prometheus reads. A function of its own thread, for it waits for the store."""
    router = APIRouter()

    @router.api_route("/metrics", methods=["GET", "HEAD"], response_model=None)
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router


def health_router(not_ready: Callable[[], str]) -> APIRouter:
    """`/healthz`: the process lives. `/readyz`: `not_ready()` finds nothing in the way of an answer with numbers."""
    router = APIRouter()

    @router.api_route("/healthz", methods=["GET", "HEAD"], response_model=None)
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @router.api_route("/readyz", methods=["GET", "HEAD"], response_model=None)
    def readyz() -> Response:
        why = not_ready()
        if why:
            return JSONResponse({"status": "not ready", "reason": why}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "ok"})

    return router


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    body = {"type": "about:blank", "title": status.phrase, "status": status.value}
    if status == HTTPStatus.NOT_FOUND:
        body["detail"] = f"There is no {request.url.path[:200]} here; the metrics are at /metrics."
    return JSONResponse(body, status, error.headers, media_type=PROBLEM)


# --- listening --------------------------------------------------------------------------------------------------------


def listen(host: str, port: int, *, allow_remote: bool) -> socket.socket:
    """A listening socket. Raises NotAllowed for an address that others can reach, unless they may; CannotListen."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(
            f"There is no address {host[:200]!r} to listen on ({error}); correct --host."
        ) from None
    if not allow_remote and not all(_is_loopback(str(address[0])) for *_, address in found):
        raise NotAllowed(
            f"{host!r} can be reached from other machines, and nobody is asked who he is; listen on 127.0.0.1, or say "
            "--allow-remote if whoever reaches the port may read the numbers."
        )
    why = ""
    for family, *_, address in found:  # localhost may name two, of which one is not there
        try:
            return socket.create_server(address[:2], family=family)
        except OSError as error:
            why = why or (os.strerror(error.errno) if error.errno else str(error)).lower()
    raise CannotListen(
        f"Port {port} of {host} cannot be listened on ({why}); stop what listens there, or choose another with --port."
    )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def address_of(listener: socket.socket) -> str:
    """`http://127.0.0.1:9464`."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: FastAPI, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then end what is under way and return. Needs the main thread."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        ws="none",
    )
    server = _Server(config, on_ready)

    def stop(signal_number: int, frame: object) -> None:
        server.should_exit = True

    # uvicorn raises again what it was stopped by, for whoever handled it before: here nobody is to die of it.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    asyncio.run(server.serve([listener]))


class _Server(uvicorn.Server):
    """Says when it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

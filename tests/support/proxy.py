"""A TCP proxy in front of a server that loses replies: the server has executed, the client never hears of it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

QUIET_S = 0.05
"""A server that has sent nothing for so long has answered everything that it was sent."""


@dataclass(slots=True)
class Cut:
    """Lose replies from the first request on that contains `when`: let `letting_through` bytes pass, drop the rest."""

    when: bytes
    letting_through: int = 0


@dataclass(slots=True)
class LossyProxy:
    """Listens on a port of 127.0.0.1; `cuts` are used up one by one, `lost` says how many were."""

    server_url: str
    cuts: list[Cut] = field(default_factory=list)
    lost: int = 0
    _listener: socket.socket = field(init=False)
    _sockets: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def cut(self, when: bytes, *, letting_through: int = 0) -> None:
        """Lose the replies to the next request that contains these bytes."""
        self.cuts.append(Cut(when, letting_through))

    def close(self) -> None:
        """Stop listening and close every connection."""
        for each in (self._listener, *self._sockets):
            _shut(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = _connect(self.server_url)
                self._sockets += [client, server]
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Request and reply alternate: what a client sends is passed on whole, then what the server answers."""
        with contextlib.suppress(OSError):
            while request := client.recv(1 << 20):
                cut = next((each for each in self.cuts if each.when in request), None)
                server.sendall(request)
                if cut is None:
                    self._answer(client, server)
                    continue
                self.cuts.remove(cut)
                self.lost += 1
                reply = _all_of(client, server)
                client.sendall(reply[: cut.letting_through])
                break
        _shut(client)
        _shut(server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        """Pass replies on until the client speaks again."""
        while True:
            ready, _, _ = select.select([client, server], [], [])
            if server in ready:
                reply = server.recv(1 << 20)
                if not reply:
                    raise OSError("the server closed the connection")
                client.sendall(reply)
            if client in ready:
                return


def _all_of(client: socket.socket, server: socket.socket) -> bytes:
    """Pass on the rest of the request and collect everything that the server answers, until it is quiet."""
    reply = b""
    while ready := select.select([client, server], [], [], QUIET_S if reply else None)[0]:
        if client in ready:
            server.sendall(client.recv(1 << 20))
        if server in ready:
            reply += server.recv(1 << 20)
    return reply


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        server = socket.socket(socket.AF_UNIX)
        server.connect(parts.path)
        return server
    return socket.create_connection((parts.hostname, parts.port))


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextmanager
def lossy(server_url: str) -> Iterator[LossyProxy]:
    """A proxy in front of a server, closed at the end."""
    proxy = LossyProxy(server_url)
    try:
        yield proxy
    finally:
        proxy.close()

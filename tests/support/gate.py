"""A TCP relay in front of a server that can be cut, frozen, pointed elsewhere, or lose what the server says."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit


class Gate:
    """Relays bytes both ways between 127.0.0.1:port and a server. `cuts` counts connections that were cut."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.cuts = 0
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._open = threading.Event()
        self._open.set()
        self._refuses = False
        self._silent: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="gate", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The server's URL as clients use it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> int:
        """Reset every connection; returns how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _shut(*pair)
        self.cuts += len(pairs)
        return len(pairs)

    def freeze(self) -> None:
        """Keep every connection open and pass nothing on: a half-open network."""
        self._open.clear()

    def thaw(self) -> None:
        """Pass everything on that has waited."""
        self._open.set()

    def refuse(self, *, refuse: bool = True) -> None:
        """Close new connections at once (or no longer)."""
        self._refuses = refuse

    def deafen(self) -> None:
        """The connections that are open now lead nowhere from here on, and nobody is told; new ones work."""
        with self._lock:
            self._silent.update(each for pair in self._pairs for each in pair)

    def point_to(self, target: str) -> None:
        """New connections go to another server; those that are open stay."""
        self.target = target

    def close(self) -> None:
        """Stop."""
        self._open.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            try:
                server = _connect(self.target)
            except OSError:
                client.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(1 << 16):
                self._open.wait()
                if source not in self._silent:
                    sink.sendall(data)
        _shut(source, sink)
        with self._lock:
            self._pairs = [pair for pair in self._pairs if source not in pair]


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        server = socket.socket(socket.AF_UNIX)
        server.connect(parts.path)
        return server
    server = socket.create_connection((parts.hostname, parts.port), timeout=5)
    server.settimeout(None)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


def _shut(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()

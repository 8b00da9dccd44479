"""Fixtures with a real Valkey. Nothing here needs a server that was there before."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import redis

from makegood.workers.embedded import EmbeddedServer
from makegood.workers.embedded_process import free_port


class ServerFactory(Protocol):
    """Makes a started server of the test's own; all are stopped at its end."""

    def __call__(self, *, unix_socket: bool = True, maxmemory: int | None = None) -> EmbeddedServer: ...


def kill(server: EmbeddedServer) -> None:
    """End the server with SIGKILL and wait until its process is gone; start() brings it back with its data."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    server.wait(timeout_s=30)


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedServer]:
    """The session's Valkey (fsync on every write, noeviction, private unix socket). Do not kill or reconfigure it."""
    with EmbeddedServer(ephemeral=True) as server:
        yield server


@pytest.fixture
def store_url(valkey: EmbeddedServer) -> str:
    """The URL of the session's Valkey with nothing in it and with no client of an earlier test connected."""
    with redis.Redis.from_url(valkey.url) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        client.flushall()
    return valkey.url


@pytest.fixture
def fresh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFactory]:
    """A factory for servers that the test may kill, restart, fill up or reconfigure."""
    servers: list[EmbeddedServer] = []

    def make(*, unix_socket: bool = True, maxmemory: int | None = None) -> EmbeddedServer:
        data_dir: Path = tmp_path_factory.mktemp("valkey")
        server = EmbeddedServer(data_dir, ephemeral=False, unix_socket=unix_socket, maxmemory=maxmemory)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.stop()


__all__ = ["ServerFactory", "free_port", "fresh_server", "kill", "store_url", "valkey"]

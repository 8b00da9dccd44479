"""Debian's Redis 7.0 as a store, with the durability that the store needs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from makegood.workers.embedded_process import free_port


class RedisServer:
    """A started `redis-server`."""

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.fail(
                "Redis is not installed; run: apt-get install -y --no-install-recommends redis-server"
            )
        self.port = free_port()
        self._log = (folder / "redis.log").open("ab")
        command = [
            binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(folder),
            "--save",
            "",
        ]
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
        self._process = subprocess.Popen([*command, *durable], stdout=self._log, stderr=self._log)
        with redis.Redis.from_url(self.url) as client:
            until_s = time.monotonic() + 30
            while True:
                try:
                    self.version = str(client.info("server")["redis_version"])
                    return
                except redis.ConnectionError:
                    assert time.monotonic() < until_s, "redis-server does not answer"
                    time.sleep(0.02)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()


@pytest.fixture
def redis7(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of the test's own."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()

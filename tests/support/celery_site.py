"""Real worker processes with a store, a broker, a scripted model and a shop of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from makegood import Client
from makegood.store.ops.catalog import read_aside
from makegood.tasks.wakeup import RUNS_QUEUE
from makegood.testing import Behaviour, Provider, Reply, RequestRecord, Signal, Stall, Status
from makegood.workers.embedded import EmbeddedServer
from support.engine import LONG_S, assert_balanced, calls

TESTS = Path(__file__).parents[1]


def answer(request: RequestRecord) -> Behaviour:
    """The input is a list of words, one per step: `act:3`, `look:1`, `hang:1`, `wait:name`, `429:100`; then it answers."""
    steps = sum(1 for message in request.messages if message["role"] == "assistant")
    words = next(m["content"] for m in request.messages if m["role"] == "user").split()
    asked = [word for word in words if ":" in word]
    if steps >= len(asked):
        return Reply("done: " + " ".join(request.results.values()))
    name, _, value = asked[steps].partition(":")
    if name == "429":
        return Status(429, headers={"retry-after": value})
    return calls((name, {"n": int(value)}))


@dataclass
class Site:
    """A store, a model and a shop that worker processes use, and those processes."""

    server: EmbeddedServer = field(default_factory=lambda: EmbeddedServer(ephemeral=True).start())
    gates: dict[str, Signal] = field(default_factory=dict)
    script: Callable[[RequestRecord], Behaviour] = answer
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    client: Client = field(init=False)
    model: Provider = field(init=False)
    shop: Provider = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(self.server.url)
        self.model = Provider(lambda request: self.script(request)).start()  # noqa: PLW0108  # tests exchange it
        self.shop = Provider(self.serve).start()

    def start(
        self, *, queue: str = RUNS_QUEUE, concurrency: int = 40, **settings: Any
    ) -> subprocess.Popen[bytes]:
        """Start a worker process; returns once it consumes."""
        process, ready = self.launch(queue=queue, concurrency=concurrency, **settings)
        assert os.read(ready, 1), "the process ended before it was ready"
        return process

    def launch(
        self, *, queue: str = RUNS_QUEUE, concurrency: int = 40, **settings: Any
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Start a worker process; the file descriptor says when it consumes."""
        read_fd, write_fd = os.pipe()
        env = {key: value for key, value in os.environ.items() if not key.startswith("MAKEGOOD_")}
        env |= {"PYTHONPATH": str(TESTS), "TEST_MODEL_URL": self.model.url, "TEST_SHOP_URL": self.shop.url}
        env |= {"MAKEGOOD_REDIS_URL": self.server.url, "MAKEGOOD_AGENTS": "support.celery_agents"}
        env |= {
            "MAKEGOOD_LOOP_LAG_MS": "60000",
            **{f"MAKEGOOD_{k.upper()}": str(v) for k, v in settings.items()},
        }
        command = [sys.executable, "-m", "makegood.workers.process", "--queue", queue]
        command += ["--concurrency", str(concurrency), "--ready-fd", str(write_fd)]
        process = subprocess.Popen(command, env=env, pass_fds=(write_fd,), stdin=subprocess.DEVNULL)
        os.close(write_fd)
        self.processes.append(process)
        return process, read_fd

    def gate(self, path: str) -> Signal:
        """From now on the shop answers this path only once the signal is set."""
        return self.gates.setdefault(path, Signal())

    def serve(self, request: RequestRecord) -> Behaviour:
        """The shop."""
        gate = self.gates.get(request.path)
        if gate is None or gate.is_set():
            return Status(200, {"did": request.path})
        return Stall(release=gate, reply=Reply())

    @property
    def waiting(self) -> int:
        """Messages in the queue, and those a worker has taken and not acknowledged."""
        redis = self.client.store.redis
        return int(redis.llen(RUNS_QUEUE)) + int(redis.hlen("unacked"))

    def aside(self) -> list[dict[str, str]]:
        """Messages set aside, newest first."""
        found: list[dict[str, str]] = self.client.store.do(read_aside(100))
        return found

    def close(self) -> None:
        """End everything; every history that the model was sent must balance."""
        for process in self.processes:
            process.kill()
            process.wait(LONG_S)
        self.client.close()
        for provider in (self.model, self.shop):
            provider.stop()
        self.server.stop()
        for request in self.model.requests:
            assert_balanced(request.messages)


@contextmanager
def site_factory() -> Iterator[Callable[[], Site]]:
    """A factory of sites without workers; all end with it."""
    sites: list[Site] = []

    def make() -> Site:
        sites.append(Site())
        return sites[-1]

    yield make
    for site in sites:
        site.close()

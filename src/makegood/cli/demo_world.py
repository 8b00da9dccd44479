"""What `makegood demo` runs on: server, shop, model and worker, all real, all gone at its end."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from makegood.cli.demo_model import answer
from makegood.cli.supervise import start_supervisor
from makegood.errors import MakegoodError, WaitTimeout
from makegood.tasks.client import Client
from makegood.testing import Provider
from makegood.testing.shop import Shop
from makegood.workers.embedded import EmbeddedServer

READY_LIMIT_S = 240.0
"""How long a worker may take to be ready. It takes 6 to 10 s on two cores, nearly all of it the import of LiteLLM."""

STOP_LIMIT_S = 10.0
COMMAND_LIMIT_S = 60.0
"""How long a command may take. It takes about half a second."""

SLOTS = 20
LEASE_S = 120
"""Long: a machine that is very busy is not taken for a dead worker, and what is continued here waited for no lease."""

KEPT_LINES = 20


@dataclass(frozen=True, slots=True)
class World:
    """Everything a scene may look at."""

    client: Client
    shop: Shop
    model: Provider
    env: Mapping[str, str]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `makegood WORDS` as anybody would, in a process of its own. Raises WaitTimeout."""
        try:
            return subprocess.run(
                [sys.executable, "-m", "makegood", *words],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=self.env,
                timeout=COMMAND_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise WaitTimeout(
                f"makegood {' '.join(words)} did not end within {COMMAND_LIMIT_S:g} s."
            ) from None


class WorkerFailed(MakegoodError):
    """The demo's worker did not get ready: its last words were …"""


@contextlib.contextmanager
def world(say: Callable[[str], None]) -> Iterator[World]:
    """Start everything; whatever happens, also on Ctrl-C and SIGTERM, nothing is left when this returns."""
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _end)
    with contextlib.ExitStack() as stack:
        stack.callback(_hear_signals)
        server = stack.enter_context(EmbeddedServer(ephemeral=True))
        shop = stack.enter_context(Shop())
        model = stack.enter_context(Provider(answer))
        say("Starting a Valkey server, a shop, a model and a worker on this machine …")
        env = environment(server.url, shop.url, model.url)
        worker = DemoWorker(env)
        stack.callback(worker.stop)
        stack.callback(_ignore_signals)
        worker.wait_until_ready()
        client = stack.enter_context(Client(server.url, broker_url=server.url))
        yield World(client, shop, model, env)


def environment(store_url: str, shop_url: str, model_url: str) -> dict[str, str]:
    """The worker's environment: ours, without the settings of other installations and without proxies."""
    kept = {name: value for name, value in os.environ.items() if not _foreign(name)}
    return (
        kept
        | {
            "MAKEGOOD_REDIS_URL": store_url,
            "MAKEGOOD_AGENTS": "makegood.cli.demo_agents",
            "MAKEGOOD_LOG_LEVEL": "ERROR",
            "MAKEGOOD_CONCURRENCY": str(SLOTS),
            "MAKEGOOD_GRACE_S": "2",
            "MAKEGOOD_PROCESSES": "1",  # what a scene does to a breaker is known to the process of the next run at once
            "MAKEGOOD_LEASE_S": str(LEASE_S),
            "DEMO_SHOP_URL": shop_url,
            "DEMO_MODEL_URL": model_url,
        }
    )


def _foreign(name: str) -> bool:
    upper = name.upper()
    return upper.startswith(("MAKEGOOD_", "LITELLM_")) or upper.endswith("_PROXY") or upper == "SENTRY_DSN"


class DemoWorker:
    """The supervised worker as a process in a session of its own, so that Ctrl-C reaches the demo alone."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._last: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self._heard = threading.Event()
        self._ready = False
        self._process = start_supervisor(("runs", "cleanup"), env, stderr=subprocess.PIPE)
        self._listener = threading.Thread(target=self._listen, name="demo-worker", daemon=True)
        self._listener.start()

    def wait_until_ready(self) -> None:
        """Return once the worker consumes. Raises WorkerFailed with its last lines."""
        if not self._heard.wait(READY_LIMIT_S) or not self._ready:
            said = " / ".join(self._last) or "nothing"
            raise WorkerFailed(f"The demo's worker did not get ready; it said: {said}")

    def stop(self) -> None:
        """SIGTERM, SIGTERM again, SIGKILL; its children die with it."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_LIMIT_S)
                break
            except subprocess.TimeoutExpired:
                continue
        self._listener.join(STOP_LIMIT_S)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._last.append(line.strip())
                if line.startswith("ready "):
                    self._ready = True
                    self._heard.set()
        self._heard.set()


def _end(number: int, _: object) -> NoReturn:
    """A signal that ends the demo ends it through its clean-up."""
    raise SystemExit(128 + number)


def _ignore_signals() -> None:
    """Nothing interrupts the clean-up, which has limits of its own."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)


def _hear_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)

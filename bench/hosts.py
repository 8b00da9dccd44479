"""Worker hosts: a supervisor with its Celery processes, with the instant model in place of LiteLLM.

`python -m bench.hosts` is such a host. It never waits before a restart, so that the next kill finds all processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import redis

from makegood import Client
from makegood.store.keys import all_prefixes
from makegood.tasks.wakeup import CLEANUP_QUEUE, RUNS_QUEUE, WAKE_TASK, celery_config
from makegood.urls import broker_url_for

HELD_QUEUE = "bench.held"
LONG_S = 120.0


class Host:
    """A started host: processes of `concurrency` slots each, `processes` for runs and `cleaners` for cleanups."""

    def __init__(
        self,
        url: str,
        *,
        processes: int,
        concurrency: int,
        cleaners: int = 0,
        lease_s: float = 10.0,
        **env: str,
    ) -> None:
        self._url, self._processes = url, processes + cleaners
        self._env = {
            **os.environ,
            **env,
            "MAKEGOOD_REDIS_URL": url,
            "MAKEGOOD_BROKER_URL": url,
            "MAKEGOOD_AGENTS": "bench.scripted:agent",
            "MAKEGOOD_LEASE_S": str(lease_s),
            "MAKEGOOD_LOG_LEVEL": "ERROR",
            "BENCH_SLOTS": f"{processes} {cleaners} {concurrency}",
        }
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.hosts"], env=self._env, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("bench host ready"):
                return self
            sys.stderr.write(line)
        raise RuntimeError("the benchmark's worker host did not start")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        return self._process.pid

    def workers(self) -> list[psutil.Process]:
        """The worker processes that live now."""
        return psutil.Process(self.pid).children()

    @property
    def is_whole(self) -> bool:
        """Whether as many processes consume as there should be."""
        with redis.Redis.from_url(self._url) as client:
            waiting = [each for each in client.client_list() if each["cmd"] == "brpop"]
        return len(self.workers()) == self._processes and len(waiting) == self._processes

    def freeze(self) -> None:
        """Stop every process of the host, the supervisor first, as when its machine is paused."""
        for each in self._all():
            each.suspend()

    def thaw(self) -> None:
        """Let them go on."""
        for each in self._all():
            each.resume()

    def kill(self) -> None:
        """The host is gone: SIGKILL for all its processes."""
        for each in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()

    def _all(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def announce_at_once(url: str, arguments: Sequence[Any], task: str = WAKE_TASK) -> float:
    """Put one message per argument into a queue that nobody reads, then make it the workers' queue in one command.

    So a producer does not take part in what is measured. Returns the monotonic time of that command.
    """
    from celery import Celery

    with Celery("bench", set_as_current=False) as app:
        app.conf.update(celery_config(broker_url_for(url)))
        with app.producer_pool.acquire() as producer:
            for argument in arguments:
                app.send_task(task, args=(argument,), queue=HELD_QUEUE, ignore_result=True, producer=producer)
    began_s = time.monotonic()
    redis.Redis.from_url(url).rename(HELD_QUEUE, RUNS_QUEUE)
    return began_s


def begun_at(folder: str, name: str) -> list[tuple[int, float]]:
    """Where and when calls of this name began: (pid, monotonic seconds)."""
    notes = Path(folder, "begun")
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(int(pid), float(at_s)) for who, pid, at_s in map(str.split, lines) if who == name]


def ended_runs(client: Client, state: str = "succeeded") -> int:
    """How many runs of the benchmark's agent are in a state: the sizes of sixteen sets."""
    store: Any = client.store.redis
    with store.pipeline(transaction=False) as pipe:
        for prefix in all_prefixes():
            pipe.zcard(f"{prefix}st:bench:{state}")
        return int(sum(pipe.execute()))


def wait_until(done: Callable[[], bool], *, pause_s: float = 0.005, within_s: float = LONG_S) -> None:
    """Look until it is so. Raises TimeoutError."""
    until_s = time.monotonic() + within_s
    while not done():
        if time.monotonic() > until_s:
            raise TimeoutError(f"what the benchmark waits for did not come within {within_s:g} s")
        time.sleep(pause_s)


def main() -> None:
    """Be a host."""
    from bench.scripted import InstantModel
    from makegood.settings import Settings
    from makegood.workers import process, runtime, supervisor
    from makegood.workers.children import Slot

    count, cleaners, concurrency = map(int, os.environ["BENCH_SLOTS"].split())
    gate = os.environ.get("BENCH_MODEL_GATE")
    runtime.litellm_adapter = lambda: InstantModel(
        gate=gate
    )  # what a runtime without an adapter makes for itself
    supervisor.RESTART_MIN_S = 0.0
    process.preload(model=False)
    _register_noop()
    slots = [Slot(RUNS_QUEUE, concurrency, number) for number in range(count)]
    slots += [Slot(CLEANUP_QUEUE, concurrency, number) for number in range(cleaners)]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(supervisor.Supervisor(slots, Settings.load(), env={}, announce="bench host ready").run())


def _register_noop() -> None:
    """A plain Celery task beside makegood's own, on the same application, pool and queue."""
    from makegood.workers.app import app

    done = 0

    @app.task(name="bench.noop", ignore_result=True)  # type: ignore[untyped-decorator]
    def noop(last: int) -> None:
        nonlocal done
        done += 1
        if done >= last:
            done = 0
            with redis.Redis.from_url(os.environ["MAKEGOOD_REDIS_URL"]) as client:
                client.incr("bench:noops")


if __name__ == "__main__":
    main()

"""Runs in this process or in worker processes of ours, without Celery in between: what the engine itself can do.

`python -m bench.engine` is such a worker process: it says `ready`, reads hints (one JSON list per line), executes them
all at once and answers with times.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.scripted import InstantModel, agent
from makegood import Client
from makegood.settings import Settings
from makegood.tasks.model.adapter import ModelAdapter
from makegood.workers.process import calm_collector
from makegood.workers.runtime import Runtime


@contextmanager
def runtime(url: str, adapter: Callable[[], ModelAdapter] = InstantModel) -> Iterator[Runtime]:
    """A started worker runtime in this process."""
    made = Runtime(Settings.load(redis_url=url, broker_url=url), {agent.name: agent}, adapter=adapter)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def producer(url: str) -> Iterator[Client]:
    """A client whose runs are not announced: the benchmark decides when they begin."""
    with Client(url, broker_url=url) as client:
        client.publisher.wake = lambda run_id, queue="": None  # type: ignore[method-assign]
        yield client


def execute_all(worker: Runtime, hints: Sequence[str]) -> None:
    """Claim and execute as many runs as there are hints, all at once; returns when they have ended."""

    async def together() -> None:
        await asyncio.gather(*(worker._work(hint) for hint in hints))

    asyncio.run_coroutine_threadsafe(together(), worker._loop).result()


@contextmanager
def processes(url: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Worker processes that are ready."""
    env = {**os.environ, "MAKEGOOD_REDIS_URL": url, "MAKEGOOD_BROKER_URL": url}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.engine"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        for each in started:
            _line(each)
        yield started
    finally:
        for each in started:
            each.communicate("")


def share(workers: Sequence[subprocess.Popen[str]], hints: Sequence[str]) -> list[dict[str, Any]]:
    """Let the workers execute a share each, at the same time; returns what each says of itself."""
    for number, each in enumerate(workers):
        assert each.stdin is not None
        each.stdin.write(json.dumps(list(hints[number :: len(workers)])) + "\n")
        each.stdin.flush()
    return [json.loads(_line(each)) for each in workers]


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker process of the benchmark ended with code {worker.wait()}")
    return line


def main() -> None:
    """Be a worker process."""
    calm_collector()
    with runtime(os.environ["MAKEGOOD_REDIS_URL"]) as worker:
        print("ready", flush=True)
        for line in sys.stdin:
            began_s, cpu_s = time.monotonic(), time.process_time()
            execute_all(worker, json.loads(line))
            used_s = time.process_time() - cpu_s
            print(json.dumps({"began_s": began_s, "ended_s": time.monotonic(), "cpu_s": used_s}), flush=True)


if __name__ == "__main__":
    main()

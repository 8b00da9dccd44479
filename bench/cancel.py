"""From a client's cancel to a run whose work has stopped, when the work cooperates."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

from bench.engine import execute_all, producer, runtime
from bench.hosts import wait_until
from bench.report import Outcome, alone, quantile
from makegood.workers.embedded import EmbeddedServer


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--runs", type=int, default=200, help="runs, one after the other")


def measure(chosen: argparse.Namespace) -> Outcome:
    """Each run waits in a tool until it is told to stop; quiet is its terminal state in the store."""
    took_ms: list[float] = []
    with (
        EmbeddedServer(ephemeral=True) as server,
        producer(server.url) as client,
        runtime(server.url) as worker,
        ThreadPoolExecutor(1) as pool,
    ):
        for number in range(chosen.runs):
            run = client.enqueue("bench", f"1 1 cooperative c{number}")
            going = pool.submit(execute_all, worker, [run.id])
            wait_until(lambda: run.info()["step"] == 1)  # noqa: B023
            time.sleep(number % 10 / 100)  # cancels come at any moment between two looks of the worker
            began_s = time.monotonic()
            run.cancel()
            wait_until(lambda: run.status() == "cancelled", pause_s=0.001)  # noqa: B023
            took_ms.append((time.monotonic() - began_s) * 1000)
            going.result()
    how = f"{chosen.runs} runs, each in an async tool that waits on ctx.cancelled, one at a time; polled every 1 ms."
    outcome = Outcome("cancel", how)
    p99 = quantile(took_ms, 0.99)
    outcome.add("cancel to quiet, p50", quantile(took_ms, 0.5), "ms")
    outcome.add("cancel to quiet, p99", p99, "ms", "<= 200", p99 <= 200)
    return outcome


if __name__ == "__main__":
    alone(measure, options)

"""Overhead of one step: an instant model decision and an instant effectful call, one run at a time."""

from __future__ import annotations

import argparse
import itertools
import time

import redis

from bench.engine import execute_all, producer, runtime
from bench.report import Outcome, alone, quantile
from bench.scripted import InstantModel
from makegood.workers.embedded import EmbeddedServer
from makegood.workers.process import calm_collector

VALUE = b"x" * 512


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--runs", type=int, default=60, help="runs, one after the other")
    parser.add_argument("--steps", type=int, default=10, help="steps of each")


def measure(chosen: argparse.Namespace) -> Outcome:
    """The time between two questions to the model is one step; after every run the server's own write is measured."""
    asked: list[float] = []
    steps: list[float] = []
    writes: list[float] = []
    calm_collector()
    with EmbeddedServer(ephemeral=True) as server, producer(server.url) as client:
        plain = redis.Redis.from_url(server.url)
        with runtime(
            server.url, lambda: InstantModel(asked=lambda: asked.append(time.perf_counter()))
        ) as worker:
            for number in range(chosen.runs + 3):
                asked.clear()
                execute_all(worker, [client.enqueue("bench", f"{chosen.steps} 1").id])
                if number < 3:  # the first runs load what is loaded once
                    continue
                steps += [(after - before) * 1000 for before, after in itertools.pairwise(asked)]
                for _ in range(chosen.steps):
                    began_s = time.perf_counter()
                    plain.set("x", VALUE)
                    writes.append((time.perf_counter() - began_s) * 1000)
    how = (
        f"{chosen.runs} runs x {chosen.steps} steps, one at a time, no Celery; after each run {chosen.steps} SETs of "
        f"{len(VALUE)} bytes by a blocking client on the same server."
    )
    outcome = Outcome("step", how)
    p50, write_p50 = quantile(steps, 0.5), quantile(writes, 0.5)
    outcome.add("one step, p50", p50, "ms", "<= 1.0", p50 <= 1.0)
    outcome.add("one step, p99", quantile(steps, 0.99), "ms")
    outcome.add("the server's fsync'd SET, p50", write_p50, "ms")
    outcome.add("the server's fsync'd SET, p99", quantile(writes, 0.99), "ms")
    outcome.add("one step p50 / SET p50", p50 / write_p50, "x", "<= 3", p50 <= 3 * write_p50)
    return outcome


if __name__ == "__main__":
    alone(measure, options)

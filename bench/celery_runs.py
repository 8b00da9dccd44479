"""Runs per second and core through real Celery, against a no-op Celery task in the same process, pool and queue."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import psutil
import redis

from bench.engine import producer
from bench.hosts import Host, announce_at_once, ended_runs, wait_until
from bench.report import Outcome, alone, quantile
from makegood.workers.embedded import EmbeddedServer


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--runs", type=int, default=300, help="runs, and no-op tasks, per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=20, help="slots of the worker process")


def measure(chosen: argparse.Namespace) -> Outcome:
    """Both by the worker's CPU time, which a busy machine does not change much, and by the wall clock."""
    cpu: dict[str, list[float]] = {"noop": [], "run": []}
    wall: dict[str, list[float]] = {"noop": [], "run": []}
    with (
        EmbeddedServer(ephemeral=True) as server,
        producer(server.url) as client,
        Host(server.url, processes=1, concurrency=chosen.concurrency) as host,
    ):
        worker = host.workers()[0]
        for number in range(chosen.rounds + 1):
            runs = [client.enqueue("bench", "0 0").id for _ in range(chosen.runs)]
            wanted = (number + 1) * chosen.runs
            noop = _noops(server.url, worker, chosen.runs)
            run = _timed(
                worker,
                lambda: announce_at_once(server.url, runs),  # noqa: B023
                lambda: ended_runs(client) >= wanted,  # noqa: B023
            )
            if number:  # the first round warms up
                for kind, (cpu_s, wall_s) in (("noop", noop), ("run", run)):
                    cpu[kind].append(cpu_s / chosen.runs * 1000)
                    wall[kind].append(chosen.runs / wall_s)
    return _outcome(chosen, cpu, wall)


def _outcome(
    chosen: argparse.Namespace, cpu: dict[str, list[float]], wall: dict[str, list[float]]
) -> Outcome:
    how = (
        f"{chosen.runs} one-step runs, then {chosen.runs} no-op tasks, {chosen.rounds} rounds, one worker process with "
        f"{chosen.concurrency} threads; all messages are in the queue before the clock starts; medians."
    )
    outcome = Outcome("celery_runs", how)
    run_ms, noop_ms = quantile(cpu["run"], 0.5), quantile(cpu["noop"], 0.5)
    run_rate, noop_rate = quantile(wall["run"], 0.5), quantile(wall["noop"], 0.5)
    outcome.add("runs per second of worker CPU", 1000 / run_ms, "/s")
    outcome.add("no-op tasks per second of worker CPU", 1000 / noop_ms, "/s")
    outcome.add("CPU of a run / CPU of a no-op", run_ms / noop_ms, "x", "<= 2", run_ms <= 2 * noop_ms)
    outcome.add("runs per second, wall clock", run_rate, "/s")
    outcome.add("no-op tasks per second, wall clock", noop_rate, "/s")
    outcome.add(
        "no-op rate / run rate, wall clock", noop_rate / run_rate, "x", "<= 2", noop_rate <= 2 * run_rate
    )
    return outcome


def _noops(url: str, worker: psutil.Process, count: int) -> tuple[float, float]:
    done = redis.Redis.from_url(url)
    before = int(done.get("bench:noops") or 0)
    return _timed(
        worker,
        lambda: announce_at_once(url, [count] * count, task="bench.noop"),
        lambda: int(done.get("bench:noops") or 0) > before,
    )


def _timed(
    worker: psutil.Process, begin: Callable[[], float], ended: Callable[[], bool]
) -> tuple[float, float]:
    """(CPU seconds of the worker, wall seconds) from the moment the messages are there."""
    before = worker.cpu_times()
    began_s: float = begin()
    wait_until(ended)
    wall_s = time.monotonic() - began_s
    after = worker.cpu_times()
    return after.user + after.system - before.user - before.system, wall_s


if __name__ == "__main__":
    alone(measure, options)

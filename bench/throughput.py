"""Steps per second: 200 runs of 10 steps at once, with one and with two worker processes."""

from __future__ import annotations

import argparse
import time

from bench.engine import processes, producer, share
from bench.hosts import Host, announce_at_once, ended_runs, wait_until
from bench.report import Outcome, alone
from makegood.workers.embedded import EmbeddedServer


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--runs", type=int, default=200, help="runs at once")
    parser.add_argument("--steps", type=int, default=10, help="steps of each")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds; the best counts, all are in the spread"
    )


def measure(chosen: argparse.Namespace) -> Outcome:
    """First the engine alone, then the same through Celery under the supervisor."""
    how = f"{chosen.runs} runs x {chosen.steps} steps at once, best of {chosen.rounds} rounds; a step has one call."
    outcome = Outcome("throughput", how)
    for count in (1, 2):
        rates, cpu_ms = _engine(chosen, count)
        met = max(rates) >= 1500 if count == 2 else None
        target = ">= 1500" if count == 2 else ""
        outcome.add(f"steps per second, engine in {count} process(es)", max(rates), "/s", target, met)
        outcome.add(f"  the slowest round of {count} process(es)", min(rates), "/s")
        outcome.add(f"  CPU of a worker per step, {count} process(es)", cpu_ms, "ms")
    for count in (1, 2):
        rates = _celery(chosen, count)
        outcome.add(f"steps per second, through Celery, {count} process(es)", max(rates), "/s")
    return outcome


def _engine(chosen: argparse.Namespace, count: int) -> tuple[list[float], float]:
    rates, cpu_s = [], []
    total = chosen.runs * chosen.steps
    with (
        EmbeddedServer(ephemeral=True) as server,
        producer(server.url) as client,
        processes(server.url, count) as workers,
    ):
        share(workers, [client.enqueue("bench", "2 1").id for _ in range(4 * count)])
        for _ in range(chosen.rounds):
            hints = [client.enqueue("bench", f"{chosen.steps} 1").id for _ in range(chosen.runs)]
            said = share(workers, hints)
            took_s = max(each["ended_s"] for each in said) - min(each["began_s"] for each in said)
            rates.append(total / took_s)
            cpu_s.append(sum(each["cpu_s"] for each in said))
    return rates, min(cpu_s) / total * 1000


def _celery(chosen: argparse.Namespace, count: int) -> list[float]:
    rates = []
    with (
        EmbeddedServer(ephemeral=True) as server,
        producer(server.url) as client,
        Host(server.url, processes=count, concurrency=chosen.runs // count),
    ):
        for number in range(chosen.rounds):
            hints = [client.enqueue("bench", f"{chosen.steps} 1").id for _ in range(chosen.runs)]
            began_s = announce_at_once(server.url, hints)
            wait_until(lambda: ended_runs(client) >= chosen.runs * (number + 1), pause_s=0.02)  # noqa: B023
            rates.append(chosen.runs * chosen.steps / (time.monotonic() - began_s))
    return rates


if __name__ == "__main__":
    alone(measure, options)

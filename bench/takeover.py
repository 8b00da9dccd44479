"""SIGKILL of a worker process under the supervisor: how long until its run goes on in another process."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.hosts import Host, begun_at, wait_until
from bench.report import Outcome, alone, quantile
from makegood import Client
from makegood.workers.embedded import EmbeddedServer


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--kills", type=int, default=25)


def measure(chosen: argparse.Namespace) -> Outcome:
    """Each run's tool notes when and where it begins; its process is killed in it, and the tool begins again."""
    took_s: list[float] = []
    with (
        TemporaryDirectory(prefix="bench-") as folder,
        EmbeddedServer(ephemeral=True) as server,
        Client(server.url, broker_url=server.url) as client,
        Host(server.url, processes=2, concurrency=10, BENCH_FOLDER=folder) as host,
    ):
        for number in range(chosen.kills):
            run = client.enqueue("bench", f"1 1 held k{number}")
            name = f"k{number}-0"
            wait_until(lambda: len(begun_at(folder, name)) >= 1)  # noqa: B023
            pid, _ = begun_at(folder, name)[0]
            killed_s = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: len(begun_at(folder, name)) >= 2)  # noqa: B023
            took_s.append(begun_at(folder, name)[1][1] - killed_s)
            Path(folder, "go").touch()
            assert run.wait(30).state == "succeeded"
            Path(folder, "go").unlink()
            wait_until(lambda: host.is_whole)
    how = (
        f"{chosen.kills} kills, each in a tool, supervisor with 2 processes of 10 slots; from the kill to the tool's next "
        "begin in the other process."
    )
    outcome = Outcome("takeover", how)
    p99 = quantile(took_s, 0.99)
    outcome.add("SIGKILL to continued, p50", quantile(took_s, 0.5), "s")
    outcome.add("SIGKILL to continued, p99", p99, "s", "<= 1", p99 <= 1)
    outcome.add("SIGKILL to continued, longest", max(took_s), "s")
    return outcome


if __name__ == "__main__":
    alone(measure, options)

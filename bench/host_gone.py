"""The whole host is gone, supervisor and all: how long until its runs go on elsewhere."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.hosts import Host, begun_at, wait_until
from bench.report import Outcome, alone
from makegood import Client
from makegood.workers.embedded import EmbeddedServer


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--runs", type=int, default=10, help="runs on the host that goes")
    parser.add_argument("--lease", type=float, default=2.0, help="seconds")


def measure(chosen: argparse.Namespace) -> Outcome:
    """A host holds runs in a tool; a second one, which has watched the server for a lease, takes them over."""
    took_s: list[float] = []
    with (
        TemporaryDirectory(prefix="bench-") as folder,
        EmbeddedServer(ephemeral=True) as server,
        Client(server.url, broker_url=server.url) as client,
        ExitStack() as hosts,
    ):
        doomed = hosts.enter_context(_host(chosen, server.url, folder))
        for trial in range(chosen.trials):
            runs = [client.enqueue("bench", f"1 1 held t{trial}n{n}") for n in range(chosen.runs)]
            names = [f"t{trial}n{n}-0" for n in range(chosen.runs)]
            wait_until(lambda: all(begun_at(folder, name) for name in names))  # noqa: B023
            heir = hosts.enter_context(_host(chosen, server.url, folder))
            time.sleep(chosen.lease * 1.5 + 1)
            gone_s = time.monotonic()
            doomed.kill()
            wait_until(lambda: all(len(begun_at(folder, name)) >= 2 for name in names))  # noqa: B023
            took_s += [begun_at(folder, name)[1][1] - gone_s for name in names]
            Path(folder, "go").touch()
            for run in runs:
                assert run.wait(30).state == "succeeded"
            Path(folder, "go").unlink()
            doomed = heir
    how = (
        f"{chosen.trials} hosts with {chosen.runs} runs each in a tool are killed whole, lease {chosen.lease:g} s; from the "
        "kill to each tool's next begin on another host."
    )
    outcome = Outcome("host_gone", how)
    limit_s = chosen.lease + 1
    outcome.add("host gone to continued, fastest", min(took_s), "s")
    outcome.add(
        "host gone to continued, longest",
        max(took_s),
        "s",
        f"<= lease + 1 = {limit_s:g}",
        max(took_s) <= limit_s,
    )
    return outcome


def _host(chosen: argparse.Namespace, url: str, folder: str) -> Host:
    return Host(url, processes=1, concurrency=chosen.runs * 2, lease_s=chosen.lease, BENCH_FOLDER=folder)


if __name__ == "__main__":
    alone(measure, options)

"""Memory of 1,000 runs in flight in one process, all waiting on a model: the engine alone, and a whole worker."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.engine import execute_all, producer, runtime
from bench.hosts import Host, announce_at_once, ended_runs, wait_until
from bench.report import Outcome, alone
from bench.scripted import InstantModel
from makegood.workers.embedded import EmbeddedServer


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--runs", type=int, default=1000, help="runs in flight")


def measure(chosen: argparse.Namespace) -> Outcome:
    """RSS with all runs waiting, less RSS of the same process after a few runs and with none."""
    how = f"{chosen.runs} runs wait on the model's first answer in one process, then all go on to their end; RSS by psutil."
    outcome = Outcome("in_flight", how)
    kb, took_s = _engine(chosen.runs)
    outcome.add("KB per run over the idle process, engine alone", kb, "KB", "<= 60", kb <= 60)
    outcome.add("  from the answer to the last end", took_s, "s")
    kb, took_s = _worker(chosen.runs)
    outcome.add("KB per run over the idle process, with Celery's threads", kb, "KB", "<= 60", kb <= 60)
    outcome.add("  from the answer to the last end", took_s, "s")
    return outcome


def _engine(runs: int) -> tuple[float, float]:
    made: list[InstantModel] = []

    def adapter() -> InstantModel:
        made.append(InstantModel(asyncio.Event()))
        return made[0]

    with (
        EmbeddedServer(ephemeral=True) as server,
        producer(server.url) as client,
        runtime(server.url, adapter) as worker,
        ThreadPoolExecutor(1) as pool,
    ):
        hold, loop = made[0].hold, worker._loop
        assert hold is not None
        loop.call_soon_threadsafe(hold.set)
        execute_all(worker, [client.enqueue("bench", "1 1").id for _ in range(20)])
        loop.call_soon_threadsafe(hold.clear)
        hints = [client.enqueue("bench", "1 1").id for _ in range(runs)]
        made[0].waiting = 0
        idle_kb = _rss_kb(os.getpid())
        going = pool.submit(execute_all, worker, hints)
        wait_until(lambda: made[0].waiting >= runs)
        kb = (_rss_kb(os.getpid()) - idle_kb) / runs
        began_s = time.monotonic()
        loop.call_soon_threadsafe(hold.set)
        going.result()
        took_s = time.monotonic() - began_s
        _check_ended(ended_runs(client), runs + 20)
    return kb, took_s


def _worker(runs: int) -> tuple[float, float]:
    with TemporaryDirectory(prefix="bench-") as folder, EmbeddedServer(ephemeral=True) as server:
        gate = Path(folder, "open")
        gate.touch()
        with (
            producer(server.url) as client,
            Host(server.url, processes=1, concurrency=runs, BENCH_MODEL_GATE=str(gate)) as host,
        ):
            announce_at_once(server.url, [client.enqueue("bench", "1 1").id for _ in range(20)])
            wait_until(lambda: ended_runs(client) >= 20)
            gate.unlink()
            hints = [client.enqueue("bench", "1 1").id for _ in range(runs)]
            pid = host.workers()[0].pid
            idle_kb = _rss_kb(pid)
            announce_at_once(server.url, hints)
            wait_until(lambda: ended_runs(client, "running") >= runs)
            time.sleep(1)  # the last ones are on their way from the claim to the model
            kb = (_rss_kb(pid) - idle_kb) / runs
            began_s = time.monotonic()
            gate.touch()
            wait_until(lambda: ended_runs(client) >= runs + 20)
            took_s = time.monotonic() - began_s
    return kb, took_s


def _check_ended(ended: int, wanted: int) -> None:
    if ended != wanted:
        raise AssertionError(f"{wanted} runs should have succeeded, {ended} did")


def _rss_kb(pid: int) -> float:
    gc.collect()
    return float(psutil.Process(pid).memory_info().rss) / 1024


if __name__ == "__main__":
    alone(measure, options)

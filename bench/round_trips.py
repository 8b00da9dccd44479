"""Commands per step as the server sees them: 1 + n for n calls."""

from __future__ import annotations

import argparse
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis

from bench.engine import execute_all, producer, runtime
from bench.report import Outcome, alone
from makegood.store.scripts import load_script, script_names
from makegood.workers.embedded import EmbeddedServer

STEP_SCRIPTS = ("write_intent", "start_calls", "record_outcomes", "note_activity", "put_piece")
"""What a step may send. Claim and end are one each per run, sweeps and heartbeats belong to no run."""


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--steps", type=int, default=10, help="steps of a run")
    parser.add_argument("--calls", type=int, default=4, help="up to so many calls per step")


def measure(chosen: argparse.Namespace) -> Outcome:
    """MONITOR shows every command that the server executes, by the hash of its script."""
    outcome = Outcome(
        "round_trips",
        f"a run of {chosen.steps} steps; MONITOR on the server counts the step's scripts; no two calls end together.",
    )
    with (
        EmbeddedServer(ephemeral=True) as server,
        producer(server.url) as client,
        runtime(server.url) as worker,
    ):
        for calls in range(1, chosen.calls + 1):
            run_id = client.enqueue("bench", f"{chosen.steps} {calls} put_apart").id
            seen = _watched(server.url, run_id, lambda: execute_all(worker, [run_id]))  # noqa: B023
            per_step = (
                sum(seen[name] for name in STEP_SCRIPTS) - 2
            ) / chosen.steps  # the answer: intent and end
            met = per_step <= 1 + calls
            outcome.add(f"commands per step with {calls} call(s)", per_step, "", f"<= {1 + calls}", met)
    return outcome


def _watched(url: str, run_id: str, work: Callable[[], None]) -> Counter[str]:
    names = {load_script(name).sha: name for name in script_names()}
    seen: Counter[str] = Counter()
    client: Any = redis.Redis.from_url(url)
    with client.monitor() as monitor:
        ended = threading.Event()

        def listen() -> None:
            for told in monitor.listen():
                words = told["command"].split(" ")
                if words[0] == "EVALSHA" and run_id in told["command"]:
                    seen[names[words[1]]] += 1
                if words[0] == "ECHO":
                    break
            ended.set()

        threading.Thread(target=listen, daemon=True).start()
        work()
        redis.Redis.from_url(url).echo("the end")
        ended.wait(30)
    return seen


if __name__ == "__main__":
    alone(measure, options)

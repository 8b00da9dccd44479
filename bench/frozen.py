"""A worker is frozen in its tools (SIGSTOP, as a paused machine), taken over, and thawed: effects that happened twice."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.hosts import Host, begun_at, wait_until
from bench.report import Outcome, alone
from makegood import Client
from makegood.testing.shop import Shop
from makegood.workers.embedded import EmbeddedServer

TOOLS = ("order_late", "order_early", "charge_late", "charge_early")


def options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--runs", type=int, default=10, help="runs of each kind of tool")
    parser.add_argument("--lease", type=float, default=2.0, help="seconds")


def measure(chosen: argparse.Namespace) -> Outcome:
    """Tools are held right before or right after their effect; the shop counts effects by name, and refused repeats."""
    with (
        Shop() as shop,
        TemporaryDirectory(prefix="bench-") as folder,
        EmbeddedServer(ephemeral=True) as server,
        Client(server.url, broker_url=server.url) as client,
    ):
        env = {"BENCH_FOLDER": folder, "BENCH_SHOP": shop.url}
        slots = chosen.runs * len(TOOLS) + 5
        with Host(server.url, processes=1, concurrency=slots, lease_s=chosen.lease, **env) as sleeper:
            runs = [
                client.enqueue("bench", f"1 1 {tool} {tool}{n}") for tool in TOOLS for n in range(chosen.runs)
            ]
            names = [f"{tool}{n}-0" for tool in TOOLS for n in range(chosen.runs)]
            wait_until(lambda: all(begun_at(folder, name) for name in names))
            with Host(server.url, processes=1, concurrency=slots, cleaners=1, lease_s=chosen.lease, **env):
                time.sleep(chosen.lease * 1.5 + 1)
                sleeper.freeze()
                Path(folder, "go").touch()
                states = Counter(run.wait(60).state for run in runs)
                sleeper.thaw()
                time.sleep(chosen.lease * 2)
    return _outcome(chosen, shop, states, names)


def _outcome(chosen: argparse.Namespace, shop: Shop, states: Counter[str], names: list[str]) -> Outcome:
    how = (
        f"{chosen.runs} runs of each of {len(TOOLS)} tools (safe to repeat or not, held before or after the effect), lease "
        f"{chosen.lease:g} s; ends: {dict(states)}."
    )
    effects = Counter(order["item"] for order in shop.orders)
    keys = Counter(shop.keys("POST", "/orders"))
    outcome = Outcome("frozen", how)
    safe = sum(effects[name] - 1 for name in names if name.startswith("order") and effects[name] > 1)
    unsafe = sum(effects[name] - 1 for name in names if name.startswith("charge") and effects[name] > 1)
    zombies = sum(count - 1 for key, count in keys.items() if ":charge_" in key and count > 1)
    outcome.add("doubled effects, tools that are safe to repeat", safe, "", "= 0", safe == 0)
    outcome.add("doubled effects, tools that are not", unsafe, "", "= 0", unsafe == 0)
    outcome.add("second requests for tools that are not safe to repeat", zombies, "", "= 0", zombies == 0)
    return outcome


if __name__ == "__main__":
    alone(measure, options)

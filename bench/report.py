"""What a benchmark hands back, the machine it ran on, and how both are shown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis

from makegood.workers.embedded import EmbeddedServer


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `target` is the promise in words, `met` None where there is no target."""

    what: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None


@dataclass(slots=True)
class Outcome:
    """What one benchmark found, and in one sentence how."""

    name: str
    how: str
    figures: list[Figure] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, target: str = "", met: bool | None = None) -> None:
        """Note a value."""
        self.figures.append(Figure(what, round(value, 4), unit, target, met))


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile by nearest rank; q = 0.5 is the median."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, round(q * len(ranked) + 0.5) - 1))]


def machine() -> dict[str, Any]:
    """Where the figures come from: cores, load, kernel, Python, server."""
    with EmbeddedServer(ephemeral=True) as server:
        info: Any = redis.Redis.from_url(server.url).info("server")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "server": f"valkey {info.get('valkey_version') or info['redis_version']}, appendfsync always",
    }


def show(outcome: Outcome) -> None:
    """Print one benchmark's figures."""
    print(f"\n{outcome.name}: {outcome.how}")
    for each in outcome.figures:
        mark = {True: "met", False: "MISSED", None: ""}[each.met]
        print(
            f"  {each.what:<62} {each.value:>10g} {each.unit:<8} {each.target:<26} {mark}".rstrip(),
            flush=True,
        )


def alone(
    measure: Callable[[argparse.Namespace], Outcome], options: Callable[[argparse.ArgumentParser], None]
) -> None:
    """`python -m bench.<name>`: measure, print, write JSON where `--json` says."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    options(parser)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--no-machine", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    facts = {} if chosen.no_machine else machine()
    if facts:
        print(json.dumps(facts))
    outcome = measure(chosen)
    outcome.how += (
        f" [python -m bench.{outcome.name} {' '.join(sys.argv[1:])}".split(" --json")[0].rstrip() + "]"
    )
    show(outcome)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"machine": facts, "outcomes": [asdict(outcome)]}, indent=1))

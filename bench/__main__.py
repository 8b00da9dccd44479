"""`make bench`: every benchmark in a process of its own, one after the other, and one JSON file."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.report import machine

BENCHMARKS: dict[str, list[str]] = {
    "step": ["--runs", "300"],
    "throughput": ["--rounds", "8"],
    "round_trips": [],
    "in_flight": [],
    "celery_runs": ["--rounds", "8"],
    "takeover": ["--kills", "100"],
    "host_gone": ["--trials", "10"],
    "frozen": ["--runs", "25"],
    "cancel": ["--runs", "1000"],
    "growth": ["--finished", "300000"],
    "scrape": [],
    "soak": ["--runs", "10000"],
}
"""Every benchmark, with its sizes under `--full`."""


def main() -> int:
    """Run what was asked for; 0 when every one came to an end, whether or not its targets were met."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*BENCHMARKS, []], help="these alone; default: all")
    parser.add_argument("--full", action="store_true", help="the large sizes (about 20 minutes)")
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench.json"), help="where the figures are written"
    )
    chosen = parser.parse_args()
    facts, outcomes, failed, began_s = machine(), [], [], time.monotonic()
    print(json.dumps(facts), flush=True)
    with TemporaryDirectory(prefix="bench-") as folder:
        for name in chosen.only or BENCHMARKS:
            result = Path(folder, f"{name}.json")
            sizes = BENCHMARKS[name] if chosen.full else []
            command = [sys.executable, "-m", f"bench.{name}", *sizes, "--no-machine", "--json", str(result)]
            if subprocess.run(command, check=False).returncode == 0:
                outcomes += json.loads(result.read_text())["outcomes"]
            else:
                failed.append(name)
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps({"machine": facts, "outcomes": outcomes, "failed": failed}, indent=1))
    print(
        f"\n{time.monotonic() - began_s:.0f} s; figures in {chosen.json}"
        + (f"; failed: {failed}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

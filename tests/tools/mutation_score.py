"""Changes the pure rules in many small ways, one at a time, and counts how many the rule tests notice: `make mutate`.

mutmut makes the changes and runs the tests ([tool.mutmut] in pyproject.toml); this runs it and prints the score of each
module. Fails below the share that is given. The changes that nobody noticed stay in mutants/: `mutmut show NAME`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

WORK = Path("mutants")
LOG = WORK / "run.log"
RULES = WORK / "src/makegood/tasks/rules"

SURVIVED = {0: "survived", 33: "no test runs it"}
"""mutmut's exit codes of a change that nobody noticed; every other one is a failed, hung or crashed test run."""

SHOWN = 200
"""Names of survivors that are printed at the most."""


def main(least_percent: float) -> int:
    """Run, print, judge."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    with LOG.open("wb") as log:
        command = [sys.executable, "-m", "mutmut", "run", "--max-children", "2"]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    results = {path.stem.removesuffix(".py"): read(path) for path in sorted(RULES.glob("*.meta"))}
    made, unnoticed = Counter[str](), dict[str, str]()
    for module, codes in results.items():
        made[module] = len(codes)
        unnoticed |= {name: SURVIVED[code] for name, code in codes.items() if code in SURVIVED}
    if not made.total() or any(code is None for codes in results.values() for code in codes.values()):
        print(LOG.read_text(errors="replace")[-3000:])
        print("The mutation run did not come to its end; above is what it said last.", file=sys.stderr)
        return 2
    return report(made, unnoticed, least_percent)


def read(path: Path) -> dict[str, int | None]:
    """Changes of a module → how the tests ended."""
    codes: dict[str, int | None] = json.loads(path.read_text())["exit_code_by_key"]
    return codes


def report(made: Counter[str], unnoticed: dict[str, str], least_percent: float) -> int:
    """Print the scores; returns the exit code."""
    missed = Counter(name.split(".")[-2] for name in unnoticed)
    for name, why in list(unnoticed.items())[:SHOWN]:
        print(f"{why}: {name}")
    print(f"\n{'module':<16}{'changes':>8}{'noticed':>9}{'share':>8}")
    for module, total in sorted(made.items()):
        if total:
            line(module, total, missed[module])
    line("in all", made.total(), missed.total())
    share = percent(made.total(), missed.total())
    if share >= least_percent:
        return 0
    print(
        f"\nThe rule tests notice {share:.1f} % of the changes, fewer than {least_percent:.0f} %.",
        file=sys.stderr,
    )
    return 1


def line(name: str, total: int, missed: int) -> None:
    """One line of the table."""
    print(f"{name:<16}{total:>8}{total - missed:>9}{percent(total, missed):>7.1f}%")


def percent(total: int, missed: int) -> float:
    """Share of what was noticed."""
    return 100 * (total - missed) / total


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))

"""Many runs and cleanups under random kills, freezes and cuts: nothing is lost, doubled, undone twice or left over."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(600)
@pytest.mark.contract("D6", "D7", "D9", "E9")
def test_five_hundred_runs_under_random_faults() -> None:
    """`python -m bench.soak` with a fresh seed, which it prints: the same seed gives the same plan of faults.

    A kill lands on every fault point, or it fails.
    """
    seed = str(random.randrange(1 << 30))
    command = [sys.executable, "-m", "bench.soak", "--runs", "500", "--seed", seed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=570, check=False)
    print(done.stdout)
    assert done.returncode == 0, f"seed {seed}:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"

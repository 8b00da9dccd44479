"""The four rooms can be reached at the repository's root, and are never imported by their bare names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("workers", "tasks", "cleanup", "monitoring")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_a_link_into_the_package(room: str) -> None:
    """A relative link, so that it holds in every clone."""
    link = ROOT / room
    assert link.is_symlink()
    assert link.readlink() == Path("src/makegood") / room
    assert link.resolve() == ROOT / "src" / "makegood" / room


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_refuses_its_bare_name(room: str) -> None:
    """Whoever runs Python in the repository and writes `import tasks` is told what to write instead."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {room}"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"import makegood.{room}" in done.stderr.splitlines()[-1]

"""The lock file, the ranges in pyproject.toml and what is installed agree."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK_LINES = [
    line
    for line in (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
LOCK = {
    canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LOCK_LINES)
}


def declared() -> list[str]:
    """Every requirement of the project, those of its extras too."""
    extras = PROJECT["optional-dependencies"].values()
    return [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]


def test_every_line_of_the_lock_is_one_exact_version() -> None:
    """No addresses, no options, no ranges."""
    for line in LOCK_LINES:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line


@pytest.mark.parametrize("line", declared())
def test_the_lock_satisfies_each_range(line: str) -> None:
    """What is tested is what pyproject.toml allows."""
    requirement = Requirement(line)
    assert requirement.specifier.contains(LOCK[canonicalize_name(requirement.name)], prereleases=True)


def test_the_lock_names_everything_that_is_needed() -> None:
    """Also what the packages need in turn, so that no version is left to chance."""
    wanted: list[tuple[str, frozenset[str]]] = []
    waiting = [Requirement(line) for line in declared()]
    missing = set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in wanted:
            continue
        wanted.append(key)
        if key[0] not in LOCK:
            missing.add(key[0])
            continue
        for text in metadata.requires(key[0]) or []:
            needed = Requirement(text)
            environments = [{**default_environment(), "extra": extra} for extra in (*requirement.extras, "")]
            if needed.marker is None or any(needed.marker.evaluate(one) for one in environments):
                waiting.append(needed)
    assert missing == set()


def test_what_is_installed_is_what_is_locked() -> None:
    """The tests run on the locked versions."""
    for name, version in LOCK.items():
        assert metadata.version(name) == version

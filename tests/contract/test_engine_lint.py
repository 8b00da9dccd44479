"""Rules of the source that a test can read (CONTRACT F1)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import makegood

PACKAGE = Path(makegood.__file__).parent
ROOMS = ("tasks", "workers", "cleanup", "monitoring", "store")
MAKE_TASKS = frozenset({"create_task", "ensure_future", "TaskGroup"})


def sources(*rooms: str) -> Iterator[tuple[Path, ast.AST]]:
    """Every module of the rooms, parsed."""
    for room in rooms:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            yield path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))


def names_in(tree: ast.AST) -> Iterator[str]:
    """Every name, attribute and import of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield module or ""
                yield from (alias.name for alias in names)


@pytest.mark.contract("F1")
def test_no_contextvars_in_tasks_and_cleanup() -> None:
    """What a call may know is handed to it."""
    found = {
        str(path)
        for path, tree in sources("tasks", "cleanup")
        for name in names_in(tree)
        if name in ("contextvars", "ContextVar", "copy_context")
    }
    assert not found


@pytest.mark.contract("F1")
def test_tasks_are_made_in_one_module_only() -> None:
    """Every task has an owner that awaits it: `spawn` is the one place that makes them."""
    found = {
        f"{path}: {name}" for path, tree in sources(*ROOMS) for name in names_in(tree) if name in MAKE_TASKS
    }
    assert not found
    assert "create_task" in (PACKAGE / "spawn.py").read_text(encoding="utf-8")


@pytest.mark.contract("C1")
def test_no_library_repeats_requests_on_its_own() -> None:
    """No retry library is imported, and LiteLLM's Router, which has retries of its own, is not used."""
    found = {
        f"{path}: {name}"
        for path, tree in sources("tasks", "workers")
        for name in names_in(tree)
        if name.partition(".")[0] in ("tenacity", "stamina", "retrying") or name == "Router"
    }
    assert not found

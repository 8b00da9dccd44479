"""What `import makegood` gives, what it costs, and that its rooms are not importable by their bare names."""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import makegood
from makegood import errors

PACKAGE = Path(makegood.__file__).parent
ROOMS = ("tasks", "workers", "cleanup", "monitoring", "store")
INTERFACE_NAMES = [
    "Agent",
    "agent",
    "tool",
    "resource",
    "ToolContext",
    "RecordedCall",
    "NOT_DONE",
    "UNKNOWN",
    "ALL",
    "Client",
    "AsyncClient",
    "Result",
    "Timeouts",
    "Budgets",
    "RetryPolicy",
    "BreakerPolicy",
    "ToolError",
    "RetryableToolError",
    "Run",
    "AsyncRun",
]
ERRORS = sorted(
    name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)
)
HEAVY = ("litellm", "celery", "kombu", "redis", "openai", "pydantic", "httpx", "jsonschema")


def in_new_process(code: str, *, cwd: Path | None = None, path: str = str(PACKAGE.parent)) -> dict[str, Any]:
    """Runs code that prints one JSON object, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_public_names_are_those_of_the_interface_and_all_errors() -> None:
    """No more and no less."""
    assert sorted(makegood.__all__) == sorted([*INTERFACE_NAMES, *(set(ERRORS) - set(INTERFACE_NAMES))])


@pytest.mark.parametrize("name", sorted(makegood.__all__))
def test_every_public_name_can_be_imported(name: str) -> None:
    """Each lives where the package says, and is listed by dir()."""
    assert getattr(makegood, name) is not None
    assert name in dir(makegood)


def test_another_name_is_an_attribute_error() -> None:
    """A typing mistake is not answered with an import error from inside."""
    with pytest.raises(AttributeError, match="module 'makegood' has no attribute 'Agnet'"):
        makegood.Agnet  # noqa: B018
    with pytest.raises(ImportError):
        from makegood import Agnet  # noqa: F401


def test_type_checkers_see_the_same_names() -> None:
    """The block under TYPE_CHECKING imports every public name from the module that is used at run time."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(each for each in tree.body if isinstance(each, ast.If))
    seen = {
        alias.name: each.module
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert seen == {name: makegood._HOME.get(name, "makegood.errors") for name in makegood.__all__}


def test_importing_the_package_loads_nothing_heavy() -> None:
    """No model library, no Celery, no Redis client; fast, with a bound ten times the promise."""
    started = time.monotonic()
    loaded = in_new_process("import makegood, sys, json; print(json.dumps(dict.fromkeys(sys.modules)))")
    assert time.monotonic() - started < 5
    assert not [name for name in HEAVY if name in loaded]


def test_declaring_loads_no_worker_and_no_model_library() -> None:
    """Tools and agents are declared in web backends, too."""
    code = (
        "from makegood import *\n"
        "import sys, json\n"
        "@tool(effect='read')\n"
        "def f(ctx, x: int) -> int: ...\n"
        "Agent(name='a', model='m', tools=[f], timeouts=Timeouts())\n"
        "print(json.dumps(dict.fromkeys(sys.modules)))"
    )
    names = "Agent, tool, resource, Timeouts, RetryPolicy, Budgets, BreakerPolicy, Result, ToolError, ALL"
    loaded = in_new_process(code.replace("*", names))
    assert "makegood.tasks.agent" in loaded
    assert not [name for name in ("litellm", "celery", "kombu", "redis", "openai") if name in loaded]


def test_the_client_loads_no_worker_and_no_model_library() -> None:
    """Enqueueing neither."""
    loaded = in_new_process(
        "from makegood import Client; import sys, json; print(json.dumps(dict.fromkeys(sys.modules)))"
    )
    assert not [name for name in ("litellm", "celery.worker", "openai", "makegood.workers") if name in loaded]


def test_importing_the_client_loads_no_server_library() -> None:
    """It comes with the first client; pydantic only when the environment says where the store is."""
    heavy = "('redis', 'hiredis', 'pydantic', 'celery', 'jsonschema')"
    code = (
        "import sys, json\n"
        "from makegood.tasks.client import Client, AsyncClient\n"
        f"first = [name for name in {heavy} if name in sys.modules]\n"
        "Client('redis://127.0.0.1:9/0').close()\n"
        f"print(json.dumps({{'first': first, 'then': [name for name in {heavy} if name in sys.modules]}}))"
    )
    assert in_new_process(code) == {"first": [], "then": ["redis", "hiredis"]}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_refuses_its_bare_name(room: str, tmp_path: Path) -> None:
    """Reached through the link at the repository root, it says what to write; with the package installed or not."""
    (tmp_path / room).symlink_to(PACKAGE / room)
    code = (
        "import json\n"
        "try:\n"
        f"    import {room}\n"
        "    print(json.dumps({'said': None}))\n"
        "except ImportError as error:\n"
        "    print(json.dumps({'said': str(error)}))\n"
    )
    for path in (str(PACKAGE.parent), ""):
        said = in_new_process(code, cwd=tmp_path, path=path)["said"]
        assert f"'{room}' is a room of the makegood package" in said
        assert f"write 'import makegood.{room}'" in said


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_importable_by_its_full_name(room: str) -> None:
    """The guard does not stand in its own way."""
    code = f"import makegood.{room} as room, json; print(json.dumps({{'name': room.__name__}}))"
    assert in_new_process(code)["name"] == f"makegood.{room}"


def test_a_users_own_tasks_module_is_not_shadowed(tmp_path: Path) -> None:
    """Celery users have a tasks.py; it is theirs, before and after importing makegood."""
    (tmp_path / "tasks.py").write_text("mine = True\n")
    code = (
        "import json, makegood.tasks, tasks\n"
        "from makegood import tool\n"
        "print(json.dumps({'mine': tasks.mine, 'other': makegood.tasks.__name__}))"
    )
    assert in_new_process(code, cwd=tmp_path) == {"mine": True, "other": "makegood.tasks"}


def test_the_package_says_that_it_is_typed() -> None:
    """PEP 561."""
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_one_of_ours_and_survives_pickling(name: str) -> None:
    """Caught by `except MakegoodError`, with a docstring in the style of its message."""
    kind = getattr(errors, name)
    assert issubclass(kind, errors.MakegoodError)
    assert kind.__doc__
    copy = pickle.loads(pickle.dumps(kind("what happened")))
    assert (type(copy), str(copy)) == (kind, "what happened")


def test_a_tool_error_carries_its_code() -> None:
    """Also through pickling; a retryable one is a ToolError for whoever catches it."""
    for kind in (errors.ToolError, errors.RetryableToolError):
        copy = pickle.loads(pickle.dumps(kind("no such customer", code="NO_CUSTOMER")))
        assert (copy.message, copy.code) == ("no such customer", "NO_CUSTOMER")
        assert kind("x").code is None
    assert issubclass(errors.RetryableToolError, errors.ToolError)


def test_errors_are_also_what_python_calls_them() -> None:
    """`except ValueError`, `except TimeoutError`, `except ConnectionError` work where they fit."""
    assert issubclass(errors.DeclarationError, ValueError)
    assert issubclass(errors.WaitTimeout, TimeoutError)
    assert issubclass(errors.StoreUnreachable, ConnectionError)
    assert issubclass(errors.NotAllowed, PermissionError)
    assert issubclass(errors.PayloadTooLarge, errors.InvalidInput)
    assert not issubclass(errors.NotBuilt, errors.DeclarationError)

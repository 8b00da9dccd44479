"""MAKEGOOD_AGENTS: which agents a worker finds, and the sentence when it finds none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from makegood.errors import SettingsError
from makegood.tasks.loading import load_agents

HEAD = "from makegood.tasks.agent import Agent\n"
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into the working directory; its modules and path are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    known = set(sys.modules)

    def write_module(name: str, text: str) -> None:
        path = tmp_path / Path(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    yield write_module
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_all_agents_of_a_module(write: Write) -> None:
    """The working directory is importable; packages too; names in the module do not matter."""
    write("shopfront.agents", HEAD + "a = Agent('one', 'm')\n_b = Agent('two', 'm')\nc = [a]\n")
    assert set(load_agents("shopfront.agents")) == {"one", "two"}


@pytest.mark.parametrize("held", ["{a}", "[{a}]", "({a},)", "dict(x={a})"])
def test_the_named_one_or_the_named_collection(write: Write, held: str) -> None:
    """module:name may be an agent, or a list, tuple or dict of agents; others are not loaded."""
    mine = held.format(a="Agent('one', 'm')")
    write("shop_named", HEAD + f"other = Agent('two', 'm')\nmine = {mine}\n")
    assert set(load_agents("shop_named:mine")) == {"one"}


def test_several_entries(write: Write) -> None:
    """Blanks and a trailing comma are forgiven; the same agent twice is no conflict."""
    write("shop_a", HEAD + "a = Agent('one', 'm')\n")
    write("shop_b", "from shop_a import a\n" + HEAD + "b = Agent('two', 'm')\n")
    assert set(load_agents(" shop_a , shop_b:b, shop_b,")) == {"one", "two"}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "names no module"),
        (" , ", "names no module"),
        ("nowhere_at_all", "there is no module nowhere_at_all"),
        ("shop_x.deeper", "there is no module shop_x.deeper"),
        ("shop_x:", "not of the form"),
        (":a", "not of the form"),
        ("shop_x:nope", "has no 'nope'"),
        ("shop_x:number", "neither an Agent nor a list"),
        ("shop_x:nothing", "neither an Agent nor a list"),
        ("shop_x:mixed", "neither an Agent nor a list"),
        ("shop_x:text", "neither an Agent nor a list"),
        ("shop_empty", "has no Agent at its top level"),
        ("shop_broken", "importing shop_broken failed: ZeroDivisionError: division by zero"),
        ("shop_needs", "importing shop_needs failed: No module named 'not_installed_here'"),
        ("shop_x,shop_y", "two different agents are named 'one', one of them in shop_y"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(write: Write, spec: str, says: str) -> None:
    """What happened and where; a module missing inside the user's module is not called his module missing."""
    write("shop_x", HEAD + "a = Agent('one', 'm')\nnumber, nothing, mixed, text = 5, [], [a, 5], 'a'\n")
    write("shop_y", HEAD + "a = Agent('one', 'm')\n")
    write("shop_empty", "x = 1\n")
    write("shop_broken", "1 / 0\n")
    write("shop_needs", "import not_installed_here\n")
    with pytest.raises(SettingsError, match="MAKEGOOD_AGENTS") as caught:
        load_agents(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)

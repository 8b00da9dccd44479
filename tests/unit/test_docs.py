"""The documents say what the code does: tables are compared, examples run, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from makegood.store.states import TERMINAL, TRANSITIONS, State
from support.settings_page import render

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


# --- states ---------------------------------------------------------------------------------------------------------


def test_the_table_of_states_is_the_one_in_the_code() -> None:
    """Row by row, in the order of the code."""
    rows = re.findall(r"^\| (\w+) \| ([\w, –]+) \|$", read("docs/states.md"), re.MULTILINE)
    assert rows[0] == ("from", "may go to")
    table = {source: set() if targets == "–" else set(targets.split(", ")) for source, targets in rows[1:]}
    assert table == {str(source): {str(each) for each in targets} for source, targets in TRANSITIONS.items()}
    assert list(table) == [str(state) for state in TRANSITIONS]


def test_the_chart_shows_only_what_the_table_allows_and_every_state() -> None:
    """An arrow that no run can take would mislead."""
    (chart,) = blocks(read("docs/states.md"), "mermaid")
    arrows = re.findall(r"^ +(\w+) --> (\w+)", chart, re.MULTILINE)
    for source, target in arrows:
        assert State(target) in TRANSITIONS[State(source)], (source, target)
    assert {name for arrow in arrows for name in arrow} == {str(state) for state in State}


def test_the_terminal_states_are_named() -> None:
    """One line."""
    (line,) = re.findall(r"^Terminal: (.*)\.$", read("docs/states.md"), re.MULTILINE)
    assert set(line.split(", ")) == {str(state) for state in TERMINAL}


# --- generated and numbered pages -----------------------------------------------------------------------------------


def test_the_page_of_settings_is_up_to_date() -> None:
    """Write it anew with: PYTHONPATH=tests .venv/bin/python -m support.settings_page > docs/settings.md"""
    assert read("docs/settings.md") == render(), test_the_page_of_settings_is_up_to_date.__doc__


def test_the_contract_and_the_invariants_are_numbered_without_a_gap() -> None:
    """Marks and comments name their lines."""
    lines = re.findall(r"^- ([A-Z])(\d+)\. ", read("docs/contract.md"), re.MULTILINE)
    for letter in "ABCDEFGHIJ":
        numbers = [int(number) for each, number in lines if each == letter]
        assert numbers == list(range(1, len(numbers) + 1)), letter
        assert numbers, letter
    invariants = [
        int(number) for number in re.findall(r"^(\d+)\. ", read("docs/invariants.md"), re.MULTILINE)
    ]
    assert invariants == list(range(1, 19))


# --- README ---------------------------------------------------------------------------------------------------------


def test_the_example_in_the_readme_is_the_file_and_begins_early() -> None:
    """The same text as examples/support.py, its first line by line 30."""
    (example,) = blocks(read("README.md"), "python")
    assert example == read("examples/support.py")
    assert read("README.md").splitlines().index("```python") < 30


def test_make_commands_in_the_documents_exist() -> None:
    """Every target that a page names is one of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(named) <= targets, page.name
    assert {"demo", "test"} <= set(re.findall(r"^make ([a-z]+)", read("README.md"), re.MULTILINE))


# --- all pages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    """Relative ones; none leads out of the repository."""
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).resolve().is_relative_to(ROOT)
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", ["agents.md", "making_good.md", "tools.md"])
def test_examples_run(page: str) -> None:
    """Every Python block of a page can be executed as it stands."""
    examples = blocks(read(f"docs/{page}"), "python")
    assert examples
    for number, example in enumerate(examples):
        exec(compile(example, f"docs/{page} block {number + 1}", "exec"), {"__name__": f"docs_{number}"})


def test_files_that_the_tour_names_exist() -> None:
    """Paths in the tour of the inside are relative to the package."""
    package = ROOT / "src" / "makegood"
    for name in re.findall(r"`((?:cleanup|cli|tasks|workers|store)/[\w/.]*)`", read("docs/internals.md")):
        assert (package / name).exists(), name

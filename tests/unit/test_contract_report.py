"""`pytest --contract-report` lists the contract's lines without a passing test."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.contract_report import contract_lines

CONTRACT = """# The contract
- A1. First.
  More about it, see C7.
- A2. Second.
- J21. Third.
"""

TESTS = """
import pytest

@pytest.mark.contract("A1")
def test_good(): pass

@pytest.mark.contract("A2")
def test_bad(): assert False

@pytest.mark.contract("A2")
def test_half(): pass
"""


def test_lines_are_found_by_their_form() -> None:
    """Only list items that begin with a letter and a number count."""
    assert contract_lines(CONTRACT) == ["A1", "A2", "J21"]


def run(pytester: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    """pytest in a folder of its own with this contract and these tests."""
    (pytester.path / "docs").mkdir()
    (pytester.path / "docs" / "contract.md").write_text(CONTRACT)
    pytester.makeconftest('pytest_plugins = ["support.contract_report"]')
    pytester.makeini(
        f"[pytest]\npythonpath = {Path(__file__).parents[1]}\nmarkers = contract(line): proves a line\n"
    )
    pytester.makepyfile(tests)
    return pytester.runpytest_subprocess("-p", "no:valkey", *options)


def test_the_report_names_what_is_unproved(pytester: pytest.Pytester) -> None:
    """A line with a failing test is not proved, whatever else passes."""
    result = run(pytester, TESTS, "--contract-report")
    result.stdout.fnmatch_lines(["1 of 3 lines are proved.", "  A2: 1 failed", "  J21: no passing test"])


def test_without_the_option_nothing_is_printed(pytester: pytest.Pytester) -> None:
    """An ordinary run has no report."""
    assert "lines are proved" not in run(pytester, TESTS).stdout.str()


def test_a_mark_with_an_unknown_line_is_refused(pytester: pytest.Pytester) -> None:
    """A typing mistake cannot prove anything."""
    result = run(pytester, 'import pytest\n@pytest.mark.contract("Z9")\ndef test_it(): pass\n')
    result.stderr.fnmatch_lines(["*marked with contract line 'Z9', which docs/contract.md does not have."])
    assert result.ret == pytest.ExitCode.USAGE_ERROR

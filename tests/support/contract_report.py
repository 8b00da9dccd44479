"""`pytest --contract-report`: which lines of docs/contract.md have no passing test.

A line of the contract begins with "- C7. …"; a test that proves it carries `@pytest.mark.contract("C7")`. A mark with a
name that the contract does not have is an error, with or without the option.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

CONTRACT_LINE = re.compile(r"^- ([A-Z]\d+)\. ", re.MULTILINE)


def contract_lines(text: str) -> list[str]:
    """The names of all lines of the contract, in its order."""
    return CONTRACT_LINE.findall(text)


def marked_lines(item: pytest.Item) -> list[str]:
    """The contract lines that a test says it proves."""
    return [str(line) for mark in item.iter_markers("contract") for line in mark.args]


def unknown_lines(items: Iterable[pytest.Item], lines: list[str]) -> list[str]:
    """One sentence per test whose mark names a line that the contract does not have."""
    return [
        f"{item.nodeid} is marked with contract line {line!r}, which docs/contract.md does not have."
        for item in items
        for line in marked_lines(item)
        if line not in lines
    ]


class ContractReport:
    """Collects which contract lines were proved, and by how many tests."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.marks: dict[str, list[str]] = {}
        self.passed: dict[str, int] = defaultdict(int)
        self.failed: dict[str, int] = defaultdict(int)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Remember every test's lines; refuse unknown ones."""
        self.marks = {item.nodeid: marked_lines(item) for item in items}
        if self.lines and (problems := unknown_lines(items, self.lines)):
            raise pytest.UsageError("\n".join(problems))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's call; an error in set-up or teardown counts as failed."""
        if report.passed and report.when != "call":
            return
        outcomes = self.passed if report.passed else self.failed
        for line in self.marks.get(report.nodeid, []):
            outcomes[line] += 1

    def without_passing_test(self) -> list[str]:
        """The lines that nothing proved, or of which a test failed (or was skipped), in the contract's order."""
        return [line for line in self.lines if not self.passed[line] or self.failed[line]]


class ContractReportPrinter(ContractReport):
    """The same, printed at the end of the session."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the lines without a passing test."""
        missing = self.without_passing_test()
        terminalreporter.section("contract")
        terminalreporter.write_line(
            f"{len(self.lines) - len(missing)} of {len(self.lines)} lines are proved."
        )
        for line in missing:
            why = f"{self.failed[line]} failed" if self.failed[line] else "no passing test"
            terminalreporter.write_line(f"  {line}: {why}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--contract-report`."""
    parser.addoption(
        "--contract-report",
        action="store_true",
        help="list the lines of docs/contract.md without a passing test",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check every contract mark; print the report when asked to."""
    path = Path(config.rootpath) / "docs" / "contract.md"
    lines = contract_lines(path.read_text(encoding="utf-8")) if path.exists() else []
    kind = ContractReportPrinter if config.getoption("--contract-report") else ContractReport
    config.pluginmanager.register(kind(lines), "makegood-contract-report")

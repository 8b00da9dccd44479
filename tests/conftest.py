"""Fixtures and options for all tests; see tests/support/."""

from __future__ import annotations

pytest_plugins = [
    "pytester",
    "support.contract_report",
    "support.servers",
    "support.store",
    "support.system_servers",
]

"""Fixtures and options for all tests; see tests/support/."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = [
    "pytester",
    "support.contract_report",
    "support.servers",
    "support.store",
    "support.system_servers",
]

# `make mutate` runs the rule tests a thousand times: fewer examples each, and always the same.
settings.register_profile("mutate", max_examples=25, derandomize=True, database=None)

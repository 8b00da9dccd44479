"""Tests that need something from the system's packages (RabbitMQ, Redis 7, promtool): `make test-system`.

`make test` needs nothing but Python, so it leaves them out, and says how many; with `--system` they run, and whatever
is not installed is a failure, never a skip.
"""

from __future__ import annotations

import pytest

FIXTURES = frozenset({"promtool", "rabbit", "redis7"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that chooses them."""
    parser.addoption(
        "--system",
        action="store_true",
        help="run the tests that need RabbitMQ, Redis 7 and promtool of this system, and only those",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that need such a server, or those that do not."""
    wanted = bool(config.getoption("--system"))
    kept, left_out = [], []
    for item in items:
        needs = bool(FIXTURES & set(getattr(item, "fixturenames", ())))
        (kept if needs == wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept

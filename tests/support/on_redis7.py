"""`pytest -p support.on_redis7 tests/integration/test_store_*.py`: the same tests on Debian's Redis in place of Valkey."""

from __future__ import annotations

import shutil
from pathlib import Path

from makegood.workers import embedded


def redis_server() -> Path:
    """Where redis-server is."""
    found = shutil.which("redis-server")
    assert found is not None, (
        "Redis is not installed; run: apt-get install -y --no-install-recommends redis-server"
    )
    return Path(found)


embedded.server_binary = redis_server
embedded.PLAIN = [option for option in embedded.PLAIN if option not in ("--locale-collate", "C")]

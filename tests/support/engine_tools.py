"""Tools that run in a process of their own: they must be importable there, so they cannot stand in a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from makegood import ALL, RetryPolicy, ToolError, tool

NONE = RetryPolicy(retries=0)


@tool(effect="read", isolation="process")
def triple(ctx: Any, n: int) -> int:
    """Three times n."""
    return n * 3


@tool(effect="read", isolation="process")
def refuse(ctx: Any) -> None:
    """A business error."""
    raise ToolError("no", code="NOPE")


@tool(effect="read", isolation="process")
def broken(ctx: Any) -> float:
    """A bug."""
    return 1 / 0


@tool(effect="read", isolation="process")
def print_much(ctx: Any) -> str:
    """Prints a lot, which must not mix with the answer."""
    for _ in range(200):
        print("noise" * 10)
    os.write(1, b"more noise\n")
    return "quiet"


@tool(effect="read", isolation="process")
def die(ctx: Any) -> None:
    """Ends like a process that the kernel kills."""
    os.kill(os.getpid(), signal.SIGKILL)


@tool(effect="read", isolation="process", timeout=5, retry=NONE)
def spin(ctx: Any, folder: str) -> None:
    """Starts a child, notes both pids as files, and never returns."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for pid in (os.getpid(), child.pid):
        (Path(folder) / str(pid)).touch()
    while True:
        sum(range(10**6))


@tool(effect="idempotent", identity=ALL, isolation="process", timeout=30)
def post(ctx: Any, url: str) -> Any:
    """One request."""
    return ctx.http.post(url).json()


@tool(effect="idempotent", identity=ALL, isolation="process", timeout=30)
def post_checked(ctx: Any, url: str) -> Any:
    """One request whose status counts."""
    return ctx.http.post(url).raise_for_status().json()


ALL_TOOLS = (triple, refuse, broken, print_much, die, spin, post, post_checked)

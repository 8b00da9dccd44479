"""Tools that run in a process of their own: they must be importable there, so they cannot stand in a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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


@tool(effect="read", isolation="process", timeout=30)
def declare_in_process(ctx: Any, path: str) -> str:
    """Declares a path, then creates it."""
    ctx.declare("path", path)
    Path(path).write_text("made")
    return "made"


@tool(effect="read", isolation="process", timeout=30)
def declare_when_let(ctx: Any, folder: str) -> str:
    """Says that it runs, waits for a file `go`, swallows whatever its declaration raises."""
    (Path(folder) / "at").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    try:
        ctx.declare("path", f"{folder}/made")
        (Path(folder) / "made").touch()
    except ToolError:
        pass
    return "done"


@tool(effect="read", isolation="process", timeout=30)
def lock_in_process(ctx: Any, name: str) -> int:
    """The token of a lock that is given back at once."""
    with ctx.lock(name) as token:
        return int(token)


@tool(effect="read", isolation="process", timeout=5, retry=NONE)
def hold_in_process(ctx: Any, name: str, folder: str) -> None:
    """Takes a lock, notes its token as a file, and never returns."""
    with ctx.lock(name) as token:
        (Path(folder) / str(token)).touch()
        time.sleep(600)


@tool(effect="read", isolation="process", timeout=6, retry=NONE)
def wait_in_process(ctx: Any, name: str) -> None:
    """Waits for a lock that somebody holds."""
    with ctx.lock(name):
        pass


RESIDUE_TOOLS = (declare_in_process, declare_when_let, lock_in_process, hold_in_process, wait_in_process)

ALL_TOOLS = (triple, refuse, broken, print_much, die, spin, post, post_checked)

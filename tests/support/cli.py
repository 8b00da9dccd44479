"""The command line as a subprocess: run it to its end, or start it and wait for what it says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from makegood.cli.exits import run

END_S = 90.0
"""Far above what any command takes."""

SERVED = {"MAKEGOOD_AGENTS": "support.celery_agents", "PYTHONPATH": str(Path(__file__).parents[1])}
"""Environment of a worker that has agents, where it does not matter which."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def ndjson(self) -> list[Any]:
        """Standard output as one JSON document per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def sentence(self) -> str:
        """The one error sentence on standard error, without the word `Error:`."""
        lines = [line for line in self.err.splitlines() if line.startswith("Error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("Error: ")


def environment(**more: str) -> dict[str, str]:
    """This process's environment without any setting of makegood, plus `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("MAKEGOOD_")}
    kept.pop("NO_COLOR", None)
    return kept | more


def makegood(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: bytes = b"", cwd: Path | None = None
) -> Ran:
    """Run a command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "makegood", *arguments],
        check=False,
        input=stdin,
        capture_output=True,
        env=environment() if env is None else dict(env),
        cwd=cwd,
        timeout=END_S,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def inside(*arguments: str, env: Mapping[str, str]) -> Ran:
    """Run a command to its end within this process, which spares the second that a new one takes to import."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, env, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(arguments)
    return Ran(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def started(
    *arguments: str, env: Mapping[str, str], cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A command that is running; at the end it and everything below it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "makegood", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(env),
        cwd=cwd,
    )
    try:
        yield process
    finally:
        for each in [*below(process), process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                each.kill()
        process.communicate()


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """All processes below a process, now."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def heard(process: subprocess.Popen[str], beginning: str) -> list[str]:
    """Lines of standard error up to the first one that begins so; fails with them when it never comes."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.rstrip("\n"))
        if line.startswith(beginning):
            return lines
    raise AssertionError(f"it never said {beginning!r}, but: {lines}")


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none of these processes is left; a process may take a moment to be reaped."""
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]

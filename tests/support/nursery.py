"""A process that has imported everything once and forks workers on demand, so that a test's worker is ready at once.

It reads one JSON order per line and answers with one line each; it ends with its standard input, and what it has
started ends with it.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import traceback
from typing import Any

from makegood.tasks.child import die_with_parent


def main() -> None:
    """Load, say `ready`, serve orders."""
    from makegood.workers.process import preload

    die_with_parent()
    preload(model=True)
    say({"ready": True})
    rest = b""
    while True:
        if select.select([0], [], [], 0.02)[0]:
            data = os.read(0, 1 << 20)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                start(json.loads(line))
        reap()


def start(order: dict[str, Any]) -> None:
    """Fork a worker and name its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work(order)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    say({"started": pid})


def work(order: dict[str, Any]) -> int:
    """In the child: be a supervisor, or a lone worker process."""
    os.setsid()
    die_with_parent()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order["env"])
    sys.path[:0] = order["path"]
    for name, value in order["constants"].items():
        module, _, constant = name.rpartition(".")
        setattr(importlib.import_module(f"makegood.{module}"), constant, value)
    if order["kind"] == "process":
        from makegood.workers.process import serve

        pulse = os.open(order["pulse"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return serve(order["queue"], order["concurrency"], pulse, order["boot_id"])
    from makegood.settings import Settings
    from makegood.workers.children import Slot
    from makegood.workers.supervisor import Supervisor

    slots = [Slot(*each) for each in order["slots"]]
    return Supervisor(slots, Settings.load(), env={}, announce="ready queues").run()


def reap() -> None:
    """Name what has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def say(what: dict[str, Any]) -> None:
    """One line to the test."""
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()

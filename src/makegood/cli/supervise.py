"""The supervisor of `makegood worker` in this process, or in one of its own that dies with whoever started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from makegood.settings import Settings
    from makegood.workers.children import Slot
    from makegood.workers.embedded import EmbeddedServer

LOOK_S = 0.5
"""How often the owner of an embedded server looks whether it still runs."""


def supervise(settings: Settings, queues: Sequence[str], env: Mapping[str, str]) -> int:
    """Import once what every process needs, then keep the processes; returns the exit code. Needs the main thread."""
    from makegood.errors import SettingsError
    from makegood.workers.process import preload
    from makegood.workers.supervisor import Supervisor

    try:
        preload(model="runs" in queues)
    except ModuleNotFoundError as error:
        if error.name != "litellm":
            raise
        raise SettingsError(
            'A worker needs the package litellm: install "makegood[worker]" where it runs.'
        ) from error
    if sys.stdout is not None:
        sys.stdout.flush()
    os.dup2(2, 1)  # what tools and Celery print are messages, not data
    slots = slots_for(queues, settings.concurrency, settings.processes)
    return Supervisor(slots, settings, env=env, announce=ready_line(settings, queues)).run()


def slots_for(queues: Sequence[str], concurrency: int, processes: int) -> list[Slot]:
    """The processes to keep alive: `processes` for runs, one for cleanup."""
    from makegood.tasks.wakeup import CLEANUP_QUEUE, RUNS_QUEUE
    from makegood.workers.children import Slot

    slots = []
    for name in queues:
        if name == "runs":
            slots += [Slot(RUNS_QUEUE, concurrency, number) for number in range(processes)]
        else:
            slots.append(Slot(CLEANUP_QUEUE, concurrency))
    return slots


def count_slots(settings: Settings, queues: Sequence[str]) -> int:
    """How many runs the worker takes at once; without the queue of runs, how many cleanups."""
    return settings.concurrency * (settings.processes if "runs" in queues else 1)


def ready_line(settings: Settings, queues: Sequence[str]) -> str:
    """What the worker says on standard error once every queue consumes."""
    return f"ready queues={','.join(queues)} slots={count_slots(settings, queues)}"


def start_supervisor(
    queues: Sequence[str], env: Mapping[str, str], stderr: int | None = None
) -> subprocess.Popen[str]:
    """The supervisor as a process that dies with this one, in a session of its own so that Ctrl-C does not reach it."""
    return subprocess.Popen(
        [sys.executable, "-m", "makegood.cli.supervise", str(os.getpid()), ",".join(queues)],
        env=env,
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def keep_server(server: EmbeddedServer, supervisor: subprocess.Popen[str]) -> int:
    """Pass signals on and bring a dead server back until the supervisor has ended; returns its exit code."""
    from makegood.cli.output import say
    from makegood.errors import MakegoodError

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.send_signal(signal.SIGTERM))
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = supervisor.wait(LOOK_S)
                return code if code >= 0 else 128 - code
            if not server.alive:
                say(
                    f"The embedded server ended with code {server.wait()}; it is started again with its data."
                )
                server.start()
    except MakegoodError:
        supervisor.terminate()
        supervisor.wait()
        raise


def main(parent_pid: int, queues: Sequence[str]) -> int:
    """`python -m makegood.cli.supervise PARENT_PID QUEUES`: all else is in the environment."""
    from makegood.errors import MakegoodError
    from makegood.settings import Settings
    from makegood.tasks.child import die_with_parent

    die_with_parent()
    if os.getppid() != parent_pid:
        return 1
    try:
        return supervise(Settings.load(), queues, dict(os.environ))
    except MakegoodError as error:
        from makegood.cli.exits import explain

        return explain(error)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2].split(",")))

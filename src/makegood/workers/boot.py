"""What happens in a worker process before its first message and after its last one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from makegood.errors import MakegoodError
from makegood.monitoring import sentry
from makegood.settings import Settings
from makegood.store.ops.catalog import set_aside
from makegood.tasks.loading import load_agents
from makegood.tasks.wakeup import QUARANTINE_QUEUE, RUNS_QUEUE
from makegood.workers import consumer
from makegood.workers.runtime import Runtime

log = logging.getLogger("makegood.worker")

LAST_RESORT_S = 5.0
"""So long after the grace a process that recycles itself ends without order."""


class Boot:
    """Builds the process's runtime when Celery starts, and takes it down."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runtime: Runtime | None = None
        self._pulse_fd: int | None = None
        self._boot_id: str | None = None

    def supervised(self, pulse_fd: int, boot_id: str) -> None:
        """The pipe on which the supervisor listens (`r` ready, `.` a heartbeat), and the id it gave this start."""
        self._pulse_fd, self._boot_id = pulse_fd, boot_id

    def runtime(self) -> Runtime:
        """The runtime; raises when the process has not started."""
        if self._runtime is None:
            raise MakegoodError("The worker has not started; run this task in a makegood worker.")
        return self._runtime

    def start(self, queues: Sequence[str], slots: int) -> None:
        """Load the agents, connect, publish what is served. A mistake ends the process with one sentence."""
        try:
            dsn = self._settings.sentry_dsn
            sentry.start(None if dsn is None else dsn.get_secret_value())
            serves_runs = not queues or RUNS_QUEUE in queues or QUARANTINE_QUEUE in queues
            agents = load_agents(",".join(self._settings.agents)) if serves_runs else {}
            for tool in (tool for agent in agents.values() for tool in agent.tools.values()):
                tool.check_masking(self._settings.secret_fields)
            self._runtime = Runtime(
                self._settings,
                agents,
                on_recycle=lambda why: recycle(why, self._settings.grace_s),
                pulse=self._pulse,
                boot_id=self._boot_id,
                queue=queues[0] if queues else RUNS_QUEUE,
                slots=slots,
            )
            self._runtime.start()
        except MakegoodError as error:
            print(str(error), file=sys.stderr, flush=True)
            os._exit(exit_code(error))
        runtime = self._runtime
        consumer.tolerate_garbage()
        consumer.aside.append(lambda reason, raw: runtime.do(set_aside(reason, raw)))
        signal.signal(signal.SIGUSR1, lambda *_: runtime.dispose())

    def ready(self) -> None:
        """The process consumes."""
        self._say(b"r")

    def _pulse(self) -> None:
        self._say(b".")

    def _say(self, word: bytes) -> None:
        if self._pulse_fd is not None:
            with contextlib.suppress(OSError):  # the supervisor is gone; this process follows it
                os.write(self._pulse_fd, word)

    def drain(self) -> None:
        """Take nothing new; attempts stop at their next step boundary."""
        if self._runtime is not None:
            self._runtime.drain()

    def stop(self) -> None:
        """Close everything. Threads that hang in a tool end with the process."""
        if self._runtime is None:
            return
        self._runtime.stop()
        if self._runtime.has_stuck_threads:
            logging.shutdown()
            os._exit(0)


def recycle(why: str, grace_s: float) -> None:
    """End this process in order, for its supervisor to start a fresh one; past the grace it ends all the same."""
    log.error("%s; this process drains and ends", why)
    os.kill(os.getpid(), signal.SIGTERM)
    last = threading.Timer(grace_s + LAST_RESORT_S, os._exit, args=(1,))
    last.daemon = True
    last.start()


def exit_code(error: MakegoodError) -> int:
    """Exit code of a failed start (OPERATIONS, "Command line")."""
    return 8 if isinstance(error, ConnectionError) else 2

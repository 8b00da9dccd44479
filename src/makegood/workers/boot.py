"""What happens in a worker process before its first message and after its last one."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from makegood.errors import MakegoodError
from makegood.monitoring import sentry
from makegood.settings import Settings
from makegood.store.connect import open_sync
from makegood.store.ops.catalog import set_aside
from makegood.tasks.loading import load_agents
from makegood.tasks.wakeup import RUNS_QUEUE
from makegood.workers import consumer
from makegood.workers.exits import GAVE_UP
from makegood.workers.runtime import Runtime
from makegood.workers.server_check import check_server, raise_for

log = logging.getLogger("makegood.worker")

LAST_RESORT_S = 5.0
"""A process that should have ended in order ends so much later without it, whatever holds it."""


class Boot:
    """Builds the process's runtime when Celery starts, and takes it down."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._runtime: Runtime | None = None
        self._pulse_fd: int | None = None
        self._boot_id: str | None = None
        self._stops = self._own_stops = 0
        self._recycles = False

    def supervised(self, pulse_fd: int, boot_id: str) -> None:
        """The pipe on which the supervisor listens, and the id it gave this start.

        One line per word: `serves AGENT` for each, `ready`, and `.` for a heartbeat.
        """
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
            sentry.start(
                None if dsn is None else dsn.get_secret_value(),
                traces=self._settings.sentry_traces,
                payloads=self._settings.sentry_payloads,
                span_items=self._settings.sentry_span_items,
            )
            agents = load_agents(",".join(self._settings.agents))
            if self._pulse_fd is None:  # else whoever started the supervisor has done it
                self._check_server()
            for tool in (tool for agent in agents.values() for tool in agent.tools.values()):
                tool.check_masking(self._settings.secret_fields)
            self._runtime = Runtime(
                self._settings,
                agents,
                on_recycle=self.recycle,
                pulse=self._pulse,
                boot_id=self._boot_id,
                queue=queues[0] if queues else RUNS_QUEUE,
                also=queues[1:],
                slots=slots,
            )
            self._runtime.start()
        except MakegoodError as error:
            print(str(error), file=sys.stderr, flush=True)
            os._exit(exit_code(error))
        runtime = self._runtime
        consumer.tolerate_garbage()
        consumer.aside.append(lambda reason, raw: runtime.do(set_aside(reason, raw)))
        show_stacks_without_values()

    def _check_server(self) -> None:
        """Log the warnings of the server check. Raises UnsupportedServer, StoreUnreachable."""
        with open_sync(self._settings.redis_url) as client:
            findings = check_server(client)
        raise_for(findings, strict=False)
        for finding in findings:
            if finding.level == "warn":
                log.warning("%s", finding.text)

    def ready(self) -> None:
        """The process consumes. From now on Ctrl-C does what SIGTERM does: Celery's second one would wait for every run."""
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))
        for name in self.runtime().agents:
            self._say(b"serves " + name.encode())
        self._say(b"ready")

    def _pulse(self) -> None:
        self._say(b".")

    def _say(self, word: bytes) -> None:
        if self._pulse_fd is not None:
            with contextlib.suppress(OSError):  # the supervisor is gone; this process follows it
                os.write(self._pulse_fd, word + b"\n")

    def drain(self) -> None:
        """Told to stop. First: take nothing new, attempts stop at their next step boundary. Second: bodies stop now.

        Called by Celery's signal handler, once per SIGTERM.
        """
        if self._own_stops:
            self._own_stops -= 1
        else:
            self._stops += 1
        if self._runtime is None:
            return
        self._runtime.drain()
        if self._stops == 2:
            self._runtime.dispose()
            end_after(LAST_RESORT_S)

    def recycle(self, why: str) -> None:
        """End this process in order, for its supervisor to start a fresh one; past the grace it ends all the same."""
        if self._recycles:
            return
        self._recycles = True
        log.error("%s; this process drains and ends", why)
        self._own_stops += 1
        os.kill(os.getpid(), signal.SIGTERM)
        end_after(self._settings.grace_s + LAST_RESORT_S)

    def stop(self) -> None:
        """Close everything. Threads that hang in a tool end with the process."""
        if self._runtime is None:
            return
        self._runtime.stop()
        if self._runtime.has_stuck_threads:
            logging.shutdown()
            sentry.flush()
            os._exit(0)


def end_after(limit_s: float) -> None:
    """End the process without order when it has not ended by then."""
    last = threading.Timer(limit_s, os._exit, args=(GAVE_UP,))
    last.daemon = True
    last.start()


def show_stacks_without_values() -> None:
    """SIGUSR1 shows where every thread is. Celery's own handler for it would log all local variables: prompts, secrets."""
    from celery.apps import worker

    def install() -> None:
        faulthandler.register(signal.SIGUSR1, all_threads=True)

    worker.install_cry_handler = install
    install()


def exit_code(error: MakegoodError) -> int:
    """Exit code of a failed start."""
    return 8 if isinstance(error, ConnectionError) else 2

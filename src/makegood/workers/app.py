"""The Celery application: `celery -A makegood.workers.app worker -Q makegood.runs -P threads -c 100`.

`makegood worker` starts the same application under its supervisor.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import Celery, signals
from celery.exceptions import Reject

from makegood.errors import MakegoodError
from makegood.settings import Settings
from makegood.tasks.wakeup import RUN_TASK, WAKE_TASK, celery_config
from makegood.workers import intake
from makegood.workers.boot import Boot

log = logging.getLogger("makegood.worker")

REQUEUE_PAUSE_S = 1.0
"""A request that the store does not take comes straight back."""


def _settings() -> Settings:
    try:
        return Settings.load()
    except MakegoodError as error:
        raise SystemExit(str(error)) from None


settings = _settings()
app = Celery("makegood")
app.conf.update(celery_config(settings.broker_url), worker_consumer="makegood.workers.consumer:Consumer")
boot = Boot(settings)


@app.task(name=WAKE_TASK, ignore_result=True)  # type: ignore[untyped-decorator]
def wake(run_id: Any) -> None:
    """Wake-up: claim the oldest due run of the shard that the run id names, and execute it."""
    boot.runtime().perform(run_id)


@app.task(name=RUN_TASK, ignore_result=True, acks_late=True, reject_on_worker_lost=True, bind=True)  # type: ignore[untyped-decorator]
def run(self: Any, *args: Any, **kwargs: Any) -> None:
    """A request from any Celery client; acknowledged once its record is written. Without a key its task id is the key."""
    try:
        intake.accept(boot.runtime(), args, kwargs, self.request.id)
    except MakegoodError as error:  # not recorded; Celery would acknowledge a failed task
        log.error("a request could not be recorded and goes back to the queue: %s", error)
        time.sleep(REQUEUE_PAUSE_S)
        raise Reject(str(error), requeue=True) from error


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _init(sender: Any = None, **_: Any) -> None:
    queues = [str(name) for name in getattr(sender.app.amqp.queues, "consume_from", {})] if sender else []
    boot.start(queues, int(getattr(sender, "concurrency", 0) or settings.concurrency))


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _ready(**_: Any) -> None:
    boot.ready()


@signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _shutting_down(**_: Any) -> None:
    boot.drain()


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _shutdown(**_: Any) -> None:
    boot.stop()

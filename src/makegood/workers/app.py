"""The Celery application: `celery -A makegood.workers.app worker -Q makegood.runs -P threads -c 100`.

`makegood worker` starts the same application under its supervisor.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, signals

from makegood.errors import MakegoodError
from makegood.settings import Settings
from makegood.tasks.wakeup import RUN_TASK, WAKE_TASK, celery_config
from makegood.workers import intake
from makegood.workers.boot import Boot


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
def run(self: Any, agent: Any = None, input: Any = None, key: Any = None, **unknown: Any) -> None:  # noqa: A002
    """A request from any Celery client; acknowledged once its record is written. Without a key its task id is the key."""
    intake.accept(boot.runtime(), agent, input, key or self.request.id, unknown)


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

"""The Celery messages: a wake-up that carries a run id, and the plain message that carries a request.

Producers and workers share this configuration, so that neither can be set in a way in which Celery's known
traps bite. The message is only a hint: the run's truth is in the store.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from makegood.errors import BrokerUnreachable, NotAllowed

if TYPE_CHECKING:
    from celery import Celery

    from makegood.store.ops.reads import Whereabouts

RUNS_QUEUE = "makegood.runs"
CLEANUP_QUEUE = "makegood.cleanup"
QUARANTINE_QUEUE = "makegood.quarantine"
WAKE_TASK = "makegood.wake"
RUN_TASK = "makegood.run"

BROKER_SOCKET_S = 10
"""Limit of one broker operation; a half-open connection is noticed within it."""

PUBLISH_SOCKET_S = 5
"""A producer does not wait for messages, so a broker that does not answer it for so long is half-open."""

PUBLISH_RETRIES = 2

NOT_FOUND, REFUSED = 404, (403, 530)
"""AMQP's reply codes: no such queue; wrong credentials, no permission, or no access to the virtual host."""

NO_PERMISSION = "NoPermissionError"
"""What redis-py calls the answer NOPERM."""


def queue_for(where: Whereabouts) -> str | None:
    """The queue of those that may take a run; None when it waits for nobody."""
    if where.state not in ("queued", "cleaning"):
        return None
    if where.alone:
        return QUARANTINE_QUEUE
    return CLEANUP_QUEUE if where.state == "cleaning" else RUNS_QUEUE


def celery_config(broker_url: str) -> dict[str, Any]:
    """Celery's settings: JSON only, early ack, no results, no prefetch, bounded sockets, endless reconnect."""
    redis_broker = broker_url.startswith(("redis", "rediss", "valkey"))
    transport: dict[str, Any] = {}
    if redis_broker:
        transport = {
            "socket_timeout": BROKER_SOCKET_S * 3,
            "socket_connect_timeout": BROKER_SOCKET_S,
            "socket_keepalive": not broker_url.startswith("redis+socket"),
            "health_check_interval": BROKER_SOCKET_S,
        }
    return {
        "broker_url": broker_url,
        "broker_transport_options": transport,
        "broker_connection_timeout": BROKER_SOCKET_S,
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_pool_limit": 10,
        "task_serializer": "json",
        "accept_content": ["json"],
        "result_backend": None,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_acks_late": False,
        "task_default_queue": RUNS_QUEUE,
        "task_create_missing_queues": True,
        "task_routes": {WAKE_TASK: {"queue": RUNS_QUEUE}, RUN_TASK: {"queue": RUNS_QUEUE}},
        "task_publish_retry": True,
        "task_publish_retry_policy": {
            "max_retries": PUBLISH_RETRIES,
            "interval_start": 0.1,
            "interval_max": 1,
        },
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": redis_broker,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "worker_enable_remote_control": False,
        "worker_redirect_stdouts": False,
        "enable_utc": True,
        "event_queue_ttl": 60,
    }


class Publisher:
    """Sends wake-ups. Safe to use from several threads; loads Celery when first used."""

    def __init__(self, broker_url: str, shown_url: str) -> None:
        self._broker_url, self._shown_url = broker_url, shown_url
        self._lock = threading.Lock()
        self._app: Celery | None = None

    def wake(self, run_id: str, queue: str = RUNS_QUEUE) -> None:
        """Announce a run. Raises BrokerUnreachable, or NotAllowed; the run is in the store all the same."""
        from kombu.exceptions import OperationalError

        app = self._celery()
        with app.connection_for_write() as unopened:
            failures = (*unopened.connection_errors, *unopened.channel_errors, OperationalError, OSError)
        try:
            app.send_task(WAKE_TASK, args=(run_id,), queue=queue, ignore_result=True)
        except failures as error:
            why = first_line(error)
            if is_refusal(error):
                raise NotAllowed(
                    f"Run {run_id} is stored, but the broker at {self._shown_url} does not let this user announce it "
                    f"({why}); let its administrator grant it, or correct MAKEGOOD_BROKER_URL. A worker's sweeper finds "
                    "the run meanwhile."
                ) from error
            raise BrokerUnreachable(
                f"Run {run_id} is stored, but the broker at {self._shown_url} cannot be reached to announce it ({why}); "
                "start the broker, and a worker's sweeper finds the run by itself. Enqueue it again only with the same key."
            ) from error

    def queue_length(self, queue: str = RUNS_QUEUE) -> int:
        """Messages that wait in a queue; 0 when the queue does not exist yet. Raises BrokerUnreachable, NotAllowed."""
        with self._celery().connection_for_read() as connection:
            failures = (*connection.connection_errors, *connection.channel_errors, OSError)
            try:
                with connection.channel() as channel:
                    return int(channel.queue_declare(queue=queue, passive=True).message_count)
            except failures as error:
                if _code(error) == NOT_FOUND:
                    return 0
                if is_refusal(error):
                    raise NotAllowed(
                        f"The broker at {self._shown_url} does not let this user look at the queue {queue} "
                        f"({first_line(error)}); let its administrator grant it, or correct MAKEGOOD_BROKER_URL."
                    ) from error
                raise BrokerUnreachable(
                    f"The broker at {self._shown_url} cannot be reached ({first_line(error)}); start it, or correct "
                    "MAKEGOOD_BROKER_URL."
                ) from error

    def close(self) -> None:
        """Close the connections to the broker."""
        if self._app is not None:
            self._app.close()

    def _celery(self) -> Celery:
        with self._lock:
            if self._app is None:
                from celery import Celery

                app = Celery("makegood-producer", set_as_current=False)
                config = celery_config(self._broker_url)
                if "socket_timeout" in config["broker_transport_options"]:
                    config["broker_transport_options"]["socket_timeout"] = PUBLISH_SOCKET_S
                app.conf.update(config)
                self._app = app
            return self._app


def is_refusal(error: BaseException) -> bool:
    """Whether the broker answered and says no; kombu hides that behind errors of its own."""
    at: BaseException | None = error
    while at is not None:
        if _code(at) in REFUSED or type(at).__name__ == NO_PERMISSION:
            return True
        at = at.__cause__ or at.__context__
    return False


def _code(error: BaseException) -> int:
    """AMQP's reply code; kombu's transports give it as text."""
    code = str(getattr(error, "reply_code", None) or "")
    return int(code) if code.isdecimal() else 0


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, short."""
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__

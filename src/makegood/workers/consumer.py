"""Celery's consumer, made to lose nothing: a message it cannot use is set aside with its reason (CLI: `messages`)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.utils.json import loads as kombu_loads

log = logging.getLogger("makegood.worker")

SHOWN_BYTES = 64 * 1024
"""Of a message that is set aside so much is kept."""

aside: list[Callable[[str, bytes], None]] = []
"""Where unusable messages go; the process boot registers the store here."""


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Sets aside what Celery would log and drop: undecodable, foreign, unknown, invalid."""

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """Celery's handler; what it stumbles over (a body of another shape) is set aside and does not end the worker."""
        handle = super().create_task_handler(*args, **kwargs)

        def on_task_received(message: Any) -> None:
            try:
                handle(message)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                if message.acknowledged:
                    raise
                keep(message, f"The task message is not valid: {first_line(error)}")

        return on_task_received

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        """A body that is no JSON, or of a content type (pickle) that is not accepted."""
        keep(message, f"The message is not accepted: {first_line(exc)} Send JSON.")

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """A message that is no Celery task."""
        keep(
            message,
            "The message is no Celery task message; send makegood.run(agent=…, input=…) as a Celery task.",
        )

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """A task name that this worker does not have."""
        name = (message.headers or {}).get("task", "?")
        keep(message, f"There is no task {str(name)[:80]!r} here; send makegood.run(agent=…, input=…).")

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """A task message that is malformed."""
        keep(message, f"The task message is not valid: {first_line(exc)}")


def keep(message: Any, reason: str) -> None:
    """Set a message aside; when the store cannot take it, it goes back to the queue."""
    raw = (
        message.body
        if isinstance(message.body, bytes)
        else str(message.body).encode("utf-8", "backslashreplace")
    )
    log.error("message set aside: %s", reason)
    try:
        for target in aside:
            target(reason, raw[:SHOWN_BYTES])
    except Exception:
        log.exception("a message could not be set aside; it goes back to the queue")
        message.requeue()
        return
    message.ack()


def tolerate_garbage() -> None:
    """Bytes in the broker's list that are no message become a message that this consumer sets aside.

    kombu would end the worker over them, after they are gone from the list.
    """
    from kombu.transport import redis as transport

    transport.loads = message_of


def message_of(raw: str) -> Any:
    """A message in kombu's form, whatever was in the list; kombu's own triples (message, exchange, key) as they are."""
    with contextlib.suppress(ValueError):
        found = kombu_loads(raw)
        message = found[0] if isinstance(found, list) and len(found) == 3 else found
        if isinstance(message, dict) and isinstance(message.get("properties"), dict):
            return found
    properties = {"delivery_tag": str(uuid4()), "delivery_info": {"exchange": "", "routing_key": ""}}
    return {
        "body": raw,
        "content-type": "application/octet-stream",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": properties,
    }


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, short."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]

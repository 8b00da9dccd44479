"""Celery's consumer, made to lose nothing: a message it cannot use is set aside with its reason (CLI: `messages`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer

log = logging.getLogger("makegood.worker")

SHOWN_BYTES = 64 * 1024
"""Of a message that is set aside so much is kept."""

aside: list[Callable[[str, bytes], None]] = []
"""Where unusable messages go; the process boot registers the store here."""


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Sets aside what Celery would log and drop: undecodable, foreign, unknown, invalid."""

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        """A body that is no JSON, or of a content type (pickle) that is not accepted."""
        keep(message, f"The message is not accepted: {first_line(exc)} Send JSON.")

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """A message that is no Celery task."""
        keep(message, "The message is no Celery task message; send makegood.run(agent=…, input=…) as a Celery task.")

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """A task name that this worker does not have."""
        name = (message.headers or {}).get("task", "?")
        keep(message, f"There is no task {str(name)[:80]!r} here; send makegood.run(agent=…, input=…).")

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        """A task message that is malformed."""
        keep(message, f"The task message is not valid: {first_line(exc)}")


def keep(message: Any, reason: str) -> None:
    """Set a message aside; when the store cannot take it, it goes back to the queue."""
    raw = message.body if isinstance(message.body, bytes) else str(message.body).encode("utf-8", "backslashreplace")
    log.error("message set aside: %s", reason)
    try:
        for target in aside:
            target(reason, raw[:SHOWN_BYTES])
    except Exception:
        log.exception("a message could not be set aside; it goes back to the queue")
        message.requeue()
        return
    message.ack()


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, short."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]

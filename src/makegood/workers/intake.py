"""Plain Celery messages `makegood.run(agent=…, input=…, key=…)`: recorded like an enqueue, or set aside with a reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from makegood.errors import BrokerUnreachable, InvalidInput, KeyConflict, StoreUnreachable, UnknownAgent
from makegood.store.ops.catalog import set_aside
from makegood.tasks import queries
from makegood.workers.runtime import Runtime

log = logging.getLogger("makegood.worker")

TAKES = ("agent", "input", "key")
"""Arguments of `makegood.run`, in their order."""


def accept(runtime: Runtime, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str) -> None:
    """Record the request and announce it; what is not valid is set aside and acknowledged.

    Raises StoreUnreachable; then the message has to go back to the queue.
    """
    given = {**dict(zip(TAKES, args, strict=False)), **kwargs}
    try:
        unknown = [
            *(f"argument {n + 1}" for n in range(len(TAKES), len(args))),
            *sorted(set(kwargs) - set(TAKES)),
        ]
        if unknown:
            names = ", ".join(unknown)[:200]
            raise InvalidInput(f"makegood.run takes agent, input and key; it does not know {names}.")
        request = queries.checked_request(
            given.get("agent"), given.get("input"), given.get("key") or task_id, None
        )
        made = runtime.run_flow(queries.enqueue(request))
    except (InvalidInput, UnknownAgent, KeyConflict) as error:
        log.error("message set aside: %s", error)
        raw = orjson.dumps({"args": args, "kwargs": kwargs, "id": task_id}, default=str)[: 64 * 1024]
        runtime.do(set_aside(str(error), raw))
        return
    except StoreUnreachable:
        log.error("the store cannot be reached; the message goes back to the queue")
        raise
    try:
        runtime.publisher.wake(made.run_id)
    except BrokerUnreachable as error:
        log.warning("%s", error)

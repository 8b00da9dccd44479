"""Plain Celery messages `makegood.run(agent=…, input=…, key=…)`: recorded like an enqueue, or set aside with a reason."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from makegood.errors import BrokerUnreachable, InvalidInput, KeyConflict, StoreUnreachable, UnknownAgent
from makegood.store.ops.catalog import set_aside
from makegood.tasks import queries
from makegood.workers.runtime import Runtime

log = logging.getLogger("makegood.worker")


def accept(runtime: Runtime, agent: Any, value: Any, key: Any, unknown: dict[str, Any]) -> None:
    """Record the request and announce it; what is not valid is set aside and acknowledged."""
    try:
        if unknown:
            names = ", ".join(sorted(unknown))[:200]
            raise InvalidInput(f"makegood.run takes agent, input and key; it does not know {names}.")
        request = queries.checked_request(agent, value, key, None)
        made = runtime.run_flow(queries.enqueue(request))
    except (InvalidInput, UnknownAgent, KeyConflict) as error:
        log.error("message set aside: %s", error)
        raw = orjson.dumps({"agent": agent, "input": value, "key": key, **unknown}, default=str)[: 64 * 1024]
        runtime.do(set_aside(str(error), raw))
        return
    except StoreUnreachable:
        log.error("the store cannot be reached; the message goes back to the queue")
        raise
    try:
        runtime.publisher.wake(made.run_id)
    except BrokerUnreachable as error:
        log.warning("%s", error)

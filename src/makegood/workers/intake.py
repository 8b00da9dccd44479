"""Plain Celery messages `makegood.run(agent=…, input=…, key=…)`: recorded like an enqueue, or set aside with a reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from makegood.errors import (
    BrokerUnreachable,
    InvalidInput,
    KeyConflict,
    MakegoodError,
    NotAllowed,
    UnknownAgent,
)
from makegood.monitoring.sentry import report_bug
from makegood.store.ops.catalog import set_aside
from makegood.tasks import queries
from makegood.workers.runtime import Runtime

log = logging.getLogger("makegood.worker")

TAKES = ("agent", "input", "key")
"""Arguments of `makegood.run`, in their order."""


def accept(runtime: Runtime, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str) -> None:
    """Record the request and announce it; what is not valid is set aside and acknowledged.

    Raises StoreUnreachable, NotAllowed and the like: it is not recorded, so the message has to go back to the queue.
    """
    with runtime.hearing():
        _accept(runtime, args, kwargs, task_id)


def _accept(runtime: Runtime, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str) -> None:
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
        _keep(runtime, str(error), args, kwargs, task_id)
        return
    except MakegoodError:
        raise
    except Exception as error:  # a bug that this message meets would meet it again, for ever
        report_bug(error, {"task": task_id})
        _keep(runtime, f"The request cannot be read ({type(error).__name__}).", args, kwargs, task_id)
        return
    try:
        runtime.publisher.wake(made.run_id)
    except (BrokerUnreachable, NotAllowed) as error:  # it is recorded; a sweeper finds it
        log.warning("%s", error)


def _keep(runtime: Runtime, why: str, args: Sequence[Any], kwargs: Mapping[str, Any], task_id: str) -> None:
    log.error("message set aside: %s", why)
    raw = orjson.dumps({"args": args, "kwargs": kwargs, "id": task_id}, default=str)[: 64 * 1024]
    runtime.do(set_aside(why, raw))

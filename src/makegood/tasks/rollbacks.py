"""Kinds of resources: what is kept of one before a tool changes it, and how it is brought back (CONTRACT E2).

`redis_key` and `path` keep the prior state themselves; `callback` names a function; the others are registered with
`@resource`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import orjson

from makegood.errors import DeclarationError
from makegood.store.ops.resources import ResourceStatus, StoredResource, read_resources
from makegood.tasks import paths
from makegood.tasks.checks import check_signature, is_async
from makegood.tasks.context import ToolContext
from makegood.tasks.flows import Flow, resolved
from makegood.tasks.resources import registered_resources
from makegood.tasks.rules.failures import short_message
from makegood.urls import mask_url

KEEPS_ITSELF = frozenset({"redis_key", "path"})
"""Kinds that look at the prior state themselves."""

SNAPSHOT = "snapshot"
"""Call key of what an agent's `snapshot` hook declares."""

ID_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Declared:
    """A resource of a run. `call_key` is "snapshot" for what the agent's hook declared.

    `tries` are those of rolling it back in round `round_`; `seq` grows with each declaration of the run; `error` is
    `{code, message}` of the last failed try.
    """

    key: str
    kind: str
    id: str
    prior: Any
    attempt: int
    step: int
    call_key: str
    generation: int
    status: ResourceStatus
    tries: int
    round_: int
    seq: int
    since_ms: int
    at_ms: int
    error: dict[str, Any] | None

    @property
    def shown(self) -> str:
        """The id as people and logs may see it: without a password, cut."""
        return mask_url(self.id)[:200]

    @property
    def open(self) -> bool:
        """Whether it stands as declared: not rolled back yet."""
        return self.status in ("declared", "failed")


def load_resources(run_id: str) -> Flow[list[Declared]]:
    """All that a run has declared, oldest first; roll back in the reverse order."""
    (stored,) = yield [read_resources(run_id)]
    bodies = yield from resolved(run_id, {each.key: each.body for each in stored})
    return [_declared(each, bodies[each.key]) for each in stored]


def _declared(stored: StoredResource, body: bytes) -> Declared:
    error = orjson.loads(stored.error).get("error") if stored.error else None
    return Declared(
        key=stored.key,
        **orjson.loads(body),
        status=stored.status,
        tries=stored.tries,
        round_=stored.round_,
        seq=stored.seq,
        since_ms=stored.since_ms,
        at_ms=stored.at_ms,
        error=error,
    )


# --- before: what is kept -------------------------------------------------------------------------------------------


def check_declaration(
    kind: object,
    id: object,  # noqa: A002  # the word of the interface
    prior: object,
    store_url: str,
    kinds: Collection[str] | None = None,
) -> None:
    """Refuse what could not be rolled back: one sentence that says what to do. `kinds`: those registered elsewhere."""
    if not isinstance(id, str) or not 0 < len(id) <= ID_CHARS:
        raise DeclarationError(f"A resource needs an id: a text of 1 to {ID_CHARS} characters.")
    if kind in KEEPS_ITSELF and prior is not None:
        raise DeclarationError(f"Kind {kind!r} looks at the prior state itself; leave prior out.")
    if kind == "redis_key":
        _snapshots().target(id, store_url)
    elif kind == "path":
        paths.checked_path(id)
    elif kind == "callback":
        _callback(id)
    elif not isinstance(kind, str) or kind not in (registered_resources() if kinds is None else kinds):
        raise _unknown(kind)


def look_of(
    kind: str,
    id: str,  # noqa: A002
    store_url: str,
) -> tuple[Callable[[], Any], bool]:
    """What looks at the prior state of a kind that keeps it itself, as JSON, and whether it is async; else it may block."""
    if kind == "redis_key":
        url, key = _snapshots().target(id, store_url)
        return (lambda: _snapshots().take(url, key)), True
    path = paths.checked_path(id)
    return (lambda: paths.take(path)), False


# --- after: how it comes back ---------------------------------------------------------------------------------------


def rollback_of(
    resource_kind: str, resource_id: str, prior: Any, store_url: str
) -> tuple[Callable[[ToolContext], Any], bool]:
    """What brings a resource back: a function of the context, and whether it is async. Safe to run twice.

    Raises DeclarationError when this process knows no way: the kind is not registered. A callback is imported when the
    function runs, in its thread, since a module may do anything while it is imported.
    """
    if resource_kind == "redis_key":
        url, key = _snapshots().target(resource_id, store_url)
        return (lambda ctx: _snapshots().put_back(url, key, prior)), True
    if resource_kind == "path":
        path = paths.checked_path(resource_id)
        return (lambda ctx: paths.put_back(path, prior, ctx._check_may_act)), False
    if resource_kind == "callback":
        return (lambda ctx: _call_back(ctx, resource_id, prior)), False
    known = registered_resources().get(resource_kind)
    if known is None:
        raise _unknown(resource_kind)
    return (lambda ctx: known.fn(ctx, resource_id, prior)), known.is_async


def _call_back(ctx: ToolContext, id: str, prior: Any) -> Any:  # noqa: A002
    fn = _callback(id)
    if is_async(fn):
        return ctx._call_async(lambda own: fn(own, id, prior))
    return fn(ctx, id, prior)


def _snapshots() -> Any:
    """Loads a Redis client: not for whoever only declares tools."""
    from makegood.store import snapshots

    return snapshots


def _callback(id: str) -> Callable[..., Any]:  # noqa: A002
    """The function that an id `module:name` names; it takes (ctx, id, prior)."""
    module, _, name = id.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a module may raise anything while it is imported, SystemExit too
        raise DeclarationError(
            f"Callback {id[:200]!r} cannot be imported ({short_message(error)}); name it as module:function, at the top of a "
            "module that every worker can import."
        ) from error
    check_signature(f"Callback {id[:200]!r}", found, ("ctx", "id", "prior"))
    return found  # type: ignore[no-any-return]


def _unknown(kind: object) -> DeclarationError:
    return DeclarationError(
        f"No kind of resource is registered as {str(kind)[:80]!r}; import the module with its @resource where the agents "
        "are declared, or correct the name."
    )

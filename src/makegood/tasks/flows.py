"""Store work that both clients and the engine share, written once: a flow yields operations and gets their results."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from makegood.store.ops.blobs import read_blob, reference
from makegood.store.scripts import Op

if TYPE_CHECKING:
    from makegood.store.async_store import AsyncStore
    from makegood.store.sync_store import SyncStore

T = TypeVar("T")
Flow = Generator[Sequence[Op[Any]], list[Any], T]


def run_sync(store: SyncStore, flow: Flow[T]) -> T:
    """Run a flow on the blocking store."""
    try:
        ops = next(flow)
        while True:
            try:
                results = store.do_all(ops)
            except Exception as error:
                ops = flow.throw(error)
            else:
                ops = flow.send(results)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(store: AsyncStore, flow: Flow[T]) -> T:
    """Run a flow on the asyncio store."""
    try:
        ops = next(flow)
        while True:
            try:
                results = await store.do_all(ops)
            except Exception as error:
                ops = flow.throw(error)
            else:
                ops = flow.send(results)
    except StopIteration as end:
        result: T = end.value
        return result


def resolved(run_id: str, fields: dict[str, bytes]) -> Flow[dict[str, bytes]]:
    """The fields with every reference to a large body replaced by the body."""
    found = {name: digest for name, value in fields.items() if (digest := reference(value)) is not None}
    if not found:
        return fields
    digests = sorted(set(found.values()))
    bodies = yield [read_blob(run_id, digest) for digest in digests]
    by_digest = dict(zip(digests, bodies, strict=True))
    return {**fields, **{name: by_digest[digest] for name, digest in found.items()}}

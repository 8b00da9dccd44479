"""What a run declared it would create or change, and what became of rolling it back (CONTRACT E2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from makegood.store import keys
from makegood.store.codes import checked, text
from makegood.store.ops.args import NewEvent, blobs, events
from makegood.store.ops.reads import pairs
from makegood.store.ops.steps import Ack, acknowledged
from makegood.store.scripts import Op

ResourceStatus = Literal["declared", "rolled_back", "failed"]


@dataclass(frozen=True, slots=True)
class StoredResource:
    """A declared resource as it is stored.

    Attributes:
        key: its name in the hash.
        body: JSON, or the reference to a large body.
        tries: of rolling it back, in `round_`.
        seq: grows with each declaration of the run; since_ms: when it was declared; at_ms: of its status.
        error: JSON of the last failed try, or None.
    """

    key: str
    body: bytes
    status: ResourceStatus
    at_ms: int
    tries: int
    round_: int
    seq: int
    since_ms: int
    error: bytes | None


def declare_resource(
    *, run_id: str, fence: str, op: str, key: str, body: bytes, blob_digests: Sequence[str] = ()
) -> Op[Ack]:
    """Make a declaration durable. One that stands under this key keeps the body it has. Raises StaleFence."""
    args = (run_id, fence, op, key, body, *blobs(blob_digests))
    return Op("declare_resource", (keys.prefix_of(run_id),), args, acknowledged(run_id))


@dataclass(frozen=True, slots=True)
class Settled:
    """Tries in the round, and the status that stands now ("rolled_back" is never replaced)."""

    tries: int
    status: ResourceStatus


def settle_resource(
    *,
    run_id: str,
    fence: str,
    op: str,
    key: str,
    status: Literal["rolled_back", "failed"],
    round_: int = 0,
    detail: bytes = b"",
    new_events: Sequence[NewEvent] = (),
) -> Op[Settled]:
    """Record how a try to roll back ended; `detail` is JSON {"error": …}. Raises Conflict outside of cleaning."""

    def parse(reply: list[Any]) -> Settled:
        checked(reply, run_id)
        return Settled(int(reply[1]), cast("ResourceStatus", text(reply[2])))

    args = (run_id, fence, op, key, status, round_, detail, *events(new_events))
    return Op("settle_resource", (keys.prefix_of(run_id),), args, parse)


def read_resources(run_id: str) -> Op[list[StoredResource]]:
    """All that the run has declared, oldest first."""

    def parse(reply: Any) -> list[StoredResource]:
        fields = pairs(reply)
        found = [_stored(name[:-2], fields) for name in fields if name.endswith(".s")]
        return sorted(found, key=lambda each: each.seq)

    return Op(None, (), ("HGETALL", keys.resources_key(run_id)), parse)


def read_declared(run_id: str, key: str) -> Op[bool]:
    """Whether a resource stands declared under this key, so that its prior state is known."""

    def parse(reply: Any) -> bool:
        return text(reply).partition("|")[0] in ("declared", "failed")

    return Op(None, (), ("HGET", keys.resources_key(run_id), f"{key}.s"), parse)


def _stored(key: str, fields: Mapping[str, bytes]) -> StoredResource:
    status, at_ms, _, tries, round_, seq, since_ms = text(fields[f"{key}.s"]).split("|")
    return StoredResource(
        key,
        fields[key],
        cast("ResourceStatus", status),
        int(at_ms),
        int(tries),
        int(round_),
        int(seq),
        int(since_ms),
        fields.get(f"{key}.v"),
    )

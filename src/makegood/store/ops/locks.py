"""Locks of runs (CONTRACT E7, invariant 13): registered with the run first, then acquired in a slot of their own.

`holder` is the id of one acquisition; a lock is given back and extended under it, and by its fence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from makegood.store import keys
from makegood.store.codes import checked, text
from makegood.store.ops.reads import pairs
from makegood.store.ops.steps import Ack, acknowledged
from makegood.store.scripts import Op


@dataclass(frozen=True, slots=True)
class Taking:
    """`token`: it is ours, with this number for checks downstream; None: somebody else's for `wait_ms` at the most."""

    token: int | None
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Registration:
    """A lock that a run may hold: by which fence number, under which acquisition, its name."""

    fence_number: int
    holder: str
    name: str


def fence_number(fence: str) -> int:
    """The `n` of a fence `n:nonce`."""
    return int(fence.partition(":")[0])


def register_lock(*, run_id: str, fence: str, op: str, holder: str, name: str) -> Op[Ack]:
    """Say that the run is about to take the lock. Raises StaleFence."""
    args = (run_id, fence, op, holder, name)
    return Op("register_lock", (keys.prefix_of(run_id),), args, acknowledged(run_id))


def unregister_lock(*, run_id: str, fence: str, op: str, name: str, holder: str | None = None) -> Op[Ack]:
    """The lock was released. `holder` None, as in cleanup: every registration of the name goes."""
    args = (run_id, fence, op, holder or "", name)
    return Op("unregister_lock", (keys.prefix_of(run_id),), args, acknowledged(run_id))


def acquire_lock(*, run_id: str, fence: str, holder: str, name: str, lifetime_ms: int) -> Op[Taking]:
    """Take the lock if it is free, has run out, or is held by an older fence of this run.

    Raises StaleFence when a newer fence of the run, or its cleanup, came first.
    """

    def parse(reply: list[Any]) -> Taking:
        checked(reply, run_id)
        return Taking(int(reply[1])) if int(reply[0]) == 1 else Taking(None, int(reply[1]))

    args = (run_id, fence_number(fence), fence, holder, lifetime_ms)
    return Op("acquire_lock", (keys.lock_key(name), keys.lock_floor_key(name, run_id)), args, parse)


def extend_lock(*, run_id: str, fence: str, holder: str, name: str, lifetime_ms: int) -> Op[bool]:
    """Let the lock last at least so long from now; False: it is not held by this acquisition any more."""
    return Op("extend_lock", (keys.lock_key(name),), (run_id, fence, holder, lifetime_ms), _is_one)


def release_lock(*, run_id: str, fence: str, holder: str, name: str) -> Op[bool]:
    """Give the lock back; False: it was not held by this acquisition any more, and nothing changed."""
    return Op("release_lock", (keys.lock_key(name),), (run_id, fence, holder), _is_one)


def free_lock(*, run_id: str, fence: str, name: str) -> Op[None]:
    """In cleanup: the run holds the lock no more, under whichever fence up to this one, and no older one takes it again.

    Raises StaleFence when a newer fence of the run holds it.
    """
    args = (run_id, fence_number(fence))
    return Op("free_lock", (keys.lock_key(name), keys.lock_floor_key(name, run_id)), args, _nothing(run_id))


def read_registrations(run_id: str) -> Op[list[Registration]]:
    """The locks that the run may hold."""

    def parse(reply: Any) -> list[Registration]:
        split = [text(member).split("|", 2) for member in reply]
        return sorted(
            (Registration(int(n), holder, name) for n, holder, name in split),
            key=lambda each: (each.name, each.fence_number, each.holder),
        )

    return Op(None, (), ("SMEMBERS", keys.locks_key(run_id)), parse)


def read_locks(run_id: str) -> Op[list[str]]:
    """The names of the locks that the run may hold, sorted."""
    whole = read_registrations(run_id)
    return Op(None, (), whole.args, lambda reply: sorted({each.name for each in whole.parse(reply)}))


def read_lock(name: str) -> Op[dict[str, str]]:
    """The lock's fields: `owner`, `n`, `fence`, `holder`, `until`, `token`; without an owner it is free."""

    def parse(reply: Any) -> dict[str, str]:
        fields = {field: text(value) for field, value in pairs(reply).items()}
        fields.pop("given_back", None)  # which acquisitions are over; the scripts' own
        return fields

    return Op(None, (), ("HGETALL", keys.lock_key(name)), parse)


def _is_one(reply: list[Any]) -> bool:
    return int(reply[0]) == 1


def _nothing(run_id: str) -> Callable[[list[Any]], None]:
    def parse(reply: list[Any]) -> None:
        checked(reply, run_id)

    return parse

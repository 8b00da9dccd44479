"""What a call may leave behind, said before it does: declared resources and locks (CONTRACT E2, E7).

A `Residue` belongs to one try of a call, or to an agent's `snapshot` hook, and works on the event loop under the fence of
its claim: once the run is someone else's, it refuses before anything is created.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeVar

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from makegood.errors import DeclarationError, LockTimeout, MakegoodError, StaleFence
from makegood.store.ops import locks, resources
from makegood.store.ops.blobs import spill
from makegood.store.scripts import Op
from makegood.tasks.masking import mask_named
from makegood.tasks.rollbacks import KEEPS_ITSELF, check_declaration, look_of
from makegood.tasks.rules.callkeys import digest
from makegood.tasks.rules.deadline import Deadline

T = TypeVar("T")
log = logging.getLogger("makegood.tool")

PRIOR_BYTES = 256 * 1024
"""Largest prior state that a tool may hand over."""

FIRST_POLL_S, POLL_S = 0.01, 0.1
"""Waits between two looks at a lock that somebody holds: doubled from the first to the second."""

BEFORE_LIMIT_S = 0.5
"""So long before the call's own limit (a tenth of it, if that is less) a wait for a lock ends, so that the code says what was
waited for: what follows takes its time, and a process of its own has to end."""

LIFETIME = 1.5
"""A lock outlives what is left of its attempt by half (CONTRACT E7)."""

NO_LIMIT_S = 24 * 3600.0
"""So long lives the lock of a call in a cleanup without limit. Its lifetime is the last resort: cleanup releases it."""

LAST_WORDS_S = 5.0
"""How long a thread waits for its lock to be given back."""


class Store(Protocol):
    """What is used of the store: `AsyncStore`."""

    url: str

    async def do(self, op: Op[T]) -> T:
        """Execute an operation."""

    async def do_all(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Execute operations in order."""

    def send(self, op: Op[T]) -> asyncio.Future[T]:
        """Queue an operation."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose residue it is: the claim, and the place in it."""

    run_id: str
    fence: str
    attempt: int
    step: int
    call_key: str
    generation: int


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that an attempt holds or is about to take."""

    name: str
    fence: str
    holder: str


@dataclass(slots=True)
class Residue:
    """Declares and locks for one owner.

    Attributes:
        deadline: of the call; run: of the attempt.
        held: the attempt's locks by holder, shared by its calls.
        new_op: gives a fresh operation id.
        on_stale: told when the run turns out to be someone else's.
        is_stopped: whether the owner was told to stop; then nothing new begins.
        kinds: the registered kinds, where this process does not know them.
        in_thread: runs what may block, to its end.
        prefix: how the holders begin, for whoever has to find the locks of a process that died.
        touched: whether the owner may have left anything; only before that does a lock timeout prove that nothing was done.
    """

    owner: Owner
    store: Store
    deadline: Deadline
    run: Deadline
    held: dict[str, HeldLock]
    new_op: Callable[[], str]
    on_stale: Callable[[], None]
    is_stopped: Callable[[], bool]
    secret_fields: tuple[str, ...] = ()
    kinds: Collection[str] | None = None
    prefix: str = ""
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread
    touched: bool = False
    began_s: float = field(default_factory=time.monotonic)

    # --- resources ----------------------------------------------------------------------------------------------

    async def declare(self, kind: str, id: str, prior: object | None = None) -> None:  # noqa: A002
        """Make durable what is about to be created or changed; returns when it is. Raises StaleFence."""
        if kind == "callback":  # it may have to be imported
            await self.in_thread(lambda: self.check(kind, id, prior))
        else:
            self.check(kind, id, prior)
        if await self.has_to_look(kind, id):
            look, is_async = look_of(kind, id, self.store.url)
            prior = await (look() if is_async else self.in_thread(look))
        await self.record(kind, id, prior)

    def check(self, kind: str, id: str, prior: object | None) -> None:  # noqa: A002
        """Refuse what cannot be declared. Works in any thread."""
        self._check_stopped()
        check_declaration(kind, id, prior, self.store.url, self.kinds)

    async def has_to_look(self, kind: str, id: str) -> bool:  # noqa: A002
        """Whether the prior state is still to be looked at: only once, a repeat may find the run's own work there."""
        if kind not in KEEPS_ITSELF:
            return False
        return not await self._do(resources.read_declared(self.owner.run_id, self._key(kind, id)))

    async def record(self, kind: str, id: str, prior: object | None) -> None:  # noqa: A002
        """Make a checked declaration durable."""
        owner = self.owner
        body, digests, ahead = spill(owner.run_id, self._body(kind, id, prior))
        self._check_stopped()
        if ahead:
            await self.store.do_all(ahead)
        self.touched = True
        await self._do(
            resources.declare_resource(
                run_id=owner.run_id,
                fence=owner.fence,
                op=self.new_op(),
                key=self._key(kind, id),
                body=body,
                blob_digests=digests,
            )
        )

    def _key(self, kind: str, id: str) -> str:  # noqa: A002
        return digest([self.owner.call_key, self.owner.generation, kind, id])

    def _body(self, kind: str, id: str, prior: object) -> bytes:  # noqa: A002
        owner = self.owner
        try:
            kept = to_jsonable_python(prior)
            if kind not in KEEPS_ITSELF:
                kept = mask_named(kept, self.secret_fields)
                size = len(orjson.dumps(kept))
                if size > PRIOR_BYTES:
                    raise DeclarationError(
                        f"The prior state of {kind} {id[:80]!r} has {size} bytes, more than 256 KiB; keep it elsewhere and "
                        "give a reference."
                    )
            return orjson.dumps(
                {
                    "kind": kind,
                    "id": id,
                    "prior": kept,
                    "attempt": owner.attempt,
                    "step": owner.step,
                    "call_key": owner.call_key,
                    "generation": owner.generation,
                }
            )
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, DeclarationError):
                raise
            raise DeclarationError(
                f"Id or prior state of {kind} {id[:80]!r} is no JSON ({str(error)[:120]}); give texts, numbers, lists and objects."
            ) from None

    # --- locks --------------------------------------------------------------------------------------------------

    def lock(self, name: str) -> Hold:
        """`async with … as token`: the lock is held inside."""
        return Hold(self, checked_name(name))

    def new_holder(self) -> str:
        """The id of one acquisition."""
        return self.prefix + secrets.token_hex(8)

    async def take(self, name: str, holder: str) -> int:
        """Wait for a lock until the call's limit; its token. Raises LockTimeout, StaleFence."""
        self._check_stopped()
        owner = self.owner
        until_s = self._wait_until_s()
        pause_s = FIRST_POLL_S
        self.held[holder] = HeldLock(name, owner.fence, holder)
        try:
            where = {"run_id": owner.run_id, "fence": owner.fence, "holder": holder, "name": name}
            await self._do(locks.register_lock(**where, op=self.new_op()))
            while True:
                taking = await self._do(locks.acquire_lock(**where, lifetime_ms=self._lifetime_ms()))
                if taking.token is not None:
                    self._check_stopped()
                    self.touched = True
                    return taking.token
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise self._timeout(name)
                await asyncio.sleep(min(pause_s, left_s, taking.wait_ms / 1000 + 0.001))
                pause_s = min(POLL_S, pause_s * 2)
        except BaseException:
            self.give_back(name, holder)
            raise

    def give_back(self, name: str, holder: str) -> list[asyncio.Future[Any]]:
        """Release and unregister, in this order: both are on their way when this returns, also in a cancelled task."""
        owner = self.owner
        self.held.pop(holder, None)
        where = {"run_id": owner.run_id, "fence": owner.fence, "holder": holder, "name": name}
        return [
            self.store.send(locks.release_lock(**where)),
            self.store.send(locks.unregister_lock(**where, op=self.new_op())),
        ]

    async def given_back(self, name: str, holder: str, *, quiet: bool) -> None:
        """The same, awaited. `quiet`: an error is on its way already and must not be hidden by another."""
        try:
            released, _ = [await reply for reply in self.give_back(name, holder)]
            if not released and not quiet:
                log.warning("run %s: lock %r had run out before it was given back", self.owner.run_id, name)
        except StaleFence:
            self.on_stale()
            if not quiet:
                raise
        except MakegoodError as error:
            log.warning("run %s: lock %r could not be given back: %s", self.owner.run_id, name, error)

    def _wait_until_s(self) -> float:
        limit_s = self.deadline.at_s - self.began_s
        return self.deadline.at_s - min(BEFORE_LIMIT_S, limit_s / 10)

    def _lifetime_ms(self) -> int:
        left_s = self.run.left_s(time.monotonic())
        return max(1, math.ceil((NO_LIMIT_S if math.isinf(left_s) else LIFETIME * left_s) * 1000))

    def _timeout(self, name: str) -> LockTimeout:
        waited_s = time.monotonic() - self.began_s
        return LockTimeout(
            f"Lock {name[:80]!r} is held by someone else and was not free within the limit of the call ({waited_s:.1f} s).",
            nothing_done=not self.touched,
        )

    # --- both ---------------------------------------------------------------------------------------------------

    def _check_stopped(self) -> None:
        if self.is_stopped():
            raise TimeoutError("The call was told to stop, or its limit is reached; nothing new may begin.")

    async def _do(self, op: Op[T]) -> T:
        try:
            return await self.store.do(op)
        except StaleFence:
            self.on_stale()
            raise


def checked_name(name: object) -> str:
    """Refuse what is no name of a lock."""
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise DeclarationError("A lock needs a name: a text of 1 to 200 characters.")
    return name


class Hold:
    """A lock in an async tool."""

    def __init__(self, residue: Residue, name: str) -> None:
        self._residue, self._name, self._holder = residue, name, ""

    async def __aenter__(self) -> int:
        """Wait for the lock; a number that grows each time anybody takes it, for checks downstream."""
        holder = self._residue.new_holder()
        token = await self._residue.take(self._name, holder)
        self._holder = holder  # only now: one object may be entered by several, and one of them is inside
        return token

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._residue.given_back(self._name, self._holder, quiet=error is not None)


# --- of a process that died -----------------------------------------------------------------------------------------


async def release_of_dead(store: Store, run_id: str, fence: str, prefix: str) -> None:
    """Release the locks whose holders begin so. They stay registered, for what of the dead process is still on its way."""
    with contextlib.suppress(MakegoodError, TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            found = await store.do(locks.read_registrations(run_id))
            mine = [each for each in found if each.holder.startswith(prefix)]
            await store.do_all(
                [
                    locks.release_lock(run_id=run_id, fence=fence, holder=each.holder, name=each.name)
                    for each in mine
                ]
            )

"""Operations on a whole run: enqueue, claim, release, end, cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, Literal

from makegood.errors import Conflict
from makegood.store import keys
from makegood.store.codes import Code, checked, text
from makegood.store.ops.args import NewEvent, Sample, blobs, counted, events, new_op, samples
from makegood.store.ops.reads import pairs
from makegood.store.scripts import Op
from makegood.store.states import State


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Answer of an enqueue: the run, whether this call made it, and its state."""

    run_id: str
    created: bool
    state: State


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed run: its record as stored, the fence of this claim, server time in ms."""

    run_id: str
    fence: str
    now_ms: int
    record: dict[str, str]


def enqueue_run(
    *,
    run_id: str,
    agent: str,
    session: str | None,
    key: str | None,
    body: bytes,
    input_digest: str,
    expires_in_ms: int | None,
    blob_digests: Sequence[str] = (),
) -> Op[Enqueued]:
    """Record a run; the same key with the same input gives the run that is there.

    Raises KeyConflict when the key belongs to a run with another input.
    """
    key_digest = keys.dedupe_digest(agent, session, key) if key is not None else ""
    born = [NewEvent("run.enqueued", {"agent": agent})]

    def parse(reply: list[Any]) -> Enqueued:
        checked(reply, run_id)
        return Enqueued(text(reply[1]), int(reply[0]) == 1, State(text(reply[2])))

    expires = "" if expires_in_ms is None else expires_in_ms
    args = (run_id, agent, session or "", key_digest, key or "", body, input_digest, expires)
    return Op("enqueue_run", (keys.prefix_of(run_id),), (*args, *blobs(blob_digests), *events(born)), parse)


def claim_of(run_id: str, now_ms: int, fields: Mapping[str, bytes]) -> Claim:
    """A claim from the record's fields."""
    record = {
        intern(name): text(value) for name, value in fields.items()
    }  # a process may hold a thousand records
    return Claim(run_id, record["fence"], now_ms, record)


def claim_run(
    *,
    shard_prefix: str,
    nonce: str,
    worker: str,
    agents: Sequence[str],
    lease_ms: int = 10_000,
    quarantine: bool = False,
    hint: str = "",
) -> Op[Claim | None]:
    """Claim the next run of a shard that one of these agents owns; None when there is nothing to do.

    The run is covered by the worker's lease. `quarantine`: claim suspects, and nothing else. `hint`: the run that the
    message names, so that a message that comes in vain is counted.
    """

    def parse(reply: list[Any]) -> Claim | None:
        if int(reply[0]) == Code.NOTHING:
            return None
        return claim_of(text(reply[1]), int(reply[2]), pairs(reply[3:]))

    args = (nonce, worker, lease_ms, int(quarantine), hint, *counted([(name,) for name in agents]))
    return Op("claim_run", (shard_prefix,), args, parse)


def release_run(
    *,
    run_id: str,
    fence: str,
    op: str,
    target: Literal["queued", "parked"],
    continued: bool,
    due_in_ms: int = 0,
    max_continuations: int | None = None,
    sends: str = "",
    l2_used_ms: int = 0,
    latencies: Sequence[Sample] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[State]:
    """Let go of a run that goes on later. `max_continuations` None: this release does not count as one."""

    def parse(reply: list[Any]) -> State:
        return State(text(checked(reply, run_id)[1]))

    limit = "" if max_continuations is None else max_continuations
    args = (run_id, fence, op, target, int(continued), due_in_ms, limit, sends, l2_used_ms)
    tail = (*samples(latencies), *events(new_events))
    return Op("release_run", (keys.prefix_of(run_id),), (*args, *tail), parse)


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What cleanup is to do: why, what state follows (`queued`: the next attempt), what to undo.

    `undo`: "none" (the run would succeed: unknown outcomes are settled, no more), "policy" (what the agent and its tools
    say), "all" (whatever can be undone: an operator asks for it). `needed`: effects stand that are to be undone; what else
    has to be cleaned up the store knows itself.
    """

    cause: Literal["timeout", "failure", "cancel", "crash", "unknown", "manual"]
    target: State
    undo: Literal["none", "policy", "all"]
    needed: bool = True


def end_run(
    *,
    run_id: str,
    fence: str,
    op: str,
    state: State,
    code: str | None = None,
    message: str = "",
    output: bytes = b"",
    cleaning: Cleaning | None = None,
    latencies: Sequence[Sample] = (),
    blob_digests: Sequence[str] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[State]:
    """End a run, or hand it to cleanup first; gives the state it has now.

    A run with an unknown outcome, a registered lock or (unless it succeeded) a declared resource goes to cleanup in any
    case. Raises StaleFence when someone else executes it, Conflict when the table forbids the step.
    """

    def parse(reply: list[Any]) -> State:
        return State(text(checked(reply, run_id)[1]))

    undo: Literal["none", "policy"] = "none" if state == State.SUCCEEDED else "policy"
    how = cleaning or Cleaning("failure", state, undo, needed=False)
    head = (run_id, fence, op, str(how.target), str(state), code or "", message, output)
    why = (how.cause, how.undo, int(how.needed))
    tail = (*samples(latencies), *blobs(blob_digests), *events(new_events))
    return Op("end_run", (keys.prefix_of(run_id),), (*head, *why, *tail), parse)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Answer of a cancel: whether it changed anything, and the run's state after it."""

    accepted: bool
    state: State


def cancel_run(*, run_id: str, cause: str, actor: str, reason: str) -> Op[Cancelled]:
    """Cancel: a waiting run ends at once, a running one is told. A run that was told already is not told again."""

    def parse(reply: list[Any]) -> Cancelled:
        if int(reply[0]) == Code.BAD_STATE:
            raise Conflict(
                f"Run {run_id} is in review ({text(reply[1])}) and cannot be cancelled; decide about it: `makegood review "
                f"show {run_id}`."
            )
        checked(reply, run_id)
        return Cancelled(int(reply[0]) == 1, State(text(reply[1])))

    return Op("cancel_run", (keys.prefix_of(run_id),), (run_id, new_op(), cause, actor, reason), parse)

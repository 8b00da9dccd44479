"""Operations of a cleanup. Each checks the fence and that the run is in cleaning, in the same script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from makegood.store import keys
from makegood.store.codes import Code, checked, text
from makegood.store.ops.args import NewEvent, Sample, blobs, counted, events, samples
from makegood.store.ops.reads import pairs
from makegood.store.ops.runs import Claim, claim_of
from makegood.store.scripts import Op
from makegood.store.states import State


def claim_cleanup(
    *,
    shard_prefix: str,
    nonce: str,
    worker: str,
    agents: Sequence[str],
    lease_ms: int = 10_000,
    alone: bool = False,
    hint: str = "",
) -> Op[Claim | None]:
    """Claim the cleanup of a shard that has been due longest; None when none is due. `alone`: suspects only.

    `hint`: the run that the message names, so that a message that comes in vain is counted.
    """

    def parse(reply: list[Any]) -> Claim | None:
        if int(reply[0]) == Code.NOTHING:
            return None
        return claim_of(text(reply[1]), int(reply[2]), pairs(reply[3:]))

    args = (nonce, worker, lease_ms, int(alone), hint, *counted([(name,) for name in agents]))
    return Op("claim_cleanup", (shard_prefix,), args, parse)


@dataclass(frozen=True, slots=True)
class SentAgain:
    """A row, and how often cleanup has sent its call in this round."""

    row_id: str
    sends: int
    round_: int


def note_cleanup(
    *,
    run_id: str,
    fence: str,
    op: str,
    activity: bytes = b"",
    again: SentAgain | None = None,
    latencies: Sequence[Sample] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[int]:
    """Say what starts now (JSON; empty: nothing is under way); gives the server's time in ms.

    `again`: a call that is about to be sent again, or was just closed.
    """
    row = again or SentAgain("", 0, 0)
    head = (run_id, fence, op, activity, row.row_id, row.sends, row.round_)
    args = (*head, *samples(latencies), *events(new_events))
    return Op("note_cleanup", (keys.prefix_of(run_id),), args, _now_ms(run_id))


def settle_call(
    *,
    run_id: str,
    fence: str,
    op: str,
    row_id: str,
    tool: str,
    status: Literal["succeeded", "failed"],
    body: bytes,
    tries: int,
    blob_digests: Sequence[str] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[int]:
    """Record what became of a call whose outcome was unknown. Raises OutOfOrder when it is not open."""
    head = (run_id, fence, op, row_id, tool, status, body, tries)
    args = (*head, *blobs(blob_digests), *events(new_events))
    return Op("settle_call", (keys.prefix_of(run_id),), args, _now_ms(run_id))


@dataclass(frozen=True, slots=True)
class UndoStart:
    """`number` of the try that begins now; None: nothing to do, since the undo is `done` ("succeeded", "kept") or its
    tries are used up (`done` None)."""

    number: int | None
    done: str | None = None


def start_undo(
    *,
    run_id: str,
    fence: str,
    op: str,
    row_id: str,
    round_: int,
    tries: int,
    activity: bytes,
) -> Op[UndoStart]:
    """The intent of a compensation, before its body runs."""

    def parse(reply: list[Any]) -> UndoStart:
        if int(reply[0]) == Code.TOO_MANY:
            return UndoStart(None)
        checked(reply, run_id)
        return UndoStart(int(reply[2])) if int(reply[0]) == 1 else UndoStart(None, text(reply[2]))

    args = (run_id, fence, op, row_id, round_, tries, activity)
    return Op("start_undo", (keys.prefix_of(run_id),), args, parse)


def end_undo(
    *,
    run_id: str,
    fence: str,
    op: str,
    row_id: str,
    tool: str,
    status: Literal["succeeded", "failed", "unknown"],
    detail: bytes,
    new_events: Sequence[NewEvent] = (),
) -> Op[int]:
    """How a compensation ended. Raises OutOfOrder when none is under way."""
    args = (run_id, fence, op, row_id, tool, status, detail, *events(new_events))
    return Op("end_undo", (keys.prefix_of(run_id),), args, _now_ms(run_id))


def release_cleanup(
    *,
    run_id: str,
    fence: str,
    op: str,
    due_in_ms: int = 0,
    used_pass: bool = False,
    target: State | None = None,
    activity: bytes = b"",
) -> Op[int]:
    """Let go of a cleanup that goes on later; gives the passes that are used up.

    `target`: the next attempt cannot begin any more; it is this end that has to be worked for.
    """

    def parse(reply: list[Any]) -> int:
        return int(checked(reply, run_id)[1])

    args = (run_id, fence, op, due_in_ms, int(used_pass), str(target or ""), activity)
    return Op("release_cleanup", (keys.prefix_of(run_id),), args, parse)


def end_cleanup(
    *,
    run_id: str,
    fence: str,
    op: str,
    target: State,
    result: Literal["clean", "partial"] = "clean",
    latencies: Sequence[Sample] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[State]:
    """The run is made good: it ends, or waits for its next attempt. Gives the state it has now.

    Raises Unsettled when an outcome is unknown, a lock registered, or another target is to be worked for: a cancel came.
    """

    def parse(reply: list[Any]) -> State:
        return State(text(checked(reply, run_id)[1]))

    head = (run_id, fence, op, str(target), result)
    args = (*head, *samples(latencies), *events(new_events))
    return Op("end_cleanup", (keys.prefix_of(run_id),), args, parse)


def open_review(
    *,
    run_id: str,
    fence: str,
    op: str,
    code: str,
    message: str,
    items: bytes,
    told: Sequence[str] = (),
    blob_digests: Sequence[str] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[int]:
    """The run waits for a person; gives how often it has come to one.

    `told`: row ids of all unknown calls that it ever came with, so that each is counted once.
    """

    def parse(reply: list[Any]) -> int:
        return int(checked(reply, run_id)[1])

    head = (run_id, fence, op, code, message, items, "\n".join(told))
    args = (*head, *blobs(blob_digests), *events(new_events))
    return Op("open_review", (keys.prefix_of(run_id),), args, parse)


def sweep_cleaning(
    shard_prefix: str, agents: Sequence[str], *, alone: bool = False, limit: int = 100
) -> Op[list[str]]:
    """Cleanups that are due and that nobody has claimed."""
    args = (limit, int(alone), *counted([(name,) for name in agents]))
    return Op("sweep_cleaning", (shard_prefix,), args, lambda reply: [text(item) for item in reply[1:]])


def _now_ms(run_id: str) -> Callable[[list[Any]], int]:
    def parse(reply: list[Any]) -> int:
        return int(checked(reply, run_id)[1])

    return parse

"""Operations inside an attempt: intent, admission, outcomes, activity. Each checks the fence in the same script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from makegood.store import keys
from makegood.store.codes import checked, text
from makegood.store.ops.args import NewEvent, Sample, blobs, counted, events, samples
from makegood.store.scripts import Op


@dataclass(frozen=True, slots=True)
class Ack:
    """Answer of a step's operation: server time in ms, and the cause of a cancel that was asked for meanwhile."""

    now_ms: int
    cancel: str | None


@dataclass(frozen=True, slots=True)
class RowIntent:
    """A journal row before its call: row id (`call_key#generation`), JSON, `started` or `planned`."""

    row_id: str
    body: bytes
    status: str
    has_effect: bool


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What became of a call: final status, JSON with response and error (or a blob reference), tries."""

    row_id: str
    status: str
    body: bytes
    tries: int
    has_effect: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """A started call of which no try is under way until the next one begins (`waits`), or of which one begins now."""

    row_id: str
    waits: bool


def acknowledged(run_id: str) -> Callable[[list[Any]], Ack]:
    """How the reply of an operation of a step reads."""

    def parse(reply: list[Any]) -> Ack:
        checked(reply, run_id)
        return Ack(int(reply[1]), text(reply[2]) or None)

    return parse


def write_intent(
    *,
    run_id: str,
    fence: str,
    step: int,
    base: int,
    op: str,
    counts: bool,
    decision: bytes,
    rows: Sequence[RowIntent],
    blob_digests: Sequence[str] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[Ack]:
    """Make a decision durable with all its rows. `base` is the step that must have ended (-1: not checked).

    Raises StaleFence, OutOfOrder (base has not ended, or the step is there with another op), Conflict.
    """
    head = (run_id, fence, step, base, op, int(counts), decision)
    table = counted([(r.row_id, r.body, r.status, int(r.has_effect)) for r in rows])
    args = (*head, *table, *blobs(blob_digests), *events(new_events))
    return Op("write_intent", (keys.prefix_of(run_id),), args, acknowledged(run_id))


def start_calls(
    *, run_id: str, fence: str, op: str, rows: Sequence[tuple[str, bool]], new_events: Sequence[NewEvent] = ()
) -> Op[Ack]:
    """Admit planned rows, given as (row id, has an effect)."""
    table = counted([(row_id, int(effect)) for row_id, effect in rows])
    args = (run_id, fence, op, *table, *events(new_events))
    return Op("start_calls", (keys.prefix_of(run_id),), args, acknowledged(run_id))


def record_outcomes(
    *,
    run_id: str,
    fence: str,
    op: str,
    ended_step: int = 0,
    outcomes: Sequence[RowOutcome] = (),
    latencies: Sequence[Sample] = (),
    blob_digests: Sequence[str] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[Ack]:
    """Outcomes that are known, and the end of a step when `ended_step` is its number."""
    table = counted([(o.row_id, o.status, o.body, o.tries, int(o.has_effect)) for o in outcomes])
    args = (
        run_id,
        fence,
        op,
        ended_step,
        *table,
        *samples(latencies),
        *blobs(blob_digests),
        *events(new_events),
    )
    return Op("record_outcomes", (keys.prefix_of(run_id),), args, acknowledged(run_id))


def note_activity(
    *,
    run_id: str,
    fence: str,
    op: str,
    activity: bytes = b"",
    sends: str | None = None,
    stopping: bool = False,
    pause: Pause | None = None,
    latencies: Sequence[Sample] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[Ack]:
    """Show what the run is doing now (JSON; empty clears it) and append events; may turn running into stopping.

    `pause`: a call that was started waits for its next try, or goes on: whoever takes it up knows what was under way.
    """
    row_id, waits = ("", False) if pause is None else (pause.row_id, pause.waits)
    head = (run_id, fence, op, activity, "" if sends is None else sends, int(stopping), row_id, int(waits))
    args = (*head, *samples(latencies), *events(new_events))
    return Op("note_activity", (keys.prefix_of(run_id),), args, acknowledged(run_id))

"""Operations inside an attempt: intent, admission, outcomes, activity. Each checks the fence in the same script."""

from __future__ import annotations

import math
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
class Spent:
    """Tokens and cost of a model's reply; cost None when the model has no price."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False
    model: str = ""


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
    spent: Spent,
    rows: Sequence[RowIntent],
    blob_digests: Sequence[str] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[Ack]:
    """Make a decision durable with all its rows. `base` is the step that must have ended (-1: not checked).

    Raises StaleFence, OutOfOrder (base has not ended, or the step is there with another op), Conflict.
    """
    priced = spent.cost_usd is not None and math.isfinite(spent.cost_usd)
    cost = repr(spent.cost_usd) if priced else ""
    head = (run_id, fence, step, base, op, int(counts), decision)
    money = (spent.model, spent.prompt_tokens, spent.completion_tokens, cost, int(spent.estimated))
    table = counted([(r.row_id, r.body, r.status, int(r.has_effect)) for r in rows])
    args = (*head, *money, *table, *blobs(blob_digests), *events(new_events))
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
    latencies: Sequence[Sample] = (),
    new_events: Sequence[NewEvent] = (),
) -> Op[Ack]:
    """Show what the run is doing now (JSON; empty clears it) and append events; may turn running into stopping."""
    head = (run_id, fence, op, activity, "" if sends is None else sends, int(stopping))
    args = (*head, *samples(latencies), *events(new_events))
    return Op("note_activity", (keys.prefix_of(run_id),), args, acknowledged(run_id))

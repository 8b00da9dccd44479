"""What a store that failed over has lost of a run, and how its worker puts it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from makegood.store import keys
from makegood.store.codes import checked, text
from makegood.store.ops.args import NewEvent, blobs, counted
from makegood.store.scripts import Op
from makegood.store.states import State


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A row as its worker knows it: final status, or `unknown`; intent and outcome are JSON or blob references.

    `began_ms` is the server's time of its first start, as it was acknowledged; `event` says that it came back.
    """

    row_id: str
    intent: bytes
    status: str
    outcome: bytes
    began_ms: int
    tries: int
    has_effect: bool
    event: NewEvent


@dataclass(frozen=True, slots=True)
class Restored:
    """How many rows came back, and the state of the run now."""

    rows: int
    state: State


def read_missing(run_id: str, row_ids: Sequence[str]) -> Op[list[str]]:
    """Which of these rows (at least one) are not in the journal."""

    def parse(reply: list[Any]) -> list[str]:
        return [row_id for row_id, line in zip(row_ids, reply, strict=True) if line is None]

    names = [f"{row_id}.s" for row_id in row_ids]
    return Op(None, (), ("HMGET", keys.journal_key(run_id), *names), parse)


def restore_rows(
    *, run_id: str, op: str, attempt: int, rows: Sequence[KnownRow], blob_digests: Sequence[str] = ()
) -> Op[Restored]:
    """Put back those rows that are missing, whoever has the run; it goes to cleanup when nobody executes it.

    Raises RunNotFound when the store has lost the run itself.
    """

    def parse(reply: list[Any]) -> Restored:
        checked(reply, run_id)
        return Restored(int(reply[1]), State(text(reply[2])))

    args = (run_id, op, attempt, *counted([_items(row) for row in rows]), *blobs(blob_digests))
    return Op("restore_rows", (keys.prefix_of(run_id),), args, parse)


def _items(row: KnownRow) -> tuple[str | bytes | int, ...]:
    known = (row.row_id, row.intent, row.status, row.outcome, row.began_ms, row.tries, int(row.has_effect))
    event = row.event
    step = "" if event.step is None else event.step
    return (*known, step, event.call_key or "", orjson.dumps(dict(event.data)))

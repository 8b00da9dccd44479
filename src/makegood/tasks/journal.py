"""Journal rows between the store's fields, the rules' `Row`, and the record that clients see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from makegood.store.ops.reads import iso, read_journal
from makegood.tasks.flows import Flow, resolved
from makegood.tasks.rules.rows import Row, RowError, Status, Undo


@dataclass(frozen=True, slots=True)
class Entry:
    """A row and what only its record shows. `waits`: it is started, and no try of it is under way."""

    row: Row
    response_digest: str | None = None
    waits: bool = False

    @property
    def row_id(self) -> str:
        """Name of the row in the store: call key and generation."""
        return row_id(self.row.call_key, self.row.generation)


def row_id(call_key: str, generation: int) -> str:
    """`call_key#generation` (invariant 9)."""
    return f"{call_key}#{generation}"


def intent_json(row: Row) -> bytes:
    """The part of a row that is written before its call starts."""
    return orjson.dumps(
        {
            "call_key": row.call_key,
            "tool": row.tool,
            "attempt": row.attempt,
            "step": row.step,
            "index": row.index,
            "effect": row.effect,
            "idempotency_key": row.idempotency_key,
            "args": row.args,
            "identity_digest": row.identity_digest,
            "request_digest": row.request_digest,
            "generation": row.generation,
        }
    )


def outcome_json(entry: Entry) -> bytes:
    """The part of a row that is written when its outcome is known."""
    return orjson.dumps(
        {
            "response": entry.row.response,
            "response_digest": entry.response_digest,
            "error": error_dict(entry.row.error),
        }
    )


def error_dict(error: RowError | None) -> dict[str, str] | None:
    """An error as records keep and show it."""
    return None if error is None else {"code": error.code, "message": error.message}


def entries_from(fields: Mapping[str, bytes]) -> list[Entry]:
    """Rows from the store's fields (bodies resolved), in the order of their calls."""
    ids = [name for name in fields if not name.endswith((".s", ".o", ".r", ".u", ".v", ".w"))]
    entries = [_entry(fields, name) for name in ids]
    return sorted(entries, key=lambda entry: (entry.row.position, entry.row.generation))


def _entry(fields: Mapping[str, bytes], name: str) -> Entry:
    intent = orjson.loads(fields[name])
    status, began, ended, _, tries = fields[f"{name}.s"].decode().split("|")
    raw = fields.get(f"{name}.o")
    outcome = orjson.loads(raw) if raw else {}
    error = outcome.get("error")
    row = Row(
        **intent,
        status=cast("Status", status),
        response=outcome.get("response"),
        error=None if error is None else RowError(error["code"], error["message"]),
        tries=int(tries),
        started_at_ms=int(began) if began else None,
        ended_at_ms=int(ended) if ended else None,
        **_repeats(fields.get(f"{name}.r")),
        **_undo(fields.get(f"{name}.u"), fields.get(f"{name}.v")),
    )
    return Entry(row, outcome.get("response_digest"), f"{name}.w" in fields)


def _repeats(line: bytes | None) -> dict[str, Any]:
    """How often cleanup has sent the call again, and when; empty when it has not."""
    if line is None:
        return {}
    sent_ms, repeats, round_ = map(int, line.decode().split("|"))
    return {"sent_again_ms": sent_ms, "repeats": repeats, "repeats_round": round_}


def _undo(line: bytes | None, detail: bytes | None) -> dict[str, Any]:
    """What is known of a row's compensation; empty when none was begun."""
    if line is None:
        return {}
    status, _, _, _, tries, round_ = line.decode().split("|")
    error = orjson.loads(detail)["error"] if detail else None
    return {
        "undo": cast("Undo", status),
        "undo_tries": int(tries),
        "undo_round": int(round_),
        "undo_error": None if error is None else RowError(error["code"], error["message"]),
    }


def record(entry: Entry) -> dict[str, Any]:
    """The row as clients see it."""
    row = entry.row
    return {
        "call_key": row.call_key,
        "tool": row.tool,
        "attempt": row.attempt,
        "step": row.step,
        "status": row.status,
        "effect": row.effect,
        "idempotency_key": row.idempotency_key,
        "args": dict(row.args),
        "request_digest": row.request_digest,
        "response": row.response,
        "response_digest": entry.response_digest,
        "error": error_dict(row.error),
        "tries": row.tries + (row.status == "started"),  # the one under way is a try
        "started_at": iso(row.started_at_ms),
        "ended_at": iso(row.ended_at_ms),
        "compensation": _compensation(row),
        "generation": row.generation,
    }


def undo_json(error: RowError | None) -> bytes:
    """The part of a row that is written when its compensation has ended."""
    return orjson.dumps({"error": error_dict(error)})


def _compensation(row: Row) -> dict[str, Any] | None:
    if row.undo is None:
        return None
    return {"status": row.undo, "tries": row.undo_tries, "error": error_dict(row.undo_error)}


def closed(entry: Entry) -> Entry:
    """A row of a run that has ended: one that no worker could close any more reads as what is known of it (F3)."""
    row = entry.row
    if row.status == "planned":
        error = RowError("TOOL_NOT_STARTED", "The run ended before the call started; it had no effect.")
        return replace(entry, row=replace(row, status="aborted_before_dispatch", error=error))
    if row.status == "started":
        error = RowError(
            "TOOL_OUTCOME_UNKNOWN", "The worker was lost during the call; its outcome is not known."
        )
        status: Status = "failed" if row.effect == "read" else "unknown"
        return replace(entry, row=replace(row, status=status, error=error, tries=row.tries + 1))
    return entry


def load_journal(run_id: str) -> Flow[list[Entry]]:
    """All rows of a run, oldest first."""
    (fields,) = yield [read_journal(run_id)]
    whole = yield from resolved(run_id, fields)
    return entries_from(whole)

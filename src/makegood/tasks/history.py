"""What the model is sent, rebuilt from what is stored: decisions and rows (CONTRACT C5, E5, F4).

A call and its result always come as a pair, since the result is made from the call's row: a row without an
outcome gives a result that says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from makegood.tasks.journal import Entry
from makegood.tasks.rules.rows import Row

MAX_BYTES = 8 * 1024 * 1024
"""Largest history that is sent."""

CallKind = Literal["run", "replay", "answer"]


@dataclass(frozen=True, slots=True)
class DecidedCall:
    """One call of a decision. `kind`: it runs (`row_id`), is answered from an earlier row (`replay`), or
    is answered with `answer` and never dispatched. `questioned` is the identity digest of a call that was answered
    with POSSIBLE_REPEAT, which is done once."""

    id: str
    name: str
    kind: CallKind
    digest: str
    row_id: str | None = None
    same_args: bool = True
    answer: Mapping[str, Any] | None = None
    questioned: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One stored step: the whole assistant message, what becomes of its calls, notes that follow it.

    The first one of an attempt also keeps the `facts` it was made with, so that a continuation sends the same text.
    """

    message: Mapping[str, Any]
    calls: tuple[DecidedCall, ...] = ()
    notes: tuple[str, ...] = ()
    digest: str = ""
    kind: Literal["model", "call"] = "model"
    usage: Mapping[str, Any] = field(default_factory=dict)
    facts: str = ""

    def to_json(self) -> bytes:
        """The decision as it is stored."""
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, raw: bytes) -> Decision:
        """The reverse of `to_json`."""
        data = orjson.loads(raw)
        calls = tuple(DecidedCall(**call) for call in data["calls"])
        return cls(**{**data, "calls": calls, "notes": tuple(data["notes"])})


def build(
    system: str,
    first: str,
    facts: str,
    decisions: Sequence[Decision],
    entries: Mapping[str, Entry],
    attempt: int,
) -> list[dict[str, Any]]:
    """Messages of a request: system prompt and input byte-equal in every attempt, facts a message of their own."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": first})
    if facts:
        messages.append({"role": "user", "content": facts})
    for decision in decisions:
        messages.append(dict(decision.message))
        messages.extend(
            {"role": "tool", "tool_call_id": call.id, "content": result_text(call, entries, attempt)}
            for call in decision.calls
        )
        messages.extend({"role": "user", "content": note} for note in decision.notes)
    return messages


def result_text(call: DecidedCall, entries: Mapping[str, Entry], attempt: int) -> str:
    """What the model is told about one call."""
    if call.answer is not None:
        return _json(call.answer)
    entry = entries.get(call.row_id or "")
    if entry is None:
        return _json(error_answer("TOOL_NOT_STARTED", "The call was not started; it had no effect."))
    if call.kind == "replay":
        return _json(_replayed(call, entry.row))
    return _outcome_text(entry.row)


def _outcome_text(row: Row) -> str:
    if row.status == "succeeded":
        return row.response if isinstance(row.response, str) else _json(row.response)
    if row.error is not None:
        return _json(error_answer(row.error.code, row.error.message))
    return _json(
        error_answer("TOOL_OUTCOME_UNKNOWN", "The call was started; whether it had its effect is not known.")
    )


def _replayed(call: DecidedCall, row: Row) -> dict[str, Any]:
    told: dict[str, Any] = {"note": f"already done in attempt {row.attempt}, not run again"}
    if not call.same_args:
        told["recorded_arguments"] = row.args
    return {**told, "response": row.response}


def error_answer(code: str, message: str, **more: Any) -> dict[str, Any]:
    """An error as the model reads it."""
    return {"error": {"code": code, "message": message, **more}}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()

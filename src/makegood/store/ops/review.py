"""What operators decide about a run. Each operation is answered once, however often it is sent, and stands in the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import orjson

from makegood.errors import Conflict
from makegood.store import keys
from makegood.store.codes import Code, checked, text
from makegood.store.ops.args import new_op
from makegood.store.ops.reads import iso, pairs
from makegood.store.scripts import Op
from makegood.store.states import State

Action = Literal["retry", "resume", "resolve"]
Mark = Literal["done", "undone"]

AUDIT_PAGE = 10_000
"""Entries of one run's audit log that are read at the most; people write them one by one."""


@dataclass(frozen=True, slots=True)
class Requested:
    """Answer to a request for cleanup: `requested`, `nothing_to_do`, `already_cleaning` or `refused`; the state before it."""

    result: str
    state: State
    version: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The run's state and version after a decision."""

    state: State
    version: int


@dataclass(frozen=True, slots=True)
class Marked:
    """What a call became: `succeeded`, `failed` (it was unknown), `kept`, `undone` (its effect stood, or its undo was begun)."""

    became: str
    version: int


def request_cleanup(
    *, run_id: str, undo_succeeded: bool, actor: str, reason: str, expected_version: int | None = None
) -> Op[Requested]:
    """Ask for the cleanup of a run that has ended. Raises RunNotFound, Conflict (another version)."""

    def parse(reply: list[Any]) -> Requested:
        result, state, version = text(checked(reply, run_id)[1]).split("|")
        return Requested(result, State(state), int(version))

    args = (run_id, new_op(), int(undo_succeeded), actor, reason, _version(expected_version))
    return Op("request_cleanup", (keys.prefix_of(run_id),), args, parse)


def decide_review(
    *, run_id: str, action: Action, actor: str, reason: str, expected_version: int | None = None
) -> Op[Decided]:
    """Retry the cleanup, resume with a new attempt, or resolve. Raises RunNotFound, Conflict."""

    def parse(reply: list[Any]) -> Decided:
        if int(reply[0]) == Code.BAD_STATE:
            raise _not_in_review(run_id, text(reply[1]))
        if int(reply[0]) == Code.UNSETTLED:
            raise Conflict(
                f"Run {run_id} has a call whose outcome is not known or whose undoing was begun and not finished, or a lock, "
                f"so it cannot begin a new attempt; mark the call done or undone, or retry the cleanup: `makegood review "
                f"show {run_id}` says how."
            )
        state, version = text(checked(reply, run_id)[1]).split("|")
        return Decided(State(state), int(version))

    args = (run_id, new_op(), action, actor, reason, _version(expected_version))
    return Op("decide_review", (keys.prefix_of(run_id),), args, parse)


def mark_call(
    *,
    run_id: str,
    row_id: str,
    call_key: str,
    tool: str,
    mark: Mark,
    body: bytes,
    actor: str,
    reason: str,
    expected_version: int | None = None,
) -> Op[Marked]:
    """Say what became of a call; `body` is its outcome (JSON) if it is unknown now. Raises RunNotFound, Conflict."""

    def parse(reply: list[Any]) -> Marked:
        if int(reply[0]) == Code.BAD_STATE:
            if len(reply) == 2:
                raise _not_in_review(run_id, text(reply[1]))
            raise _not_to_mark(run_id, call_key, text(reply[2]), text(reply[3]))
        became, version = text(checked(reply, run_id)[1]).split("|")
        return Marked(became, int(version))

    detail = orjson.dumps({"row": row_id, "tool": tool, "as": mark})
    head = (run_id, new_op(), row_id, call_key, tool, mark, body)
    args = (*head, actor, reason, _version(expected_version), detail, *_said(tool, mark))
    return Op("mark_call", (keys.prefix_of(run_id),), args, parse)


def _said(tool: str, mark: Mark) -> tuple[bytes, bytes]:
    """Data of the event when an unknown call is settled, and when it is about its effect; `how` as for what cleanup finds."""
    how = {"tool": tool, "how": "operator"}
    settled = {**how, "outcome": "happened" if mark == "done" else "not_happened"}
    effect = {**how, "outcome": "kept"} if mark == "done" else {**how, "what": "compensation", "code": None}
    return orjson.dumps(settled), orjson.dumps(effect)


def read_audit(run_id: str) -> Op[list[dict[str, Any]]]:
    """Who asked for what, oldest first: `id, at, action, actor, reason, detail` (an object or None)."""

    def parse(reply: Any) -> list[dict[str, Any]]:
        return [_audited(text(entry[0]), pairs(entry[1])) for entry in reply]

    return Op(None, (), ("XRANGE", keys.audit_key(run_id), "-", "+", "COUNT", AUDIT_PAGE), parse)


def _audited(stream_id: str, fields: dict[str, bytes]) -> dict[str, Any]:
    plain = {name: text(fields[name]) for name in ("action", "actor", "reason")}
    detail = orjson.loads(fields["detail"]) if fields.get("detail") else None
    return {"id": stream_id, "at": iso(int(stream_id.partition("-")[0])), **plain, "detail": detail}


def _version(expected: int | None) -> int | str:
    return "" if expected is None else expected


def _not_in_review(run_id: str, state: str) -> Conflict:
    return Conflict(
        f"Run {run_id} is {state}, not in review, so there is nothing to decide; look at it with `makegood runs show "
        f"{run_id}`."
    )


def _not_to_mark(run_id: str, call_key: str, status: str, undo: str) -> Conflict:
    why = "was undone already"
    if undo == "kept":
        why = "was marked done already"
    elif undo in ("started", "failed", "unknown"):
        why = "had no effect, so none may stay; once you are sure that nothing of it is left, mark it undone"
        return Conflict(f"Call {call_key} of run {run_id} {why}.")
    elif undo != "succeeded":
        why = (
            f"is {status}: no effect of it stands and none is in doubt" if status else "is not in its journal"
        )
    return Conflict(
        f"Call {call_key} of run {run_id} {why}, so there is nothing to mark; see `makegood runs journal {run_id}`."
    )

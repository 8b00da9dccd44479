"""From a model's reply to journal rows: pure, so that a step's decision is one value (CONTRACT D3, D4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from makegood.errors import ArgumentsInvalid
from makegood.tasks.agent import Agent
from makegood.tasks.history import DecidedCall, error_answer
from makegood.tasks.journal import row_id
from makegood.tasks.model.types import ToolCallPart
from makegood.tasks.rules.callkeys import call_key_of, digest, idempotency_key
from makegood.tasks.rules.matching import (
    Call,
    Fresh,
    Match,
    PossibleRepeat,
    RepeatUnknown,
    Replay,
    match_step,
)
from makegood.tasks.rules.rows import Row
from makegood.tasks.rules.tool_retry import may_repeat
from makegood.tasks.tool import Tool

SHOWN = 10
"""Rows that a POSSIBLE_REPEAT shows at the most."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call with checked arguments: `kwargs` for the function, `args` for the journal."""

    tool: Tool[Any, Any]
    kwargs: Mapping[str, Any]
    args: Mapping[str, Any]
    call: Call


@dataclass(frozen=True, slots=True)
class ToRun:
    """A row whose call runs. `repeat`: an earlier try may have had its effect; its key is `key_age_s` old.

    `tries_before` are those of an earlier attempt at this row, or of a worker that was lost.
    """

    row: Row
    tool: Tool[Any, Any]
    kwargs: Mapping[str, Any]
    repeat: bool
    key_age_s: float = 0.0
    tries_before: int = 0

    @property
    def row_id(self) -> str:
        """The row's name in the store."""
        return row_id(self.row.call_key, self.row.generation)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What becomes of the calls of a reply, in order, and what later steps must know."""

    calls: tuple[DecidedCall, ...]
    runs: tuple[ToRun, ...]
    claimed: frozenset[str]
    asked: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step stands, and the clock for `key_ttl`."""

    run_id: str
    attempt: int
    step: int
    now_ms: int


def wanted(tool: Tool[Any, Any], kwargs: Mapping[str, Any], secret_fields: Sequence[str]) -> Wanted:
    """A call of a tool with checked arguments. Raises ArgumentsInvalid when a value is no JSON."""
    args = tool.encode_args(kwargs, secret_fields)
    call = Call(tool.name, digest(tool.identity_of(args)), digest(args), tool.effect, tool.reuse)
    return Wanted(tool, kwargs, args, call)


def plan_step(
    agent: Agent,
    parts: Sequence[ToolCallPart],
    rows: Sequence[Row],
    claimed: frozenset[str],
    asked: frozenset[tuple[str, str]],
    place: Place,
    secret_fields: Sequence[str],
) -> StepPlan:
    """Decide every call of a reply before any of them starts."""
    checked = [_checked(agent, part, secret_fields) for part in parts]
    return plan_wanted(
        [(part.id, part.name, item) for part, item in zip(parts, checked, strict=True)],
        rows,
        claimed,
        asked,
        place,
    )


def plan_wanted(
    asked_for: Sequence[tuple[str, str, Wanted | DecidedCall]],
    rows: Sequence[Row],
    claimed: frozenset[str],
    asked: frozenset[tuple[str, str]],
    place: Place,
) -> StepPlan:
    """The same for calls given as (id, name, checked call or its refusal)."""
    good = [item for _, _, item in asked_for if isinstance(item, Wanted)]
    matches = match_step([item.call for item in good], rows, claimed, asked, attempt=place.attempt)
    by_call = iter(matches.decisions)
    calls: list[DecidedCall] = []
    runs: list[ToRun] = []
    for index, (call_id, _, item) in enumerate(asked_for):
        if isinstance(item, DecidedCall):
            calls.append(item)
            continue
        decided, run = _decided(call_id, item, next(by_call), place, index)
        calls.append(decided)
        if run is not None:
            runs.append(run)
    return StepPlan(tuple(calls), tuple(runs), matches.claimed, matches.asked)


def _checked(agent: Agent, part: ToolCallPart, secret_fields: Sequence[str]) -> Wanted | DecidedCall:
    tool = agent.tools.get(part.name)
    if tool is None:
        names = ", ".join(agent.tools) or "none"
        answer = error_answer("UNKNOWN_TOOL", f"There is no tool {part.name[:80]!r}; the tools are: {names}.")
        return DecidedCall(part.id, part.name, "answer", digest(part.arguments), answer=answer)
    try:
        return wanted(tool, tool.parse(part.arguments), secret_fields)
    except ArgumentsInvalid as error:
        answer = error_answer("INVALID_ARGUMENTS", str(error))
        return DecidedCall(part.id, part.name, "answer", digest(part.arguments), answer=answer)


def _decided(
    call_id: str, item: Wanted, match: Match, place: Place, index: int
) -> tuple[DecidedCall, ToRun | None]:
    if isinstance(match, Fresh):
        key = call_key_of(item.tool.name, item.call.identity_digest, match.ordinal)
        run = ToRun(_row(item, key, 1, place, index), item.tool, item.kwargs, repeat=False)
        return DecidedCall(call_id, item.tool.name, "run", item.call.request_digest, run.row_id), run
    made = DecidedCall(call_id, item.tool.name, "run", item.call.request_digest)
    if isinstance(match, Replay):
        return replace(made, kind="replay", row_id=_id_of(match.row), same_args=match.same_args), None
    if isinstance(match, PossibleRepeat):
        answer = _possible_repeat(match.rows)
        return replace(made, kind="answer", answer=answer, questioned=item.call.identity_digest), None
    if isinstance(match, RepeatUnknown):
        return _repeated(made, item, match, place, index)
    run = ToRun(
        _row(item, match.row.call_key, match.generation, place, index), item.tool, item.kwargs, repeat=False
    )
    return replace(made, row_id=run.row_id), run


def _repeated(
    made: DecidedCall, item: Wanted, match: RepeatUnknown, place: Place, index: int
) -> tuple[DecidedCall, ToRun | None]:
    """A call whose outcome is unknown: the same request under the same key, or no request at all (CONTRACT C8)."""
    old, tool = match.row, item.tool
    age_s = 0.0 if old.started_at_ms is None else (place.now_ms - old.started_at_ms) / 1000
    ttl_s = float("inf") if tool.key_ttl is None else tool.key_ttl
    if not may_repeat(tool.effect, age_s, ttl_s, nothing_left=False):
        message = "An identical call may have had its effect; its outcome is not known yet, so it is not made again."
        return replace(made, kind="answer", answer=error_answer("TOOL_OUTCOME_UNKNOWN", message)), None
    row = replace(
        _row(item, old.call_key, old.generation, place, index),
        args=old.args,
        request_digest=old.request_digest,
    )
    try:
        kwargs = item.kwargs if match.same_args else tool.bind_recorded(old.args, item.kwargs)
    except ArgumentsInvalid as error:  # the tool's signature has changed since the call was recorded
        message = f"The recorded call can no longer be made, so it is not repeated: {error}"
        return replace(made, kind="answer", answer=error_answer("TOOL_OUTCOME_UNKNOWN", message)), None
    run = ToRun(row, tool, kwargs, repeat=True, key_age_s=age_s, tries_before=old.tries)
    return replace(made, row_id=run.row_id, same_args=match.same_args), run


def _row(item: Wanted, key: str, generation: int, place: Place, index: int) -> Row:
    return Row(
        call_key=key,
        tool=item.tool.name,
        attempt=place.attempt,
        step=place.step,
        index=index,
        status="planned",
        effect=item.tool.effect,
        identity_digest=item.call.identity_digest,
        request_digest=item.call.request_digest,
        args=item.args,
        generation=generation,
        idempotency_key=idempotency_key(place.run_id, key, generation),
    )


def _id_of(row: Row) -> str:
    return row_id(row.call_key, row.generation)


def _possible_repeat(rows: Sequence[Row]) -> dict[str, Any]:
    listed = [
        {"tool": r.tool, "attempt": r.attempt, "status": r.status, "arguments": r.args} for r in rows[:SHOWN]
    ]
    message = (
        "Earlier attempts of this task made these calls of the tool. If yours means the same, do not make it;"
        " if it is another one, ask again and it runs."
    )
    return error_answer("POSSIBLE_REPEAT", message, calls=listed, left_out=max(0, len(rows) - SHOWN))

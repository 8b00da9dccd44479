"""Limits that operators set, and verdicts on runs that timed out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from makegood.errors import Conflict
from makegood.store import keys
from makegood.store.codes import Code, checked, text
from makegood.store.ops.args import new_op
from makegood.store.ops.reads import iso, pairs
from makegood.store.scripts import Op

AUDIT = f"{keys.LIMITS}:audit"
"""Stream: who set which limit, from what to what, and why; append-only."""

AUDIT_PAGE = 10_000
"""Changes that are read at the most; people make them one by one."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a limit: `field` is `level|name`, None in `from_s` or `to_s` is what was declared."""

    at_ms: int
    field: str
    from_s: float | None
    to_s: float | None
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict that stands, who gave it and when."""

    verdict: str
    by: str
    at_ms: int


def set_limit(field: str, seconds: float | None, actor: str, reason: str) -> Op[float | None]:
    """Set the limit `level|name`, or take back what was set (None); gives what was set before."""
    told = f"{keys.LIMITS}:told:{new_op()}"
    args = (field, "" if seconds is None else repr(float(seconds)), actor, reason)
    return Op("set_limit", (keys.LIMITS, AUDIT, told, keys.CATALOG_COUNTERS), args, _before)


def _before(reply: Any) -> float | None:
    return _seconds(text(reply))


def read_limits() -> Op[dict[str, float]]:
    """Everything that is set: `level|name` → seconds."""

    def parse(reply: Any) -> dict[str, float]:
        found = {name: _seconds(text(value)) for name, value in pairs(reply).items()}
        return {name: value for name, value in found.items() if value is not None}

    return Op(None, (), ("HGETALL", keys.LIMITS), parse)


def read_limit_changes(since_ms: int = 0) -> Op[list[Change]]:
    """Changes of limits since a moment, oldest first."""

    def parse(reply: Any) -> list[Change]:
        return [_change(text(entry[0]), pairs(entry[1])) for entry in reversed(reply)]

    return Op(None, (), ("XREVRANGE", AUDIT, "+", since_ms or "-", "COUNT", AUDIT_PAGE), parse)


def judge_timeout(
    *, run_id: str, verdict: str, actor: str, reason: str, fence: str = "", op: str = ""
) -> Op[Judged]:
    """Say whether a run that timed out had in fact finished; gives the verdict that stands.

    `fence` and `op` are those of the cleanup that asked the agent's `verify`.
    Raises RunNotFound, StaleFence, and Conflict for a run that did not time out or has another definite verdict.
    """

    def parse(reply: list[Any]) -> Judged:
        if int(reply[0]) == Code.BAD_STATE:
            raise _not_timed_out(run_id, text(reply[1]), text(reply[2]))
        if int(reply[0]) == Code.KEY_CONFLICT:
            raise Conflict(
                f"Run {run_id} was judged {text(reply[1])} by {text(reply[2])}, and a definite verdict is not changed; "
                f"`makegood runs audit {run_id}` says why it was given."
            )
        known, at_ms, by = text(checked(reply, run_id)[1]).split("|", 2)
        return Judged(known, by, int(at_ms))

    args = (run_id, fence, op or new_op(), verdict, actor, reason)
    return Op("judge_timeout", (keys.prefix_of(run_id),), args, parse)


def _not_timed_out(run_id: str, state: str, code: str) -> Conflict:
    how = f"{state} ({code})" if code else state
    return Conflict(
        f"Run {run_id} is {how}; a verdict is for runs that timed out and have ended or wait for a person."
    )


def _seconds(stored: str) -> float | None:
    try:
        seconds = float(stored)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _change(stream_id: str, fields: dict[str, bytes]) -> Change:
    plain = {name: text(value) for name, value in fields.items()}
    return Change(
        int(stream_id.partition("-")[0]),
        plain["limit"],
        _seconds(plain["from"]),
        _seconds(plain["to"]),
        plain["actor"],
        plain["reason"],
    )


def change_dict(change: Change) -> dict[str, Any]:
    """A change as clients see it."""
    level, _, name = change.field.partition("|")
    seconds = {"from_s": change.from_s, "to_s": change.to_s}
    return {
        "at": iso(change.at_ms),
        "level": level,
        "name": name,
        **seconds,
        "actor": change.actor,
        "reason": change.reason,
    }

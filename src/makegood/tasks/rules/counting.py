"""Which counters an event stands for (CONTRACT I2): names as the store keeps them, `name|label|…` or `@series>field`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from makegood.tasks.rules.failures import TRANSPORT_CODES

Counters = tuple[str, ...]

TOOL_CAUSES = frozenset({"TOOL_TIMEOUT", "RETRYABLE", "IN_PROGRESS", *TRANSPORT_CODES.values()}) | {
    "WORKER_LOST",
    "HANDED_OVER",
    "UNKNOWN_OUTCOME",
}
"""Why a call is tried again: what the tool met, whose worker let go of it, or a cleanup that wants to know."""

HTTP_CODE = re.compile(r"HTTP_[1-5]\d\d")

LIMIT_OF_CODE = {"STEP_TIMEOUT": "step", "RUN_TIMEOUT": "run", "TOTAL_TIMEOUT": "total"}
"""Which limit has ended an attempt."""


def call_result(tool: str, result: str) -> str:
    """One try of a call without a duration, or a call that was answered without a try."""
    return f"@tool:{tool}>calls_total|{result}"


def label(text: str) -> str:
    """A name as part of a counter's name: in one line, without what separates labels."""
    return " ".join(text.replace("|", "/").split())


def replayed(tool: str, *, has_effect: bool) -> Counters:
    """A call that was answered from the journal; with an effect, one that was not doubled."""
    answered = call_result(tool, "replayed")
    return (answered, f"effects_deduplicated_total|{tool}") if has_effect else (answered,)


def rejected(breaker: str, tool: str | None = None) -> Counters:
    """An open breaker kept a call of this tool, or a request to a model (None), from being sent."""
    counters = (f"breaker_rejected_total|{label(breaker)}",)
    return counters if tool is None else (*counters, call_result(tool, "breaker_open"))


def call_limit(agent: str, level: str | None) -> Counters:
    """A try that a limit has cut: only its own one counts as L1, the others end the attempt and count there."""
    return (f"timeouts_total|{agent}|call",) if level == "call" else ()


def attempt_ended(agent: str, code: str | None, *, again: bool) -> Counters:
    """An attempt is over; `again`: the next one begins, with nothing to clean up first."""
    level = LIMIT_OF_CODE.get(code or "")
    fired = () if level is None else (f"timeouts_total|{agent}|{level}",)
    return (*fired, retried("attempt", str(code))) if again else fired


def retried(what: Literal["model", "tool", "attempt"], cause: str) -> str:
    """Another try, and why. A code of a tool's own is any text, which no label may be; the event has it."""
    return f"retries_total|{what}|{cause_of(cause) if what == 'tool' else cause}"


def cause_of(code: str) -> str:
    """Why a call was tried again, from a closed list; `own` for a code that the tool made up."""
    return code if code in TOOL_CAUSES or HTTP_CODE.fullmatch(code) else "own"


def handed_over(doubts: Mapping[str, str], told: Collection[str]) -> Counters:
    """Unknown calls (row id → tool) that a person is asked about for the first time."""
    new = (tool for row_id, tool in doubts.items() if row_id not in told)
    return tuple(f"unknown_outcomes_total|{tool}|requires_manual_review" for tool in new)


def skipped(reason: Literal["deadline", "breaker"]) -> Counters:
    """A retry that was worth it and did not fit, or that an open breaker forbade."""
    return (f"retries_skipped_total|{reason}",)

"""What a tool's exception means, by what is raised (invariant 16)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from makegood.errors import ArgumentsInvalid, LockTimeout, RetryableToolError, ToolError
from makegood.tasks.rules.foreign_errors import HttpFacts, Transport, http_facts, is_validation, transport_of
from makegood.tasks.rules.rows import Effect, Status

FailureKind = Literal["infrastructure", "business", "bug"]

#: Characters of a failure's message; what is longer is cut and ends in "…".
MESSAGE_CHARS = 500

TRANSPORT_CODES: dict[Transport, str] = {
    "connect_timeout": "TIMEOUT_CONNECT",
    "refused": "CONNECT",
    "timeout": "TIMEOUT",
    "broken": "TRANSPORT",
}

_KEY_REUSED = re.compile(
    r"re-?us|already\b.{0,30}\bused|differ|same (param|request|payload|body)|mismatch|not match|idempotency_error",
    re.IGNORECASE | re.DOTALL,
)
_IN_PROGRESS = re.compile(
    r"in.?progress|in.?use\b|being processed|concurrent|still processing", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """One failed try of a tool.

    `kind` decides on retries (C6): infrastructure may be repeated, business is told to the model, a bug is told
    once and reported. `nothing_left` is True when no request under this key can have reached the downstream.
    `outcome_unknown` is True where the answer itself says that another request under this key is or was at work.
    """

    kind: FailureKind
    code: str
    message: str
    nothing_left: bool = False
    outcome_unknown: bool = False


def classify_tool_error(exc: BaseException, *, repeat: bool = False) -> ToolFailure:
    """Returns what a try that ended with `exc` means.

    `repeat` says that an earlier request under the same idempotency key may have reached the downstream. Then
    nothing this try tells can prove that nothing has left, 409 and 425 mean "in progress" (infrastructure), and a
    refused key (422, or 400 and 409 that say so) leaves the outcome unknown (invariant 16).
    """
    failure = _classify(exc, repeat)
    return replace(failure, nothing_left=False) if repeat else failure


def status_after(failure: ToolFailure, effect: Effect) -> Status:
    """Returns the status of the row of a call that ended with this failure: "failed" (no effect) or "unknown".

    A read is never unknown. Otherwise an infrastructure failure or a bug leaves the outcome unknown, unless
    nothing can have left.
    """
    if effect == "read":
        return "failed"
    if failure.outcome_unknown:
        return "unknown"
    return "failed" if failure.kind == "business" or failure.nothing_left else "unknown"


def short_message(exc: BaseException) -> str:
    """Returns one line `Type: text` of at most 500 characters, whatever the exception's text is or does."""
    text = _text(lambda: str(exc))
    return cap_message(f"{type(exc).__name__}: {text}" if text else type(exc).__name__)


def cap_message(text: str) -> str:
    """Returns the text in one line, cut to 500 characters."""
    # Nothing beyond the cut can matter; so a text of megabytes is not split as a whole.
    line = " ".join(text[: MESSAGE_CHARS * 4].split())
    return line if len(line) <= MESSAGE_CHARS else line[: MESSAGE_CHARS - 1] + "…"


def _classify(exc: BaseException, repeat: bool) -> ToolFailure:
    if isinstance(exc, BaseExceptionGroup):
        return _worst([_classify(inner, repeat) for inner in exc.exceptions])
    if isinstance(exc, LockTimeout):
        # Told and not retried: the wait was the retry. Only the first try of a call that had done nothing proves no effect.
        unsure = repeat or not exc.nothing_done
        return ToolFailure(
            "business", str(exc.code), _own_text(exc), nothing_left=not unsure, outcome_unknown=unsure
        )
    if isinstance(exc, RetryableToolError):
        return ToolFailure("infrastructure", _own_code(exc, "RETRYABLE"), _own_text(exc), nothing_left=True)
    if isinstance(exc, ToolError):
        return ToolFailure("business", _own_code(exc, "TOOL_ERROR"), _own_text(exc))
    if isinstance(exc, ArgumentsInvalid) or is_validation(exc):
        return ToolFailure("business", "INVALID_ARGUMENTS", short_message(exc))
    if (facts := http_facts(exc)) is not None:
        return _by_status(facts, repeat)
    if (transport := transport_of(exc)) is not None:
        return _by_transport(exc, transport)
    return ToolFailure("bug", "BUG", short_message(exc))


def _by_status(facts: HttpFacts, repeat: bool) -> ToolFailure:
    message = cap_message(f"HTTP {facts.status}: {facts.text}" if facts.text else f"HTTP {facts.status}")
    code = f"HTTP_{facts.status}"
    if 500 <= facts.status <= 599:
        return ToolFailure("infrastructure", code, message)
    if not 400 <= facts.status <= 499:
        return ToolFailure("bug", code, message)
    if repeat and _key_refused(facts):
        return ToolFailure("business", "IDEMPOTENCY_KEY_MISMATCH", message, outcome_unknown=True)
    if repeat and facts.status in (409, 425):
        return ToolFailure("infrastructure", "IN_PROGRESS", message, outcome_unknown=True)
    return ToolFailure("business", code, message)


def _key_refused(facts: HttpFacts) -> bool:
    if facts.status == 422:
        return True
    if facts.status not in (400, 409) or "idempoten" not in facts.text.lower():
        return False
    return bool(_KEY_REUSED.search(facts.text)) and not _IN_PROGRESS.search(facts.text)


def _by_transport(exc: BaseException, transport: Transport) -> ToolFailure:
    if transport == "misuse":
        return ToolFailure("bug", "BUG", short_message(exc))
    nothing_left = transport in ("connect_timeout", "refused")
    return ToolFailure(
        "infrastructure", TRANSPORT_CODES[transport], short_message(exc), nothing_left=nothing_left
    )


def _worst(failures: list[ToolFailure]) -> ToolFailure:
    """Returns the failure of a group: a bug before infrastructure before business, and the least certain outcome."""
    order: tuple[FailureKind, ...] = ("bug", "infrastructure", "business")
    worst = min(failures, key=lambda failure: order.index(failure.kind))
    # Beside a business failure nothing is vouched for: that request was answered, so something has left.
    return replace(
        worst,
        nothing_left=all(failure.nothing_left for failure in failures),
        outcome_unknown=any(failure.outcome_unknown for failure in failures),
    )


def _own_code(exc: ToolError, default: str) -> str:
    return exc.code if isinstance(exc.code, str) and exc.code else default


def _own_text(exc: ToolError) -> str:
    return cap_message(_text(lambda: str(exc.message))) or type(exc).__name__


def _text(read: Callable[[], str]) -> str:
    try:
        return read()
    except Exception:  # an exception whose own __str__ raises must not hide the failure
        return ""

"""How the engine tells of an attempt, its model requests and its calls while they run. It knows no telemetry library.

A worker may subscribe one `Spans`. The parent is handed on explicitly, since hundreds of attempts share one event loop.
Whatever a subscriber raises is suppressed (`quietly`): a run never fails because somebody watches it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, Protocol, TypeVar

T = TypeVar("T")

log = logging.getLogger("makegood.telemetry")

Kind = Literal["tool", "chat"]


class Span(Protocol):
    """What a subscriber makes of one piece of work."""

    def child(self, kind: Kind, name: str) -> Span:
        """Work inside of this one begins."""

    def note(self, **facts: str | float) -> None:
        """Ids and counts; never a payload."""

    def attach(self, **payloads: Any) -> None:
        """Prompts, arguments and results, secrets masked; a subscriber leaves them alone unless it was switched on."""

    def end(self, code: str) -> None:
        """The work has ended: well ('') or with a code."""


class Spans(Protocol):
    """A subscriber."""

    def attempt(self, run_id: str, agent: str, number: int) -> Span | None:
        """An attempt begins in this worker, or goes on; None when it is not to be told of."""


class SafeSpan:
    """What the engine holds: the subscriber's span, or nothing. No method raises.

    Leaving its `with` block ends it, with the error's code when there is one; only the first end counts.
    """

    __slots__ = ("_ended", "_span")

    def __init__(self, span: Span | None) -> None:
        self._span, self._ended = span, False

    def child(self, kind: Kind, name: str, **facts: str | float) -> SafeSpan:
        """Work inside of this one begins."""
        span = self._span
        if span is None:
            return self
        made = SafeSpan(quietly(lambda: span.child(kind, name)))
        made.note(**facts)
        return made

    def note(self, **facts: str | float) -> None:
        """See Span."""
        span = self._span
        if span is not None:
            quietly(lambda: span.note(**facts))

    def attach(self, **payloads: Any) -> None:
        """See Span."""
        span = self._span
        if span is not None:
            quietly(lambda: span.attach(**payloads))

    def end(self, code: str = "") -> None:
        """See Span."""
        span = self._span
        if span is not None and not self._ended:
            self._ended = True
            quietly(lambda: span.end(code))

    def __enter__(self) -> SafeSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end("" if error is None else code_of(error))


NO_SPAN: Final = SafeSpan(None)
"""Nobody watches: every method returns at once."""


def attempt_span(spans: Spans | None, run_id: str, agent: str, number: int) -> SafeSpan:
    """The span of an attempt that this worker begins or goes on with."""
    if spans is None:
        return NO_SPAN
    span = quietly(lambda: spans.attempt(run_id, agent, number))
    return NO_SPAN if span is None else SafeSpan(span)


def code_of(error: BaseException) -> str:
    """The code of an error or signal, else the name of its type; never its text."""
    code = getattr(error, "code", None)
    return str(code) if isinstance(code, str) and code else type(error).__name__


_told: list[bool] = []


def quietly(tell: Callable[[], T]) -> T | None:
    """Tell it; what that raises is logged once, since it would be the same each time, and harms no run."""
    try:
        return tell()
    except Exception:
        if not _told:
            _told.append(True)
            log.debug("telemetry could not be told; the work goes on", exc_info=True)
        return None

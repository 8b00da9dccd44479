"""Attempts as Sentry transactions: one span per model request and per try of a call, each under its attempt.

Every parent is handed on explicitly and no span is ever put on one of Sentry's scopes: hundreds of attempts share one
event loop, and whatever a tool does with sentry-sdk must not find, or end up in, the trace of another run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from makegood.monitoring import genai, sentry
from makegood.tasks.model.types import ModelReply
from makegood.tasks.spans import Kind, Span, Spans

if TYPE_CHECKING:
    from sentry_sdk.tracing import Span as SdkSpan

MAX_PAYLOAD = 4 * 1024
"""Bytes of one prompt, argument list or result that are attached."""

OPS: Mapping[Kind, str] = {"tool": genai.EXECUTE_TOOL, "chat": genai.CHAT}


def subscribe(traces: float, *, payloads: bool) -> Spans | None:
    """What the engine is to tell of its work; None when nothing is traced."""
    return SentrySpans(payloads=payloads) if traces > 0 and sentry.is_on() else None


class SentrySpans:
    """Starts a transaction for each attempt that is sampled."""

    def __init__(self, *, payloads: bool) -> None:
        self._payloads = payloads

    def attempt(self, run_id: str, agent: str, number: int) -> Span | None:
        """See Spans."""
        from sentry_sdk.scope import Scope
        from sentry_sdk.tracing import Transaction

        with sentry.alone():
            name = f"{genai.operation(genai.INVOKE_AGENT)} {agent}"
            transaction = Scope().start_transaction(op=genai.INVOKE_AGENT, name=name, source="task")
        if not isinstance(transaction, Transaction) or not transaction.sampled:
            return None
        transaction.set_tag("agent", agent)
        span = SentrySpan(transaction, genai.INVOKE_AGENT, agent, payloads=self._payloads)
        span.note(run_id=run_id, attempt=number)
        return span


class SentrySpan:
    """One span, or the transaction itself."""

    __slots__ = ("_agent", "_payloads", "_span")

    def __init__(self, span: SdkSpan, op: str, agent: str, *, payloads: bool) -> None:
        self._span, self._agent, self._payloads = span, agent, payloads
        span.set_data(genai.OPERATION, genai.operation(op))
        span.set_data(genai.AGENT, agent)

    def child(self, kind: Kind, name: str) -> SentrySpan:
        """See Span."""
        op = OPS[kind]
        child = self._span.start_child(op=op, name=f"{genai.operation(op)} {name}")
        return SentrySpan(child, op, self._agent, payloads=self._payloads)

    def note(self, **facts: str | float) -> None:
        """See Span."""
        for name, value in facts.items():
            self._span.set_data(genai.FACTS[name], value)

    def attach(self, **payloads: Any) -> None:
        """See Span."""
        if self._payloads:
            for name, value in payloads.items():
                self._span.set_data(genai.PAYLOADS[name], shown(name, value))

    def end(self, code: str) -> None:
        """See Span. The end of the attempt sends the transaction."""
        if code:
            self.note(code=code)
        self._span.set_status(genai.status_of(code))
        with sentry.alone() as scope:
            self._span.finish(scope)


def shown(name: str, value: Any) -> str:
    """A payload as JSON of at most `MAX_PAYLOAD` bytes."""
    if name == "messages":
        return _newest([_message(each) for each in value])
    if name == "reply":
        return _capped([_reply(value)])
    return _capped(value)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """What a message says. The arguments that a model wrote are left out: their span has them, secrets masked."""
    said = {"role": message.get("role"), "content": message.get("content")}
    if message.get("tool_calls"):
        said["tool_calls"] = [
            {"id": call.get("id"), "name": (call.get("function") or {}).get("name")}
            for call in message["tool_calls"]
        ]
    if message.get("tool_call_id"):
        said["tool_call_id"] = message["tool_call_id"]
    return said


def _reply(reply: ModelReply) -> dict[str, Any]:
    calls = [{"id": call.id, "name": call.name} for call in reply.tool_calls]
    return {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}


def _newest(messages: Sequence[Mapping[str, Any]]) -> str:
    """The newest messages that fit; the newest of all in any case, cut."""
    kept: list[Mapping[str, Any]] = []
    size = 0
    for message in reversed(messages):
        size += len(_json(message))
        if kept and size > MAX_PAYLOAD:
            break
        kept.insert(0, message)
    return _capped(kept)


def _capped(value: Any) -> str:
    return _json(value)[:MAX_PAYLOAD].decode(errors="ignore")


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)

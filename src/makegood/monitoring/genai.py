"""The names of OpenTelemetry's conventions for generative AI, and ours beside them. No other module spells them out.

Checked against the conventions as sentry-sdk 2.75 has them; they are not stable yet, so that a change is made here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

INVOKE_AGENT: Final = "gen_ai.invoke_agent"
EXECUTE_TOOL: Final = "gen_ai.execute_tool"
CHAT: Final = "gen_ai.chat"

OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"

FACTS: Mapping[str, str] = MappingProxyType(
    {
        "model": "gen_ai.request.model",
        "input_tokens": "gen_ai.usage.input_tokens",
        "output_tokens": "gen_ai.usage.output_tokens",
        "tool": "gen_ai.tool.name",
        "call_key": "gen_ai.tool.call.id",
        "run_id": "makegood.run.id",
        "attempt": "makegood.attempt.number",
        "steps": "makegood.attempt.steps",
        "calls": "makegood.attempt.calls",
        "state": "makegood.run.state",
        "step": "makegood.step",
        "number": "makegood.try.number",
        "code": "makegood.code",
    }
)
"""What the engine calls an id or a count → the attribute that carries it."""

PAYLOADS: Mapping[str, str] = MappingProxyType(
    {
        "messages": "gen_ai.input.messages",
        "reply": "gen_ai.output.messages",
        "arguments": "gen_ai.tool.call.arguments",
        "result": "gen_ai.tool.call.result",
    }
)
"""What the engine calls a payload → the attribute that carries it, where payloads are switched on."""


def operation(op: str) -> str:
    """The operation of a span's kind: `chat` for `gen_ai.chat`."""
    return op.removeprefix("gen_ai.")


def status_of(code: str) -> str:
    """The span's status, of the closed set that Sentry and OpenTelemetry know."""
    if not code:
        return "ok"
    if "TIMEOUT" in code or code == "LimitReached":
        return "deadline_exceeded"
    if code in ("CANCELLED", "ABORTED", "Cancelled"):
        return "cancelled"
    if code in ("STALE_FENCE", "StaleFence", "HandOver"):
        return "aborted"
    return "internal_error"

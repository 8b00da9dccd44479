"""What the bytes of a reply say, before LiteLLM interprets them.

LiteLLM turns an HTML page, a JSON error with status 200 and an unknown finish reason into a successful
"stop", and a missing usage into an unmarked estimate. So the adapter looks at the reply itself. This file is
pure: bytes in, facts out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

STREAM_HEAD_BYTES = 16 << 10
"""How much of a stream's beginning is kept, to recognise a body that is no stream at all."""

_STREAM_TYPES = ("text/event-stream", "application/x-ndjson", "application/stream+json")
_STREAM_STARTS = (b"data:", b"event:", b": ")
_SSE_FIELDS = (b":", b"event:", b"id:", b"retry:")


class WireFacts:
    """Facts about one reply, gathered as its bytes pass by.

    `error` is the last error object the provider reported, `finish` its own word for the end, `usage` whether
    it sent token counts, `known` whether any event had a shape that this file understands (else LiteLLM is to
    be believed), `streamed` whether the body is a stream of events, `garbage` whether something came that
    belongs into no stream, `done` whether the stream's last event was seen.
    """

    def __init__(self, content_type: str = "") -> None:
        self.error: Any = None
        self.finish: str | None = None
        self.usage = False
        self.events = 0
        self.known = False
        self.garbage = False
        self.done = False
        self.streamed = content_type.startswith(_STREAM_TYPES)
        self._kept = bytearray()
        self._line = bytearray()

    def feed(self, data: bytes) -> int:
        """Take in the next bytes; returns how many events (never comments) they completed."""
        if not self._kept and data.startswith(_STREAM_STARTS):
            self.streamed = True  # whatever the content type says
        if not self.streamed:
            self._kept += data
            return 0
        if len(self._kept) < STREAM_HEAD_BYTES:
            self._kept += data[: STREAM_HEAD_BYTES - len(self._kept)]
        before = self.events
        self._line += data
        *lines, rest = self._line.replace(b"\r", b"\n").split(b"\n")
        self._line = bytearray(rest)
        for line in lines:
            self._take_line(bytes(line))
        return self.events - before

    def end(self) -> None:
        """The body is over: look at a last line without its newline and at a body that was no stream."""
        if self._line:
            self._take_line(bytes(self._line))
            self._line.clear()
        if self.events == 0 and self._take_json(bytes(self._kept)) and not self.streamed:
            self.events = 1

    def body(self) -> bytes:
        """The kept beginning of the body."""
        return bytes(self._kept)

    def _take_line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            payload = line[5:].strip()
        elif line.startswith(b"{"):
            payload = line.strip()  # one JSON object a line, as Ollama sends
        else:
            self.garbage = self.garbage or (bool(line.strip()) and not line.startswith(_SSE_FIELDS))
            return
        self.done = self.done or payload == b"[DONE]"
        if payload == b"[DONE]" or (payload and self._take_json(payload)):
            self.events += 1
        elif payload:
            self.garbage = True

    def _take_json(self, payload: bytes) -> bool:
        try:
            value = orjson.loads(payload)
        except ValueError:
            return False
        if isinstance(value, list) and value:
            value = value[0]  # Gemini wraps errors of streamed calls in a list
        if not isinstance(value, dict) or not value:
            return False
        self.error = error_of(value) or self.error
        self.done = self.done or value.get("type") == "message_stop"
        finish = finish_of(value)
        self.finish = finish or self.finish
        self.usage = self.usage or usage_in(value)
        self.known = self.known or bool(finish) or _looks_known(value)
        return True


def error_of(event: Mapping[str, Any]) -> Any:
    """The error object of a reply or stream event, or None. Providers nest it, or send it bare."""
    for holder in (event, _part(event, "response"), *_parts(event, "choices")):
        if holder.get("error"):
            return holder["error"]
    if event.get("type") == "error" or event.get("object") == "error":
        return dict(event)
    if "choices" not in event and event.get("message") and event.get("code"):
        return dict(event)
    return None


def finish_of(event: Mapping[str, Any]) -> str | None:
    """The provider's own word for the end of the reply, if this event carries it."""
    words = [choice.get("finish_reason") for choice in _parts(event, "choices")]
    words += [candidate.get("finishReason") for candidate in _parts(event, "candidates")]
    words.append(_part(event, "promptFeedback").get("blockReason"))
    words += [event.get(name) for name in ("stop_reason", "stopReason", "finish_reason")]
    words.append(_part(event, "delta").get("stop_reason"))
    if event.get("done") is True:
        words.append(event.get("done_reason") or "stop")
    response = event if event.get("object") == "response" else _part(event, "response")
    if response.get("status") in ("completed", "incomplete"):
        words.append(_part(response, "incomplete_details").get("reason") or response["status"])
    return next((str(word) for word in words if word), None)


def usage_in(event: Mapping[str, Any]) -> bool:
    """Whether the event carries token counts of the provider."""
    holders = (event, _part(event, "message"), _part(event, "response"))
    return any(holder.get("usage") or holder.get("usageMetadata") for holder in holders) or (
        event.get("eval_count") is not None
    )


def _looks_known(event: Mapping[str, Any]) -> bool:
    return any(name in event for name in ("choices", "candidates", "done", "stop_reason", "error")) or str(
        event.get("type", "")
    ).startswith(("message_", "content_block_", "response.", "error"))


def _part(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = event.get(name)
    return value if isinstance(value, dict) else {}


def _parts(event: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = event.get(name)
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []

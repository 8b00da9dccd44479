"""The other interfaces a `Provider` speaks: Anthropic's messages, Gemini's generateContent, Ollama's two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from makegood.testing.provider_behaviours import Reply
from makegood.testing.provider_openai import OpenAIWire, arguments_of, id_of, pieces_of, sse


class Wire(Protocol):
    """How one interface looks on the wire."""

    content_type: str

    def whole(self, reply: Reply, number: int) -> dict[str, Any]: ...

    def stream(self, reply: Reply, number: int, *, usage_asked: bool = True) -> Iterator[bytes]: ...

    def error(self, status: int, message: str) -> dict[str, Any]: ...

    def error_event(self, error: Mapping[str, Any]) -> bytes: ...


class AnthropicWire:
    """Anthropic's messages."""

    content_type = "text/event-stream"

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        """The whole answer."""
        content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
        for position, call in enumerate(reply.tool_calls):
            arguments = json.loads(arguments_of(call))
            content.append(
                {"type": "tool_use", "id": id_of(call, number, position), "name": call[0], "input": arguments}
            )
        return self._message(reply, number) | {"content": content, "stop_reason": self._reason(reply)}

    def stream(self, reply: Reply, number: int, *, usage_asked: bool = True) -> Iterator[bytes]:
        """The events of a streamed answer."""
        yield self._event({"type": "message_start", "message": self._message(reply, number)})
        index = 0
        if reply.text:
            yield self._event(
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            )
            for piece in pieces_of(reply.text, reply.pieces):
                yield self._delta(0, {"type": "text_delta", "text": piece})
            yield self._event({"type": "content_block_stop", "index": 0})
            index = 1
        for position, call in enumerate(reply.tool_calls, index):
            block = {"type": "tool_use", "id": id_of(call, number, position), "name": call[0], "input": {}}
            yield self._event({"type": "content_block_start", "index": position, "content_block": block})
            for piece in pieces_of(arguments_of(call), reply.pieces):
                yield self._delta(position, {"type": "input_json_delta", "partial_json": piece})
            yield self._event({"type": "content_block_stop", "index": position})
        ending: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": self._reason(reply)}}
        if reply.usage:
            ending["usage"] = {"output_tokens": reply.usage[1]}
        yield self._event(ending)
        yield self._event({"type": "message_stop"})

    def error(self, status: int, message: str) -> dict[str, Any]:
        """An error body for a status."""
        return {"type": "error", "error": {"type": "scripted_error", "message": message}}

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """An error reported inside a stream."""
        return sse({"type": "error", "error": dict(error)}, "error")

    @staticmethod
    def _event(event: Mapping[str, Any]) -> bytes:
        return sse(event, str(event["type"]))

    def _delta(self, index: int, delta: Mapping[str, Any]) -> bytes:
        return self._event({"type": "content_block_delta", "index": index, "delta": dict(delta)})

    @staticmethod
    def _reason(reply: Reply) -> str:
        return reply.finish_reason or ("tool_use" if reply.tool_calls else "end_turn")

    @staticmethod
    def _message(reply: Reply, number: int) -> dict[str, Any]:
        message: dict[str, Any] = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        if reply.usage:
            message["usage"] = {"input_tokens": reply.usage[0], "output_tokens": reply.usage[1]}
        return message


class GeminiWire:
    """Gemini's generateContent and streamGenerateContent (as server-sent events)."""

    content_type = "text/event-stream"

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        """The whole answer."""
        return self._answer(reply, reply.text, last=True)

    def stream(self, reply: Reply, number: int, *, usage_asked: bool = True) -> Iterator[bytes]:
        """The events of a streamed answer."""
        for piece in pieces_of(reply.text, reply.pieces):
            yield sse(self._answer(Reply(usage=None), piece, last=False))
        yield sse(self._answer(reply, "", last=True))

    def error(self, status: int, message: str) -> dict[str, Any]:
        """An error body for a status."""
        return {"error": {"code": status, "message": message, "status": "SCRIPTED"}}

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """An error reported inside a stream."""
        return sse({"error": dict(error)})

    @staticmethod
    def _answer(reply: Reply, text: str, *, last: bool) -> dict[str, Any]:
        parts: list[dict[str, Any]] = [{"text": text}] if text else []
        if last:
            parts += [
                {"functionCall": {"name": call[0], "args": json.loads(arguments_of(call))}}
                for call in reply.tool_calls
            ]
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        answer: dict[str, Any] = {"candidates": [candidate], "modelVersion": "scripted"}
        if last:
            candidate["finishReason"] = reply.finish_reason or "STOP"
        if reply.usage:
            prompt, completion = reply.usage
            answer["usageMetadata"] = {
                "promptTokenCount": prompt,
                "candidatesTokenCount": completion,
                "totalTokenCount": prompt + completion,
            }
        return answer


class OllamaWire:
    """Ollama's generate and chat: one JSON object a line."""

    content_type = "application/x-ndjson"

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        """The whole answer, which fits both of its interfaces."""
        return self._line(reply, reply.text, last=True)

    def stream(self, reply: Reply, number: int, *, usage_asked: bool = True) -> Iterator[bytes]:
        """The lines of a streamed answer."""
        for piece in pieces_of(reply.text, reply.pieces):
            yield json.dumps(self._line(Reply(usage=None), piece, last=False)).encode() + b"\n"
        yield json.dumps(self._line(reply, "", last=True)).encode() + b"\n"

    def error(self, status: int, message: str) -> dict[str, Any]:
        """An error body for a status."""
        return {"error": message}

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """An error reported inside a stream."""
        return json.dumps({"error": error.get("message", "")}).encode() + b"\n"

    @staticmethod
    def _line(reply: Reply, text: str, *, last: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if last and reply.tool_calls:
            message["tool_calls"] = [
                {"function": {"name": call[0], "arguments": json.loads(arguments_of(call))}}
                for call in reply.tool_calls
            ]
        line: dict[str, Any] = {
            "model": "scripted",
            "created_at": "2026-01-01T00:00:00Z",
            "message": message,
            "response": text,
            "done": last,
        }
        if last:
            line["done_reason"] = reply.finish_reason or "stop"
        if last and reply.usage:
            line |= {"prompt_eval_count": reply.usage[0], "eval_count": reply.usage[1]}
        return line


_OPENAI, _ANTHROPIC, _GEMINI, _OLLAMA = OpenAIWire(), AnthropicWire(), GeminiWire(), OllamaWire()


def wire_of(path: str) -> Wire:
    """The interface that a request to this path speaks."""
    if path.endswith("/messages"):
        return _ANTHROPIC
    if "enerateContent" in path:
        return _GEMINI
    if "/api/" in path and not path.endswith("/completions"):
        return _OLLAMA
    return _OPENAI

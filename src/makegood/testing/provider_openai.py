"""OpenAI's chat completions on the wire, as a `Provider` sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from makegood.testing.provider_behaviours import Reply, ToolCall


def sse(event: Mapping[str, Any] | str, name: str | None = None) -> bytes:
    """One server-sent event."""
    data = event if isinstance(event, str) else json.dumps(event)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


def arguments_of(call: ToolCall) -> str:
    """The arguments of a scripted tool call as they go over the wire."""
    return call[1] if isinstance(call[1], str) else json.dumps(call[1])


def id_of(call: ToolCall, number: int, position: int) -> str:
    """The id of a scripted tool call: its own, or one that is unique for the server."""
    return call[2] if len(call) == 3 else f"call_{number}_{position}"


def pieces_of(text: str, count: int) -> list[str]:
    """A text cut into at most `count` pieces of about the same length."""
    if not text:
        return []
    size = -(-len(text) // max(1, count))
    return [text[start : start + size] for start in range(0, len(text), size)]


def openai_delta(content: str | None = None, finish_reason: str | None = None, *,
                 tool_calls: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:  # fmt: skip
    """One event of an OpenAI stream."""
    delta: dict[str, Any] = {}
    if content is not None:
        delta["content"] = content
    if tool_calls:
        delta["tool_calls"] = [dict(call) for call in tool_calls]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }


def openai_tool(
    index: int | None, arguments: str = "", *, call_id: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """One event with one fragment of a tool call; what is None is left out."""
    function: dict[str, Any] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    call: dict[str, Any] = {"function": function}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call |= {"id": call_id, "type": "function"}
    return openai_delta(tool_calls=[call])


class OpenAIWire:
    """Shapes for OpenAI, DeepSeek, OpenRouter, vLLM and others that speak its interface."""

    content_type = "text/event-stream"

    def whole(self, reply: Reply, number: int) -> dict[str, Any]:
        """The whole answer."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.tool_calls:
            message["tool_calls"] = [
                {
                    "id": id_of(call, number, position),
                    "type": "function",
                    "function": {"name": call[0], "arguments": arguments_of(call)},
                }
                for position, call in enumerate(reply.tool_calls)
            ]
        body: dict[str, Any] = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": self._reason(reply)}],
        }
        return body | ({"usage": self._usage(reply)} if reply.usage else {})

    def stream(self, reply: Reply, number: int, *, usage_asked: bool = True) -> Iterator[bytes]:
        """The chunks of a streamed answer; usage comes after the finish, and only to those who asked."""
        for piece in pieces_of(reply.text, reply.pieces):
            yield sse(openai_delta(piece))
        for position, call in enumerate(reply.tool_calls):
            yield sse(openai_tool(position, call_id=id_of(call, number, position), name=call[0]))
            for piece in pieces_of(arguments_of(call), reply.pieces):
                yield sse(openai_tool(position, piece))
        yield sse(openai_delta(finish_reason=self._reason(reply)))
        if reply.usage and usage_asked:
            yield sse(openai_delta() | {"choices": [], "usage": self._usage(reply)})
        yield sse("[DONE]")

    def error(self, status: int, message: str) -> dict[str, Any]:
        """An error body for a status."""
        return {"error": {"message": message, "type": "scripted_error", "code": None, "param": None}}

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """An error reported inside a stream."""
        return sse({"error": dict(error)})

    @staticmethod
    def _reason(reply: Reply) -> str:
        return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")

    @staticmethod
    def _usage(reply: Reply) -> dict[str, int]:
        prompt, completion = reply.usage or (0, 0)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

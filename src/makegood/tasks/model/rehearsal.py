"""Calls against canned replies, so that no real call pays for lazy imports (CONTRACT B13). No network is
touched.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from makegood.tasks.model.types import ModelRequest

_USAGE = '"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}'
_OPENAI = (
    '{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    '"message":{"role":"assistant","content":"ok"}}],' + _USAGE + "}"
)
_OPENAI_STREAM = (
    'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"finish_reason":null,'
    '"delta":{"role":"assistant","content":"ok"}}]}\n\n'
    'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    '"delta":{}}]}\n\n'
    'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    + _USAGE
    + "}\n\n"
    "data: [DONE]\n\n"
)
_ANTHROPIC = (
    '{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"ok"}],'
    '"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}'
)
_GEMINI = (
    '{"candidates":[{"content":{"parts":[{"text":"ok"}],"role":"model"},"finishReason":"STOP","index":0}],'
    '"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":1,"totalTokenCount":2}}'
)
_OLLAMA = (
    '{"model":"m","created_at":"2026-01-01T00:00:00Z","message":{"role":"assistant","content":"ok"},"response":"ok",'
    '"done":true,"done_reason":"stop","prompt_eval_count":1,"eval_count":1}'
)
_MODELS = (
    "openai/gpt-5-mini",
    "anthropic/claude-sonnet-4-5",
    "gemini/gemini-2.5-flash",
    "hosted_vllm/m",
    "ollama/m",
)
_TOOL = {
    "type": "function",
    "function": {"name": "t", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def requests() -> Iterator[ModelRequest]:
    """One request per wire format, and a streamed one where all providers share it."""
    args = {"api_base": "http://rehearsal.invalid", "api_key": "rehearsal"}
    for model in _MODELS:
        tools = () if model.startswith("ollama/") else (_TOOL,)
        yield ModelRequest(model, [{"role": "user", "content": "hi"}], tools, args)
    for model in ("openai/gpt-5-mini", "hosted_vllm/m"):
        yield ModelRequest(model, [{"role": "user", "content": "hi"}], (_TOOL,), args, stream=True)


def canned_connection() -> httpx.AsyncClient:
    """A connection that leads nowhere and answers at once."""
    return httpx.AsyncClient(transport=httpx.MockTransport(_answer))


def _answer(request: httpx.Request) -> httpx.Response:
    path = request.url.path
    if b'"stream": true' in request.content or b'"stream":true' in request.content:
        return httpx.Response(200, text=_OPENAI_STREAM, headers={"content-type": "text/event-stream"})
    if "messages" in path:
        text = _ANTHROPIC
    elif "enerateContent" in path:
        text = _GEMINI
    elif path.startswith("/api/"):
        text = _OLLAMA
    else:
        text = _OPENAI
    return httpx.Response(200, text=text, headers={"content-type": "application/json"})

"""Calling a model in tests: real LiteLLM against the scripted provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import SecretStr

from makegood.tasks.model.litellm_adapter import LiteLLMAdapter
from makegood.tasks.model.types import Chunk, Clocks, Failure, Finish, ModelFailure, ModelRequest
from makegood.testing import Provider

PROVIDERS = (
    "openai/gpt-4o-mini",
    "anthropic/claude-sonnet-4-5",
    "gemini/gemini-2.5-flash",
    "deepseek/deepseek-chat",
    "openrouter/openai/gpt-4o",
    "hosted_vllm/some-model",
    "ollama/some-model",
)
"""The providers that CONTRACT B5 names."""

KEY = "sk-very-secret-key-0123456789"
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}
PATIENT = Clocks(connect_s=30, first_token_s=30, idle_s=30, call_s=30)


def request_for(
    provider: Provider,
    model: str = PROVIDERS[0],
    *,
    stream: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    **args: Any,
) -> ModelRequest:
    """A request to the scripted provider."""
    known = {"api_base": provider.url, "api_key": SecretStr(KEY), **args}
    return ModelRequest(model, [{"role": "user", "content": "hi"}], tools, known, stream)


async def chunks_of(adapter: LiteLLMAdapter, request: ModelRequest, clocks: Clocks = PATIENT) -> list[Chunk]:
    """All chunks of a call."""
    return [chunk async for chunk in adapter.stream(request, clocks)]


async def failure_of(adapter: LiteLLMAdapter, request: ModelRequest, clocks: Clocks = PATIENT) -> Failure:
    """The failure of a call that must fail, on whichever of the two error paths."""
    chunks: list[Chunk] = []
    raised: ModelFailure | None = None
    try:
        chunks = await chunks_of(adapter, request, clocks)
    except ModelFailure as error:
        raised = error
    if raised is not None:
        assert (raised.__cause__, raised.__context__) == (None, None), "nothing of a library may hang on it"
        return raised.failure
    last = chunks[-1]
    assert isinstance(last, Finish), chunks
    assert last.failure is not None, chunks
    return last.failure

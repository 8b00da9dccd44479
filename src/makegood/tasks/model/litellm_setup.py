"""Loading LiteLLM so that it is quiet, local and sends each request once (CONTRACT B13).

Importing it takes 6 to 8 s, fetches a price list, reads `./.env` and prints hints, unless told otherwise beforehand. So it
is imported only here, at first use or by a warm-up, and never when makegood is imported.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

import httpx

from makegood.tasks.model.exchange import Exchange

_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the price list of the package, not the one on the network
    "LITELLM_MODE": "PRODUCTION",  # do not load ./.env into the environment
}
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
_NO_REPEAT_LIMIT = 1_000_000_000

_OWN_HANDLER = frozenset(
    "anthropic gemini deepseek openrouter hosted_vllm ollama ollama_chat mistral groq xai together_ai fireworks_ai cohere "
    "cohere_chat huggingface databricks cometapi minimax ragflow heroku edenai opencode_go amazon_nova datarobot".split()
)
"""Providers that LiteLLM reaches through its own HTTP handler; most of them are also on its list of OpenAI-compatible ones."""

_SIGN_IN = frozenset({"azure_ai", "github_copilot", "chatgpt", "vercel_ai_gateway"})
"""OpenAI-compatible providers with a client or a sign-in of their own."""

_OLLAMA_PRICE = {
    "litellm_provider": "ollama",
    "mode": "chat",
    "input_cost_per_token": 0.0,
    "output_cost_per_token": 0.0,
    "supports_function_calling": True,
}

_lock = threading.Lock()


def load() -> Any:
    """The `litellm` module, imported on first use. Safe to call from any thread; blocks for seconds the first time."""
    with _lock:
        first = "litellm" not in sys.modules
        if first:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        import litellm

        if not getattr(litellm, "_makegood_ready", False):
            litellm.suppress_debug_info = True
            litellm.telemetry = False
            litellm.REPEATED_STREAMING_CHUNK_LIMIT = _NO_REPEAT_LIMIT
            for name in _LOGGERS:
                logger = logging.getLogger(name)
                logger.handlers.clear()
                logger.setLevel(logging.CRITICAL)  # its records quote prompts
            litellm._makegood_ready = True
    return litellm


def client_for(litellm: Any, model: str, args: dict[str, Any], exchange: Exchange) -> Any:
    """A client of the kind LiteLLM wants for this model, whose only transport is `exchange`.

    None for providers with clients of their own kind (Bedrock, Vertex, Azure): their calls are not seen by `exchange`.
    """
    _, provider, key, base = litellm.get_llm_provider(
        model=model, api_base=args.get("api_base"), api_key=args.get("api_key")
    )
    if provider in _OWN_HANDLER:
        from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

        handler = AsyncHTTPHandler(transport=exchange, follow_redirects=False)
        handler.client = handler.client  # ours from now on: LiteLLM schedules no task to close it
        return handler
    if provider in _SIGN_IN or (provider != "openai" and provider not in litellm.openai_compatible_providers):
        return None
    from openai import AsyncOpenAI

    key = key or args.get("api_key") or litellm.api_key or litellm.openai_key or os.environ.get("OPENAI_API_KEY")
    base = (
        base
        or args.get("api_base")
        or litellm.api_base
        or os.environ.get("OPENAI_BASE_URL")
        or os.environ.get("OPENAI_API_BASE")
        or "https://api.openai.com/v1"
    )
    return AsyncOpenAI(
        api_key=key or "missing",  # the provider then says 401, which is the truth
        base_url=base,
        organization=args.get("organization") or litellm.organization,
        max_retries=0,
        http_client=httpx.AsyncClient(transport=exchange, follow_redirects=False),
    )


def model_for(litellm: Any, model: str, *, with_tools: bool) -> str:
    """The name to give to LiteLLM for this model.

    For an Ollama model that is not on its price list LiteLLM asks the server (`/api/show`, blocking the event loop) in
    the middle of the call, so the model is put on the list, for nothing. And its `ollama/` route writes tools into the prompt
    and demands JSON for every answer; `ollama_chat/` has real tool calls.
    """
    route, _, name = model.partition("/")
    if route not in ("ollama", "ollama_chat"):
        return model
    if not any(f"{prefix}{name}" in litellm.model_cost for prefix in ("", "ollama/", "ollama_chat/")):
        litellm.model_cost[f"ollama/{name}"] = dict(_OLLAMA_PRICE)
        litellm.model_cost[f"ollama_chat/{name}"] = dict(_OLLAMA_PRICE) | {"litellm_provider": "ollama_chat"}
    return f"ollama_chat/{name}" if with_tools else model


async def close_clients() -> None:
    """Close what LiteLLM keeps open for this event loop: cached clients and its logging task."""
    litellm = sys.modules.get("litellm")
    if litellm is None:
        return
    from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
    from litellm.llms.custom_httpx.async_client_cleanup import close_litellm_async_clients

    await close_litellm_async_clients()
    await GLOBAL_LOGGING_WORKER.stop(discard_pending=True, timeout=1)

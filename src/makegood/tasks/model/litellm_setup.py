"""Loading LiteLLM so that it is quiet, local and sends each request once (CONTRACT B13).

Importing it takes 6 to 8 s, fetches a price list, reads `./.env` and prints hints, unless told otherwise
beforehand. So it is imported only here, at first use or by a warm-up, and never when makegood is imported.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx

from makegood.tasks.model.exchange import Exchange

_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # the price list of the package, not the one on the network
    "LITELLM_MODE": "PRODUCTION",  # do not load ./.env into the environment
}
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
_OPENAI_URL = "https://api.openai.com/v1"
_UNAWAITED = r"coroutine '[\w.]*(completion|streaming)[\w.]*' was never awaited"
_NO_REPEAT_LIMIT = 1_000_000_000

_OWN_HANDLER = frozenset(
    {
        "azure_ai",
        "cometapi",
        "deepseek",
        "edenai",
        "fireworks_ai",
        "groq",
        "hosted_vllm",
        "opencode_go",
        "ragflow",
        "together_ai",
        "xai",
    }
)
"""OpenAI-compatible providers that LiteLLM nevertheless reaches through its own HTTP handler and not OpenAI's
library.
"""

_SIGN_IN = frozenset({"github_copilot", "chatgpt"})
"""Providers that need a sign-in by LiteLLM itself."""

_OLLAMA_PRICE = {
    "litellm_provider": "ollama",
    "mode": "chat",
    "input_cost_per_token": 0.0,
    "output_cost_per_token": 0.0,
    "supports_function_calling": True,
}

_lock = threading.Lock()


def load() -> Any:
    """The `litellm` module, from any thread. The first call imports it, which takes seconds."""
    with _lock:
        first = "litellm" not in sys.modules
        if first:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        import litellm

        if not getattr(litellm, "_makegood_ready", False):
            litellm.suppress_debug_info = True
            litellm.telemetry = False
            litellm.disable_hf_tokenizer_download = (
                True  # it fetches one to count tokens of any model named like Llama 3
            )
            litellm.REPEATED_STREAMING_CHUNK_LIMIT = _NO_REPEAT_LIMIT
            for name in _LOGGERS:
                logger = logging.getLogger(name)
                logger.handlers.clear()
                logger.setLevel(logging.CRITICAL)  # its records quote prompts
            # A call that is cancelled while LiteLLM's thread prepares it leaves a coroutine that nobody needs.
            warnings.filterwarnings("ignore", _UNAWAITED, RuntimeWarning)
            litellm._makegood_ready = True
    return litellm


def client_for(
    litellm: Any, model: str, args: Mapping[str, Any], tools: Sequence[Any], exchange: Exchange
) -> Any:
    """A client of the kind LiteLLM wants for this model, with `exchange` as its only transport, or None."""
    name, provider, key, base = litellm.get_llm_provider(
        model=model, api_base=args.get("api_base"), api_key=args.get("api_key")
    )
    known = {"api_key": key or args.get("api_key"), "api_base": base or args.get("api_base")}
    if provider in _SIGN_IN:
        return None
    if provider == "azure":
        return _azure_client(litellm, {**args, **known}, exchange)
    if _goes_to_responses(name, provider, args, tools, known["api_base"]):
        return None
    sdk = provider in ("openai", "custom_openai") or provider in litellm.openai_compatible_providers
    if sdk and provider not in _OWN_HANDLER:
        return _openai_client(litellm, {**args, **known}, exchange)
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler

    handler = AsyncHTTPHandler(transport=exchange, follow_redirects=False)
    handler.client = handler.client  # ours from now on: LiteLLM schedules no task to close it
    return handler


def _openai_client(litellm: Any, args: Mapping[str, Any], exchange: Exchange) -> Any:
    from openai import AsyncOpenAI

    key = args["api_key"] or litellm.api_key or litellm.openai_key or os.environ.get("OPENAI_API_KEY")
    base = args["api_base"] or litellm.api_base
    return AsyncOpenAI(
        api_key=key or "missing",  # the provider then says 401, which is the truth
        base_url=base
        or os.environ.get("OPENAI_BASE_URL")
        or os.environ.get("OPENAI_API_BASE")
        or _OPENAI_URL,
        organization=args.get("organization") or litellm.organization,
        max_retries=0,
        http_client=_only(exchange),
    )


def _only(exchange: Exchange) -> Any:
    """A client with this one transport. OpenAI's library takes it, although it is built for another httpx."""
    return httpx.AsyncClient(transport=exchange, follow_redirects=False)


def _azure_client(litellm: Any, args: Mapping[str, Any], exchange: Exchange) -> Any:
    """With an API key only: other ways to sign in to Azure are left to LiteLLM."""
    key = args["api_key"] or litellm.api_key or litellm.azure_key or os.environ.get("AZURE_API_KEY")
    base = args["api_base"] or litellm.api_base or os.environ.get("AZURE_API_BASE")
    version = args.get("api_version") or litellm.api_version or os.environ.get("AZURE_API_VERSION")
    if not (key and base):
        return None
    from openai import AsyncAzureOpenAI

    return AsyncAzureOpenAI(
        api_key=key,
        azure_endpoint=base,
        api_version=version or litellm.AZURE_DEFAULT_API_VERSION,
        max_retries=0,
        http_client=_only(exchange),
    )


def _goes_to_responses(
    name: str, provider: str, args: Mapping[str, Any], tools: Sequence[Any], base: str | None
) -> bool:
    """Whether LiteLLM will use OpenAI's Responses interface, for which it takes no client from outside."""
    try:
        from litellm.responses.bridge_check import responses_api_bridge_check

        info, _ = responses_api_bridge_check(
            model=name,
            custom_llm_provider=provider,
            tools=list(tools) or None,
            reasoning_effort=args.get("reasoning_effort"),
            web_search_options=args.get("web_search_options"),
            api_base=base,
        )
    except Exception:  # internal to LiteLLM: where it is missing, the model's name decides
        return name.startswith("responses/")
    return bool(info.get("mode") == "responses")


def model_for(litellm: Any, model: str, *, with_tools: bool) -> str:
    """The name to give to LiteLLM for this model.

    For an Ollama model that is not on its price list LiteLLM asks the server (`/api/show`, blocking the event
    loop) in the middle of the call, so the model is put on the list, for nothing. And its `ollama/` route
    writes tools into the prompt and demands JSON for every answer; `ollama_chat/` has real tool calls.
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
    with suppress(Exception):  # it may belong to a loop that is gone
        await GLOBAL_LOGGING_WORKER.stop(discard_pending=True, timeout=1)

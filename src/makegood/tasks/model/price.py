"""What a call cost and how many tokens it took when the provider does not say (CONTRACT B12, G5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

CHARS_PER_TOKEN = 4
"""A rule of thumb that needs no tokenizer; the result is marked as an estimate."""


def estimate_tokens(chars: int) -> int:
    """A rough count for a text of this many characters, never 0 for one that is not empty."""
    return math.ceil(chars / CHARS_PER_TOKEN)


def estimate_prompt_tokens(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> int:
    """A rough count for a request."""
    chars = len(orjson.dumps(messages, default=str))
    return estimate_tokens(chars + (len(orjson.dumps(tools, default=str)) if tools else 0))


def cost_of(model: str, usage: Any, prompt_tokens: int, completion_tokens: int) -> float | None:
    """US dollars for one call: what the provider said, else LiteLLM's local price list, else None."""
    said = getattr(usage, "cost", None)
    if isinstance(said, int | float) and not isinstance(said, bool):
        return float(said)
    import litellm

    prices = litellm.model_cost.get(model) or litellm.model_cost.get(model.partition("/")[2])
    if prices is None:
        return None
    if not any(prices.get(name) for name in ("input_cost_per_token", "output_cost_per_token")):
        return 0.0 if "input_cost_per_token" in prices else None
    try:
        prompt, completion = litellm.cost_per_token(
            model=model, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, usage_object=usage
        )
    except Exception:  # it raises whatever it likes for a model that it cannot price
        return None
    return float(prompt) + float(completion)

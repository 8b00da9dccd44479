"""How providers say that a request does not fit into the model's context window (CONTRACT B9).

LiteLLM recognises only some of these, so they are listed here, each with the provider that says it.
"""

from __future__ import annotations

import re

OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, DeepSeek, Groq
        "context_window_exceeded",
        "string_above_max_length",  # OpenAI, a single message
        "request_too_large",  # Anthropic, with status 413
        "exceed_context_size_error",  # llama.cpp
        "max_tokens_exceeded",
        "1261",  # Z.ai
    }
)

_WORDINGS = (
    r"context[ _]length[ _]exceeded",
    r"maximum context length",  # OpenAI, vLLM, DeepSeek; "endpoint's maximum context length" is OpenRouter's
    r"exceeds? the (model'?s )?(maximum )?context (window|length|limit)",  # OpenAI, Anthropic
    r"exceeds? the available context size",  # llama.cpp
    r"context (window|length|size) (is |was |has been )?(full|exceeded)",
    r"prompt is too long",  # Anthropic
    r"input is too long",  # Anthropic on Bedrock
    r"input length and `?max_tokens`? exceed context limit",  # Anthropic
    r"input token count .{0,60}exceeds? the maximum",  # Gemini
    r"exceeds the maximum number of (input )?tokens",  # Gemini
    r"longer than the (maximum )?model('s)?( maximum)? (context )?length",  # vLLM
    r"longer than the maximum model length",  # vLLM
    r"maximum model length",  # vLLM
    r"range of input length should be",  # Qwen
    r"exceeded model token limit",  # Kimi
    r"exceeds? (the )?model'?s? (token|context) limit",
    r"prompt exceeds max(imum)? length",  # Z.ai
    r"too many (input )?tokens in (the )?(prompt|request|messages)",
    r"reduce the length of the (messages|prompt|input)",  # OpenAI, Groq
    r"please reduce the length",
    r"tokens? (in|of) (the )?(prompt|request) .{0,60}(exceed|greater|larger).{0,40}(context|limit)",
)

_OVERFLOW = re.compile("|".join(_WORDINGS), re.IGNORECASE)
_PER_TIME = re.compile(r"per[ _-](minute|min|hour|day)|\b[tr]p[md]\b", re.IGNORECASE)


def says_overflow(words: frozenset[str], text: str, status: int | None) -> bool:
    """Whether an error with these codes, this text and this status means: too long for the model.

    A limit per minute is a rate, however long the request; a bare 413 is a request too large.
    """
    if _PER_TIME.search(text):
        return False
    return bool(words & OVERFLOW_CODES) or bool(_OVERFLOW.search(text)) or status == 413

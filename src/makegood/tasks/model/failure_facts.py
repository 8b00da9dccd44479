"""From an HTTP reply or error object to one of the closed codes, with the facts around it (CONTRACT B8, B9).

Pure: statuses, headers and bodies in, a `Failure` out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from makegood.tasks.model.overflow import says_overflow
from makegood.tasks.model.types import Failure, FailureCode
from makegood.tasks.rules.retry_after import parse_retry_after_ms

MESSAGE_CHARS = 300
"""A provider's own text is cut here: it may quote the whole prompt."""

REQUEST_ID_HEADERS = (
    "x-request-id",
    "request-id",  # Anthropic
    "x-goog-request-id",
    "x-ds-trace-id",  # DeepSeek
    "x-dashscope-request-id",  # Qwen
    "x-generation-id",  # OpenRouter
    "apim-request-id",  # Azure
    "cf-ray",
)

_WORDS = {
    FailureCode.QUOTA: "insufficient_quota billing_hard_limit_reached billing_not_active billing_error arrearage 1113 "
    "exceeded_current_quota_error insufficient_balance insufficient_credits payment_required",
    FailureCode.RATE_LIMIT: "rate_limit_exceeded rate_limit_error rate_limit_reached_error too_many_requests tokens "
    "resource_exhausted throttling throttling.ratequota requests 1302 1303 1305",
    FailureCode.AUTH: "invalid_api_key invalid_apikey incorrect_api_key authentication_error permission_error "
    "permission_denied unauthenticated invalid_authentication_error account_deactivated",
    FailureCode.SERVER: "overloaded overloaded_error engine_overloaded engine_overloaded_error unavailable "
    "service_unavailable internal_server_error internal_error timeout_error deadline_exceeded",
    FailureCode.CONTENT_FILTER: "content_filter content_policy_violation responsibleaipolicyviolation 1301 "
    "data_inspection_failed datainspectionfailed",
    FailureCode.INVALID_REQUEST: "model_not_found not_found_error invalid_argument failed_precondition invalid_type "
    "unsupported_parameter unsupported_value unknown_parameter missing_required_parameter",
}
_SPECIFIC = {word: code for code, words in _WORDS.items() for word in words.split()}
"""Words that say more than the status they come with."""

_PRECEDENCE = (
    FailureCode.QUOTA,
    FailureCode.CONTENT_FILTER,
    FailureCode.RATE_LIMIT,
    FailureCode.AUTH,
    FailureCode.SERVER,
    FailureCode.INVALID_REQUEST,
)
"""Which word counts where an error carries several."""

_GENERIC: dict[str, FailureCode] = {
    "invalid_request_error": FailureCode.INVALID_REQUEST,
    "bad_request": FailureCode.INVALID_REQUEST,
    "badrequesterror": FailureCode.INVALID_REQUEST,
    "not_found": FailureCode.INVALID_REQUEST,
    "server_error": FailureCode.SERVER,
    "api_error": FailureCode.SERVER,
    "internal": FailureCode.SERVER,
    "unknown_error": FailureCode.SERVER,
}
"""Words that providers use for anything; an error status says more than they do."""

_QUOTA_TEXT = re.compile(
    r"insufficient[ _](balance|quota|credits|funds)|credit balance is too low|(requires|need) more credits",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"(?i)(\bbearer\s+)[\w\-.=+/]+"
    r"|\b(sk|pk|rk|gsk|xai|AIza|hf|key)[-_][\w\-*]{6,}"
    r"|\bAIza[\w\-*]{6,}"
    r"|([?&](?:api_?)?key=)[^\s&\"']+"
)
_TRANSIENT_4XX = frozenset({408, 409, 425, 499})
"""Timeouts, lock conflicts, too early, closed by a gateway: providers' own clients repeat these."""


def failure_of_status(status: int, headers: Mapping[str, str], body: bytes, now_wall_s: float,
                      secrets: tuple[str, ...] = ()) -> Failure:  # fmt: skip
    """The failure that an HTTP error status means. `now_wall_s` is Unix time, for Retry-After as a date."""
    error = _json(body)
    if isinstance(error, dict):
        error = error.get("error") or error.get("detail") or error
    return _failure(error if error is not None else _plain(body), status, headers, now_wall_s, secrets)


def failure_of_error(error: Any, status: int | None, headers: Mapping[str, str], now_wall_s: float,
                     secrets: tuple[str, ...] = ()) -> Failure:  # fmt: skip
    """The failure that an error object inside a reply means, whatever the status of the reply (CONTRACT
    B10).
    """
    return _failure(error, status, headers, now_wall_s, secrets)


def classify(words: frozenset[str], text: str, status: int | None) -> FailureCode:
    """The code for an error that carries these (lower-case) words, this text and this status (None or 2xx:
    none).
    """
    if says_overflow(words, text, status):
        return FailureCode.CONTEXT_WINDOW_EXCEEDED
    if status == 402 or _QUOTA_TEXT.search(text):
        return FailureCode.QUOTA
    for code in _PRECEDENCE:
        if any(_SPECIFIC.get(word) is code for word in words):
            return code
    if status is not None and status >= 300:
        return _by_status(status)
    for word in words:
        if word in _GENERIC:
            return _GENERIC[word]
    return FailureCode.SERVER


def scrub(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Text without anything that looks like a key, on one line, cut to a readable length."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    text = _SECRET.sub(lambda found: f"{found[1] or found[3] or ''}***", " ".join(text.split()))
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """The provider's name for the request, under whichever header it uses."""
    return next((headers[name] for name in REQUEST_ID_HEADERS if headers.get(name)), None)


def _failure(error: Any, status: int | None, headers: Mapping[str, str], now_wall_s: float,
             secrets: tuple[str, ...]) -> Failure:  # fmt: skip
    words, text, said_status = _read(error)
    told = said_status if said_status is not None else status
    code = classify(words, text, told)
    retry_after_ms = parse_retry_after_ms(headers, now_wall_s)
    if retry_after_ms is None:
        retry_after_ms = _retry_delay_ms(error)
    label = f"HTTP {told}" if told is not None and told >= 300 else "an error inside its reply"
    said = scrub(text, secrets)
    message = f"{_SENTENCE[code]} ({label})" + (f": {said}" if said else ".")
    return Failure(message, code, told, retry_after_ms, request_id_of(headers))


_SENTENCE: dict[FailureCode, str] = {
    FailureCode.RATE_LIMIT: "The provider limits the rate of requests",
    FailureCode.SERVER: "The provider could not answer",
    FailureCode.AUTH: "The provider refused the credentials",
    FailureCode.QUOTA: "The account's quota or balance is used up",
    FailureCode.INVALID_REQUEST: "The provider refused the request",
    FailureCode.CONTEXT_WINDOW_EXCEEDED: "The request is too long for the model's context window",
    FailureCode.CONTENT_FILTER: "The provider's content filter stopped the request",
}


def _by_status(status: int) -> FailureCode:
    if status == 429:
        return FailureCode.RATE_LIMIT
    if status in (401, 403):
        return FailureCode.AUTH
    if status >= 500 or status in _TRANSIENT_4XX:
        return FailureCode.SERVER
    return FailureCode.INVALID_REQUEST


def _read(error: Any) -> tuple[frozenset[str], str, int | None]:
    """Words, text and status that an error object states; it may be a string or nest another one."""
    if not isinstance(error, dict):
        return frozenset(), str(error or ""), None
    words: set[str] = set()
    status: int | None = None
    for name in ("code", "type", "status", "error_type", "reason"):
        value: Any = error.get(name)
        if _is_status(value):
            status = int(value)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            words.add(str(value).lower())
    texts = [value for name in ("message", "detail", "msg") if isinstance(value := error.get(name), str)]
    nested = error.get("error")
    if isinstance(nested, dict):
        more_words, more_text, more_status = _read(nested)
        return frozenset(words | more_words), " ".join([*texts, more_text]), status or more_status
    if isinstance(nested, str):
        texts.append(nested)
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("raw"), str):
        texts.append(metadata["raw"])  # OpenRouter: what the endpoint behind it said
    return frozenset(words), " ".join(texts), status


def _is_status(value: Any) -> bool:
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return len(text) == 3 and text.isdigit() and 400 <= int(text) <= 599


def _retry_delay_ms(error: Any) -> int | None:
    """Gemini says how long to wait in the body: `details: [{"retryDelay": "17s"}]`."""
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)s", delay) if isinstance(delay, str) else None
        if found:
            return int(float(found[1]) * 1000 + 0.999)
    return None


def _json(body: bytes) -> Any:
    try:
        value = orjson.loads(body)
    except ValueError:
        return None
    return value[0] if isinstance(value, list) and value else value


def _plain(body: bytes) -> str:
    text = body[:4096].decode("utf-8", "replace").strip()
    return "" if text.startswith("<") else text  # a gateway's HTML page says nothing to a reader

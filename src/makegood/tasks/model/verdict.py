"""What a call came to, judged by what was seen on the wire and not by what LiteLLM made of it (CONTRACT B8 to
B10).
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from makegood.tasks.model.exchange import Exchange
from makegood.tasks.model.failure_facts import (
    failure_of_error,
    failure_of_status,
    request_id_of,
    scrub,
)
from makegood.tasks.model.types import Failure, FailureCode

_FILTERED = frozenset(
    {
        "content_filter",  # OpenAI
        "refusal",  # Anthropic
        "safety",  # Gemini, as are the next five
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "image_safety",
        "sensitive",  # Z.ai
    }
)
_BROKEN_OFF = frozenset({"error", "network_error", "insufficient_system_resource"})
_PLAIN = frozenset(
    {"stop", "complete", "completed", "end_turn", "stop_sequence", "eos", "eos_token", "load", "unload"}
    | {"tool_use", "tool_calls", "function_call", "length", "max_tokens"}
)
"""Words for an ordinary end, which LiteLLM translates well."""


def of_exchange(exchange: Exchange, error: Exception, now_wall_s: float, secrets: tuple[str, ...]) -> Failure:
    """The failure behind an exception that LiteLLM raised during a call whose exchange was seen."""
    if exchange.status is None:
        return Failure(_transport_sentence(exchange.error or error), FailureCode.TRANSPORT)
    if exchange.status >= 300:
        return failure_of_status(
            exchange.status, exchange.headers, exchange.facts.body(), now_wall_s, secrets
        )
    exchange.facts.end()
    return of_ended(exchange, now_wall_s, secrets) or Failure(
        "The provider's reply could not be read.", FailureCode.EMPTY_RESPONSE, exchange.status
    )


def of_ended(exchange: Exchange, now_wall_s: float, secrets: tuple[str, ...]) -> Failure | None:
    """The failure of a reply that is over, or None if it ended as a reply should."""
    if exchange.status is None:
        return None
    if exchange.status >= 300:
        return failure_of_status(
            exchange.status, exchange.headers, exchange.facts.body(), now_wall_s, secrets
        )
    facts = exchange.facts
    if facts.error is not None:
        return failure_of_error(facts.error, exchange.status, exchange.headers, now_wall_s, secrets)
    if facts.finish is not None:
        return None
    if exchange.error is not None:
        return Failure(
            "The connection to the provider broke while its reply was arriving.",
            FailureCode.TRANSPORT,
            request_id=request_id_of(exchange.headers),
        )
    if _is_opaque(exchange) or (facts.events and not facts.known):
        return None  # a shape that only LiteLLM understands
    return _no_reply(exchange)


def of_finish(reason: str, *, empty: bool) -> Failure | None:
    """The failure that a finish means in itself."""
    if reason.lower() in _FILTERED:
        return Failure("The provider's content filter stopped the reply.", FailureCode.CONTENT_FILTER)
    if reason.lower() in _BROKEN_OFF:
        return Failure("The provider broke off its reply.", FailureCode.SERVER)
    if empty:
        return Failure(
            f"The provider's reply has neither text nor a tool call (finish reason {reason}).",
            FailureCode.EMPTY_RESPONSE,
        )
    return None


def finish_reason(said: str | None, mapped: str | None, *, has_calls: bool) -> str:
    """LiteLLM's normalised word, except where it turned a word that nobody knows into "stop"."""
    if said is not None and said.lower() in _FILTERED | _BROKEN_OFF:
        return "content_filter" if said.lower() in _FILTERED else "error"
    if mapped == "stop" and said is not None and said.lower() not in _PLAIN and not has_calls:
        return said
    return mapped or said or "stop"


def of_exception(_: Exchange, error: Exception, now_wall_s: float, secrets: tuple[str, ...]) -> Failure:
    """The failure behind an exception of a call that no exchange saw, because nothing was sent or LiteLLM
    used a client of its own: from the innermost response in the chain, else from the kind of the
    exception.
    """
    chain = _chain(error)
    for link in reversed(chain):
        response: Any = getattr(link, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and not _is_made_up(response):
            return failure_of_status(status, response.headers, _body_of(response), now_wall_s, secrets)
    status = getattr(error, "status_code", None)
    if any(isinstance(link, ImportError) for link in chain) or status in (400, 404, 422):
        return _not_sent(error, FailureCode.INVALID_REQUEST, secrets)
    if status in (401, 403):
        return _not_sent(error, FailureCode.AUTH, secrets)
    if isinstance(status, int) and status not in (408, 500):
        return failure_of_error({"message": str(error)}, status, {}, now_wall_s, secrets)
    if type(error).__name__ in (
        "UnsupportedParamsError",
        "ValidationError",
        "ValueError",
        "TypeError",
        "KeyError",
    ):
        return _not_sent(error, FailureCode.INVALID_REQUEST, secrets)
    return Failure(_transport_sentence(error), FailureCode.TRANSPORT)


def _no_reply(exchange: Exchange) -> Failure:
    facts = exchange.facts
    request_id = request_id_of(exchange.headers)
    if not facts.known and (facts.garbage or not facts.streamed):
        kind = exchange.headers.get("content-type", "no content type").partition(";")[0]
        return Failure(
            f"The provider answered with something that is no reply ({kind}).",
            FailureCode.EMPTY_RESPONSE,
            exchange.status,
            request_id=request_id,
        )
    return Failure(
        "The provider's reply ended without a finish.",
        FailureCode.TRANSPORT,
        exchange.status,
        request_id=request_id,
    )


def _is_opaque(exchange: Exchange) -> bool:
    """A body of a kind that is neither text nor JSON, such as Bedrock's binary event stream."""
    kind = exchange.headers.get("content-type", "")
    return kind.startswith("application/") and not any(
        word in kind for word in ("json", "xml", "octet-stream")
    )


def _is_made_up(response: Any) -> bool:
    """LiteLLM attaches responses to its exceptions that nobody ever sent."""
    try:
        return str(response.request.url.host).endswith("litellm.ai") or not hasattr(response, "headers")
    except Exception:  # no request: made up as well
        return True


def _not_sent(error: Exception, code: FailureCode, secrets: tuple[str, ...]) -> Failure:
    said = scrub(str(getattr(error, "message", None) or error).partition("Traceback (most")[0], secrets)
    return Failure(f"The request could not be built: {said}", code)


def _transport_sentence(error: BaseException) -> str:
    for link in _chain(error):
        if isinstance(link, socket.gaierror):
            return "The provider's host name could not be resolved."
        if isinstance(link, ConnectionRefusedError) or getattr(link, "errno", None) == errno.ECONNREFUSED:
            return "The provider refused the connection."
        if isinstance(link, ConnectionResetError) or getattr(link, "errno", None) == errno.ECONNRESET:
            return "The provider reset the connection."
    return f"The connection to the provider failed ({type(_chain(error)[-1]).__name__})."


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and everything behind it, outermost first."""
    links: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting and len(links) < 50:
        link = waiting.pop(0)
        if isinstance(link, BaseException) and link not in links:
            links.append(link)
            waiting += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]
    return links


def _body_of(response: Any) -> bytes:
    try:
        return bytes(response.content)
    except Exception:  # a streamed body that nobody read
        return b""

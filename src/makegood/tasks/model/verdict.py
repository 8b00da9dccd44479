"""What a call came to, judged by what was seen on the wire and not by what LiteLLM made of it (CONTRACT B8 to B10)."""

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
    "content_filter refusal safety recitation blocklist prohibited_content spii image_safety sensitive".split()
)
_BROKEN_OFF = frozenset({"error", "network_error", "insufficient_system_resource"})
_PLAIN = frozenset(
    "stop end_turn stop_sequence eos eos_token load unload tool_use tool_calls function_call length max_tokens content_filter".split()
)


def of_exchange(exchange: Exchange, error: Exception, now_wall_s: float, secrets: tuple[str, ...]) -> Failure:
    """The failure behind an exception that LiteLLM raised during a call whose exchange was seen."""
    if not exchange.begun:
        return _not_sent(error, secrets)
    if exchange.status is None:
        return Failure(_transport_sentence(exchange.error or error), FailureCode.TRANSPORT)
    if exchange.status >= 300:
        return failure_of_status(exchange.status, exchange.headers, exchange.facts.body(), now_wall_s, secrets)
    exchange.facts.end()
    return of_ended(exchange, now_wall_s, secrets) or _no_reply(exchange)


def of_ended(exchange: Exchange, now_wall_s: float, secrets: tuple[str, ...]) -> Failure | None:
    """The failure of a reply that is over, or None if it ended as a reply should."""
    if not exchange.begun or exchange.status is None:
        return None
    if exchange.status >= 300:
        return failure_of_status(exchange.status, exchange.headers, exchange.facts.body(), now_wall_s, secrets)
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
    return None if facts.events and not facts.known else _no_reply(exchange)


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


def of_exception(error: Exception, now_wall_s: float, secrets: tuple[str, ...]) -> Failure:
    """The failure behind an exception of a call that no exchange saw: from the innermost response in its chain."""
    for link in reversed(_chain(error)):
        response = getattr(link, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int) and hasattr(response, "headers"):
            return failure_of_status(status, response.headers, _body_of(response), now_wall_s, secrets)
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status not in (408, 500):
        return failure_of_error({"message": str(error)}, status, {}, now_wall_s, secrets)
    return Failure(_transport_sentence(error), FailureCode.TRANSPORT)


def _no_reply(exchange: Exchange) -> Failure:
    facts = exchange.facts
    request_id = request_id_of(exchange.headers)
    if not facts.known and (facts.garbage or not _is_stream(exchange)):
        kind = exchange.headers.get("content-type", "no content type").partition(";")[0]
        return Failure(
            f"The provider answered with something that is no reply ({kind}).",
            FailureCode.EMPTY_RESPONSE,
            exchange.status,
            request_id=request_id,
        )
    return Failure(
        "The provider's stream ended without a finish.", FailureCode.TRANSPORT, exchange.status, request_id=request_id
    )


def _is_stream(exchange: Exchange) -> bool:
    return exchange.headers.get("content-type", "").startswith(("text/event-stream", "application/x-ndjson"))


def _not_sent(error: Exception, secrets: tuple[str, ...]) -> Failure:
    code = FailureCode.AUTH if getattr(error, "status_code", None) in (401, 403) else FailureCode.INVALID_REQUEST
    said = scrub(str(getattr(error, "message", None) or error), secrets)
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

"""What the exceptions of other libraries say, told by their names, so that none of them has to be imported.

Known: httpx, httpcore, requests, urllib, urllib3, aiohttp, the standard library; anything named like them.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl
from dataclasses import dataclass
from typing import Literal

#: refused, connect_timeout: no connection stood, so nothing has left. timeout, broken: something may have.
#: misuse: the request could not even be built.
Transport = Literal["refused", "connect_timeout", "timeout", "broken", "misuse"]

# Of a response's text enough for a message and for the words that name a refused key.
_TEXT_CHARS = 2_000

# Names of exception classes, looked up along the whole line of base classes, most telling first.
_BY_NAME: tuple[tuple[Transport, frozenset[str]], ...] = (
    ("misuse", frozenset({"UnsupportedProtocol", "InvalidURL", "InvalidSchema", "MissingSchema"})),
    (
        "refused",
        frozenset(
            {
                "ConnectError",
                "ClientConnectorError",
                "NewConnectionError",
                "NameResolutionError",
                "EndpointConnectionError",
            }
        ),
    ),
    (
        "connect_timeout",
        frozenset({"ConnectTimeout", "ConnectTimeoutError", "ConnectionTimeoutError", "PoolTimeout"}),
    ),
    (
        "timeout",
        frozenset(
            {"TimeoutException", "Timeout", "TimeoutError", "ReadTimeout", "ReadTimeoutError", "WriteTimeout"}
        ),
    ),
    (
        "broken",
        frozenset(
            {
                "TransportError",
                "NetworkError",
                "ProtocolError",
                "ConnectionError",
                "ClientConnectionError",
                "ClientPayloadError",
                "ChunkedEncodingError",
                "MaxRetryError",
            }
        ),
    ),
)

_CONNECTION_ERRNOS = frozenset(
    {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETRESET, errno.ENOTCONN}
)


@dataclass(frozen=True, slots=True)
class HttpFacts:
    """The status of an HTTP answer that was raised, and the beginning of its text."""

    status: int
    text: str


def http_facts(exc: BaseException) -> HttpFacts | None:
    """Returns the answer that an exception stands for, or None: `.response.status_code`, or a library's own place."""
    response = _attribute(exc, "response")
    status = _attribute(response, "status_code")
    names = _names(exc)
    if not isinstance(status, int) and "HTTPError" in names:
        status = _attribute(exc, "code")
    if not isinstance(status, int) and "ClientResponseError" in names:
        status = _attribute(exc, "status")
    if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 599:
        return None
    return HttpFacts(int(status), _answer_text(exc, response))


def is_validation(exc: BaseException) -> bool:
    """Returns True for pydantic's ValidationError, of any version."""
    return any(
        cls.__name__ == "ValidationError"
        and cls.__module__.partition(".")[0] in ("pydantic", "pydantic_core")
        for cls in type(exc).__mro__
    )


def transport_of(exc: BaseException) -> Transport | None:
    """Returns how the connection failed, or None when the exception is about something else."""
    inner = _inner(exc)
    if inner is not None and (found := transport_of(inner)) is not None:
        return found
    return _by_standard_type(exc) or _by_name(exc)


def _by_standard_type(exc: BaseException) -> Transport | None:
    if isinstance(exc, ConnectionRefusedError | socket.gaierror | ssl.SSLCertVerificationError):
        return "refused"
    if isinstance(exc, TimeoutError):
        # A library's connect timeout is often a TimeoutError too; its name says more.
        return "connect_timeout" if _by_name(exc) == "connect_timeout" else "timeout"
    if isinstance(exc, ConnectionError | ssl.SSLError | asyncio.IncompleteReadError):
        return "broken"
    if isinstance(exc, http.client.HTTPException) and not isinstance(exc, http.client.InvalidURL):
        return "broken"
    if isinstance(exc, OSError) and exc.errno in _CONNECTION_ERRNOS:
        return "broken"
    return None


def _by_name(exc: BaseException) -> Transport | None:
    names = _names(exc)
    return next((transport for transport, known in _BY_NAME if known & names), None)


def _inner(exc: BaseException) -> BaseException | None:
    """Returns the error that urllib and urllib3 carry as `.reason`, requests as its only argument."""
    reason = _attribute(exc, "reason")
    if isinstance(reason, BaseException):
        return reason
    carried = exc.args[0] if len(exc.args) == 1 and "RequestException" in _names(exc) else None
    return carried if isinstance(carried, BaseException) else None


def _answer_text(exc: BaseException, response: object) -> str:
    # The text of a streamed answer that nobody read is not there (requests: `_content` is False): that would be I/O.
    if _attribute(response, "_content") is False:
        response = None
    for source, name in ((response, "text"), (exc, "message"), (exc, "reason")):
        text = _attribute(source, name)
        if isinstance(text, str) and text.strip():
            return text[:_TEXT_CHARS]
    return ""


def _names(exc: BaseException) -> frozenset[str]:
    return frozenset(cls.__name__ for cls in type(exc).__mro__)


def _attribute(source: object, name: str) -> object:
    try:
        return getattr(source, name, None)
    except Exception:  # a property of a foreign object may raise anything
        return None

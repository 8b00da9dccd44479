"""What a tool's exception means, also for exceptions of libraries that are never imported by the rules."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl
import subprocess
import sys
import urllib.error
from email.message import Message
from typing import Any

import httpx
import pydantic
import pytest
import requests

from makegood.errors import ArgumentsInvalid, RetryableToolError, ToolError
from makegood.tasks.rules.failures import (
    MESSAGE_CHARS,
    FailureKind,
    ToolFailure,
    cap_message,
    classify_tool_error,
    status_after,
)
from makegood.tasks.rules.rows import Effect, Status

REQUEST = httpx.Request("POST", "http://shop.test/orders?token=s3cret")


def answered(status: int, text: str = "") -> httpx.HTTPStatusError:
    """What httpx raises for an answer with this status."""
    return httpx.HTTPStatusError(
        "x", request=REQUEST, response=httpx.Response(status, text=text, request=REQUEST)
    )


def answered_requests(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("x", response=response)


def answered_urllib(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://shop.test", status, "text", Message(), None)


def foreign(
    name: str, *bases: type[BaseException], module: str = "somelib", **attributes: Any
) -> BaseException:
    """An exception of a library that is not installed here."""
    made: BaseException = type(name, bases or (Exception,), {"__module__": module, **attributes})("x")
    return made


class _Urllib3Error(Exception):
    def __init__(self, reason: BaseException | None = None) -> None:
        super().__init__("x")
        self.reason = reason


MaxRetryError = type("MaxRetryError", (_Urllib3Error,), {})
NewConnectionError = type("NewConnectionError", (type("ConnectTimeoutError", (_Urllib3Error,), {}),), {})
ReadTimeoutError = type("ReadTimeoutError", (_Urllib3Error,), {})


def invalid() -> pydantic.ValidationError:
    try:
        pydantic.TypeAdapter(int).validate_python("seven")
    except pydantic.ValidationError as exc:
        return exc
    raise AssertionError


INFRASTRUCTURE = [
    # (exception, code, nothing can have left)
    (TimeoutError(), "TIMEOUT", False),
    (TimeoutError(), "TIMEOUT", False),
    (TimeoutError("timed out"), "TIMEOUT", False),
    (httpx.ConnectTimeout("x"), "TIMEOUT_CONNECT", True),
    (httpx.PoolTimeout("x"), "TIMEOUT_CONNECT", True),
    (httpx.ReadTimeout("x"), "TIMEOUT", False),
    (httpx.WriteTimeout("x"), "TIMEOUT", False),
    (httpx.ConnectError("refused"), "CONNECT", True),
    (httpx.ReadError("reset"), "TRANSPORT", False),
    (httpx.WriteError("reset"), "TRANSPORT", False),
    (httpx.RemoteProtocolError("closed"), "TRANSPORT", False),
    (httpx.ProxyError("x"), "TRANSPORT", False),
    (ConnectionRefusedError(), "CONNECT", True),
    (socket.gaierror(-2, "Name or service not known"), "CONNECT", True),
    (ConnectionResetError(), "TRANSPORT", False),
    (BrokenPipeError(), "TRANSPORT", False),
    (ConnectionError("x"), "TRANSPORT", False),
    (OSError(errno.EHOSTUNREACH, "no route"), "TRANSPORT", False),
    (ssl.SSLCertVerificationError("x"), "CONNECT", True),
    (ssl.SSLError("x"), "TRANSPORT", False),
    (asyncio.IncompleteReadError(b"", 4), "TRANSPORT", False),
    (http.client.RemoteDisconnected("x"), "TRANSPORT", False),
    (http.client.IncompleteRead(b""), "TRANSPORT", False),
    (urllib.error.URLError(ConnectionRefusedError()), "CONNECT", True),
    (urllib.error.URLError(TimeoutError()), "TIMEOUT", False),
    (requests.ConnectTimeout("x"), "TIMEOUT_CONNECT", True),
    (requests.ReadTimeout("x"), "TIMEOUT", False),
    (requests.ConnectionError("reset"), "TRANSPORT", False),
    (requests.ConnectionError(MaxRetryError(NewConnectionError())), "CONNECT", True),
    (requests.ConnectionError(MaxRetryError(ReadTimeoutError())), "TIMEOUT", False),
    (MaxRetryError(), "TRANSPORT", False),
    (
        foreign("ConnectionTimeoutError", foreign("ServerTimeoutError", TimeoutError).__class__),
        "TIMEOUT_CONNECT",
        True,
    ),
    (foreign("SocketTimeoutError", foreign("ServerTimeoutError", TimeoutError).__class__), "TIMEOUT", False),
    (foreign("ClientConnectorError", OSError), "CONNECT", True),
    (foreign("ServerDisconnectedError", foreign("ClientConnectionError").__class__), "TRANSPORT", False),
    (foreign("TimeoutError", module="redis.exceptions"), "TIMEOUT", False),
    (foreign("ConnectionError", module="redis.exceptions"), "TRANSPORT", False),
    (answered(500), "HTTP_500", False),
    (answered(503), "HTTP_503", False),
    (answered(599), "HTTP_599", False),
    (answered_requests(502), "HTTP_502", False),
    (answered_urllib(504), "HTTP_504", False),
    (foreign("ClientResponseError", status=500, message="m"), "HTTP_500", False),
    (RetryableToolError("queue full"), "RETRYABLE", True),
    (RetryableToolError("queue full", code="FULL"), "FULL", True),
]

BUSINESS = [
    (answered(400), "HTTP_400"),
    (answered(404), "HTTP_404"),
    (answered(409), "HTTP_409"),
    (answered(422), "HTTP_422"),
    (answered(425), "HTTP_425"),
    (answered(429), "HTTP_429"),
    (answered(499), "HTTP_499"),
    (answered_requests(403), "HTTP_403"),
    (answered_urllib(410), "HTTP_410"),
    (foreign("ClientResponseError", status=404, message="m"), "HTTP_404"),
    (ToolError("no such customer"), "TOOL_ERROR"),
    (ToolError("no such customer", code="NO_CUSTOMER"), "NO_CUSTOMER"),
    (ArgumentsInvalid("title: is required"), "INVALID_ARGUMENTS"),
    (invalid(), "INVALID_ARGUMENTS"),
]

BUGS = [
    (KeyError("id"), "BUG"),
    (ZeroDivisionError(), "BUG"),
    (FileNotFoundError(errno.ENOENT, "x"), "BUG"),
    (PermissionError(errno.EACCES, "x"), "BUG"),
    (urllib.error.URLError("unknown url type"), "BUG"),
    (httpx.UnsupportedProtocol("x"), "BUG"),
    (httpx.InvalidURL("x"), "BUG"),
    (requests.exceptions.MissingSchema("x"), "BUG"),
    (http.client.InvalidURL("x"), "BUG"),
    (answered(302), "HTTP_302"),
    (foreign("ValidationError", module="marshmallow"), "BUG"),
    (foreign("Odd", response=7, code=503), "BUG"),
    (asyncio.CancelledError(), "BUG"),
]


@pytest.mark.contract("C6")
@pytest.mark.parametrize(("exc", "code", "nothing_left"), INFRASTRUCTURE, ids=lambda value: repr(value)[:60])
def test_infrastructure_failures_say_whether_anything_can_have_left(
    exc: BaseException, code: str, nothing_left: bool
) -> None:
    """Timeouts, connection errors, HTTP 5xx and RetryableToolError; nothing left only before a connection stood."""
    failure = classify_tool_error(exc)
    assert (failure.kind, failure.code, failure.nothing_left) == ("infrastructure", code, nothing_left)
    assert not failure.outcome_unknown


@pytest.mark.contract("C6")
@pytest.mark.parametrize(("exc", "code"), BUSINESS, ids=lambda value: repr(value)[:60])
def test_business_failures_go_to_the_model(exc: BaseException, code: str) -> None:
    """HTTP 4xx (429 too), ToolError and validation: no effect, no retry."""
    failure = classify_tool_error(exc)
    assert (failure.kind, failure.code, failure.outcome_unknown) == ("business", code, False)
    assert status_after(failure, "write") == "failed"


@pytest.mark.parametrize(("exc", "code"), BUGS, ids=lambda value: repr(value)[:60])
def test_anything_else_is_a_bug_that_leaves_the_outcome_open(exc: BaseException, code: str) -> None:
    """A bug may happen after the effect."""
    failure = classify_tool_error(exc)
    assert (failure.kind, failure.code, failure.nothing_left) == ("bug", code, False)
    assert status_after(failure, "write") == "unknown"


KEY_REUSED = '{"error":{"type":"idempotency_error","message":"Keys for idempotent requests can only be used with the same parameters"}}'


@pytest.mark.contract("C8")
@pytest.mark.parametrize(
    ("status", "text", "kind", "code", "unknown"),
    [
        (409, "", "infrastructure", "IN_PROGRESS", True),
        (409, "order exists", "infrastructure", "IN_PROGRESS", True),
        (409, "a request with this Idempotency-Key is in progress", "infrastructure", "IN_PROGRESS", True),
        (
            409,
            "another request is using the same idempotency key (key_in_use)",
            "infrastructure",
            "IN_PROGRESS",
            True,
        ),
        (425, "", "infrastructure", "IN_PROGRESS", True),
        (422, "", "business", "IDEMPOTENCY_KEY_MISMATCH", True),
        (400, KEY_REUSED, "business", "IDEMPOTENCY_KEY_MISMATCH", True),
        (
            409,
            "Idempotency-Key was already used with a different payload",
            "business",
            "IDEMPOTENCY_KEY_MISMATCH",
            True,
        ),
        (400, "title is required", "business", "HTTP_400", False),
        (400, "Idempotency-Key is missing", "business", "HTTP_400", False),
        (400, "the same request differs", "business", "HTTP_400", False),
        (404, KEY_REUSED, "business", "HTTP_404", False),
        (503, "", "infrastructure", "HTTP_503", False),
    ],
)
def test_a_repeat_under_the_same_key_reads_answers_differently(
    status: int, text: str, kind: FailureKind, code: str, unknown: bool
) -> None:
    """409 and 425 say "in progress", a refused key leaves the outcome unknown (invariant 16); first tries do not."""
    failure = classify_tool_error(answered(status, text), repeat=True)
    assert (failure.kind, failure.code, failure.outcome_unknown) == (kind, code, unknown)
    first = classify_tool_error(answered(status, text))
    assert (first.code, first.outcome_unknown) == (f"HTTP_{status}", False)


@pytest.mark.contract("C8")
@pytest.mark.parametrize(
    "exc", [ConnectionRefusedError(), httpx.ConnectTimeout("x"), RetryableToolError("full")]
)
def test_a_refused_repeat_says_nothing_about_the_request_before_it(exc: Exception) -> None:
    """After a try that may have landed, a try that cannot have left does not make the call safe."""
    assert classify_tool_error(exc).nothing_left
    failure = classify_tool_error(exc, repeat=True)
    assert (failure.kind, failure.nothing_left) == ("infrastructure", False)
    assert status_after(failure, "write") == "unknown"


@pytest.mark.contract("D6")
@pytest.mark.parametrize(
    ("failure", "effect", "status"),
    [
        (ToolFailure("infrastructure", "TIMEOUT", ""), "read", "failed"),
        (ToolFailure("infrastructure", "TIMEOUT", ""), "idempotent", "unknown"),
        (ToolFailure("infrastructure", "TIMEOUT", ""), "write", "unknown"),
        (ToolFailure("infrastructure", "TIMEOUT", ""), "irreversible", "unknown"),
        (ToolFailure("infrastructure", "CONNECT", "", nothing_left=True), "write", "failed"),
        (ToolFailure("bug", "BUG", ""), "write", "unknown"),
        (ToolFailure("bug", "BUG", ""), "read", "failed"),
        (ToolFailure("business", "HTTP_404", ""), "write", "failed"),
        (ToolFailure("business", "IDEMPOTENCY_KEY_MISMATCH", "", outcome_unknown=True), "write", "unknown"),
        (ToolFailure("business", "IDEMPOTENCY_KEY_MISMATCH", "", outcome_unknown=True), "read", "failed"),
    ],
)
def test_the_row_is_unknown_where_the_effect_may_stand(
    failure: ToolFailure, effect: Effect, status: Status
) -> None:
    """Reads are never unknown; business failures and what cannot have left are failed."""
    assert status_after(failure, effect) == status


def test_the_worst_failure_of_a_group_decides() -> None:
    """A task group of a tool raises several at once; nothing has left only if no part has."""
    refused, reset, missing = ConnectionRefusedError(), ConnectionResetError(), ToolError("no")
    both = classify_tool_error(ExceptionGroup("x", [missing, refused]))
    assert (both.kind, both.nothing_left) == ("infrastructure", False)
    assert classify_tool_error(ExceptionGroup("x", [refused, ExceptionGroup("y", [refused])])).nothing_left
    assert not classify_tool_error(ExceptionGroup("x", [refused, reset])).nothing_left
    assert classify_tool_error(ExceptionGroup("x", [reset, KeyError("id"), missing])).kind == "bug"
    assert classify_tool_error(ExceptionGroup("x", [missing])).kind == "business"


def test_the_text_of_a_4xx_reaches_the_model_but_no_url_does() -> None:
    """The model needs the server's words; the URL may hold a secret."""
    message = classify_tool_error(answered(404, "no order 17\n")).message
    assert message == "HTTP 404: no order 17"
    assert classify_tool_error(answered_urllib(410)).message == "HTTP 410: text"
    assert "s3cret" not in classify_tool_error(answered(500)).message


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("a" * 10**6),
        ToolError("a b\n" * 10**5),
        RetryableToolError("x" * 10**6),
        answered(400, "y" * 10**6),
        answered(503, " \n" * 10**6),
    ],
    ids=["bug", "tool", "retryable", "4xx", "5xx"],
)
def test_messages_are_one_short_line(exc: Exception) -> None:
    """At most 500 characters, no line ends, no traceback."""
    message = classify_tool_error(exc).message
    assert 0 < len(message) <= MESSAGE_CHARS
    assert "\n" not in message
    assert len(cap_message("z" * 501)) == 500
    assert cap_message("z" * 500) == "z" * 500


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def response(self) -> None:
        raise RuntimeError("no response")


def test_an_exception_that_cannot_be_read_is_still_classified() -> None:
    """Its own text and properties may raise."""
    assert classify_tool_error(_Mute()) == ToolFailure("bug", "BUG", "_Mute")
    assert classify_tool_error(ToolError("", code="")) == ToolFailure("business", "TOOL_ERROR", "ToolError")
    assert classify_tool_error(KeyError("id")).message == "KeyError: 'id'"


def test_an_answer_that_nobody_read_is_not_fetched_for_its_text() -> None:
    """Classifying does no I/O."""
    unread = httpx.Response(404, stream=httpx.ByteStream(b"x"), request=REQUEST)
    error = httpx.HTTPStatusError("x", request=REQUEST, response=unread)
    assert classify_tool_error(error).message == "HTTP 404"
    assert classify_tool_error(answered_requests(403)).message == "HTTP 403"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(399, "bug"), (400, "business"), (499, "business"), (500, "infrastructure"), (599, "infrastructure")],
)
def test_the_hundreds_of_a_status_say_whose_fault_it_is(status: int, kind: FailureKind) -> None:
    """And what is no status of HTTP says nothing: then it is a bug like any other."""
    assert classify_tool_error(answered(status)) == ToolFailure(kind, f"HTTP_{status}", f"HTTP {status}")
    for wrong in (True, 99, 600):
        response = type("Response", (), {"status_code": wrong})()
        assert classify_tool_error(foreign("Odd", response=response)).code == "BUG"


def test_what_went_wrong_is_said_in_the_words_of_the_error() -> None:
    """For whatever reason the connection failed, and for a repeat that is refused."""
    assert classify_tool_error(ConnectionResetError("by peer")).message == "ConnectionResetError: by peer"
    assert classify_tool_error(httpx.UnsupportedProtocol("ftp")).message == "UnsupportedProtocol: ftp"
    assert classify_tool_error(answered(409, "later"), repeat=True).message == "HTTP 409: later"
    assert classify_tool_error(answered(422, "other body"), repeat=True).message == "HTTP 422: other body"


def test_one_refused_repeat_makes_the_outcome_of_a_group_unknown() -> None:
    """The least certain part counts."""
    refused = answered(422, "other body")
    assert classify_tool_error(ExceptionGroup("x", [ToolError("no"), refused]), repeat=True).outcome_unknown
    assert not classify_tool_error(
        ExceptionGroup("x", [ToolError("no"), ToolError("no")]), repeat=True
    ).outcome_unknown


def test_the_rules_import_no_http_library() -> None:
    """`import makegood` stays fast: exceptions are told by their names."""
    code = "import sys, makegood.tasks.rules.failures; print({'httpx', 'requests', 'aiohttp', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

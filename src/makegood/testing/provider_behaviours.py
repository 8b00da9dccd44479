"""How a `Provider` answers one request: small frozen values, given as a script or returned by a function.

Where a behaviour says `error`, it is the error object as the provider would send it, for example
`{"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from makegood.testing.provider_records import Signal

ToolCall: TypeAlias = "tuple[str, Mapping[str, Any] | str] | tuple[str, Mapping[str, Any] | str, str]"
"""`(name, arguments)` or `(name, arguments, id)`; arguments given as a string are sent as they are."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A good answer, streamed or whole as the request asks.

    `usage` is `(prompt, completion)` tokens, or None to send none. `delay_s` passes before the first byte,
    `gap_s` between the chunks of a stream; `pieces` is the number of chunks the text is cut into. `comments`
    is the number of SSE comments sent before each chunk. `finish_reason` is in the provider's own words
    (None: what fits).
    """

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    usage: tuple[int, int] | None = (10, 5)
    delay_s: float = 0.0
    gap_s: float = 0.0
    pieces: int = 2
    comments: int = 0
    finish_reason: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """A status with a JSON (dict, list) or raw (str, bytes) body; None is an error in the provider's shape."""

    code: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Stall:
    """Silence. It ends when the client closes, or when `release` is set: then the rest of `reply` follows.

    `before_headers`: nothing is sent at all. `before_first_chunk`: the head of the answer. `mid_stream`: the
    head and the first chunk of `reply`. `comment_s` sends an SSE comment that often while stalling (0: none).
    """

    where: Literal["before_headers", "before_first_chunk", "mid_stream"] = "before_headers"
    reply: Reply = Reply("hello")
    release: threading.Event | Signal | None = None
    comment_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset (RST): before anything was sent, or after the first chunk of a stream."""

    where: Literal["before_headers", "mid_stream"] = "before_headers"
    reply: Reply = Reply("hello")


@dataclass(frozen=True, slots=True)
class Close:
    """The connection is closed in order, without a byte of an answer."""


@dataclass(frozen=True, slots=True)
class Body:
    """Status 200 and this body, whatever was asked for."""

    data: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes instead of an HTTP answer; then the connection is closed."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """A stream that begins with `text` and then reports an error inside the stream."""

    error: Mapping[str, Any]
    text: str = ""


@dataclass(frozen=True, slots=True)
class CutStream:
    """A stream that ends in order after `text`, without a finish."""

    text: str = "hel"


@dataclass(frozen=True, slots=True)
class Events:
    """A stream of exactly these events: a dict is sent as JSON in a `data:` line, a string or bytes as they
    are.

    `openai_delta` and `openai_tool` make events in OpenAI's shape. `gap_s` passes between them; with
    `dribble` every byte is sent alone.
    """

    events: Sequence[Mapping[str, Any] | str | bytes]
    gap_s: float = 0.0
    dribble: bool = False
    content_type: str = "text/event-stream"


Behaviour: TypeAlias = Reply | Status | Stall | Reset | Close | Body | Raw | ErrorEvent | CutStream | Events


def Garbage(data: bytes = b"\x00\xff certainly not JSON") -> Body:
    """Status 200 with bytes that mean nothing."""
    return Body(data)


def Html200(text: str = "<html><body><h1>Login</h1></body></html>") -> Body:
    """Status 200 with a web page, as captive portals and gateways send."""
    return Body(text.encode(), "text/html; charset=utf-8")


def JsonError200(error: Mapping[str, Any]) -> Status:
    """Status 200 with a JSON error body."""
    return Status(200, {"error": dict(error)})

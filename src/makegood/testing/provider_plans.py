"""From a behaviour to what the server does: a list of small acts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

from makegood.testing.provider_behaviours import (
    Behaviour,
    Body,
    Close,
    CutStream,
    ErrorEvent,
    Events,
    Raw,
    Reply,
    Reset,
    Stall,
    Status,
)
from makegood.testing.provider_openai import pieces_of, sse
from makegood.testing.provider_records import RequestRecord, Signal
from makegood.testing.provider_wires import Wire, wire_of


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long, or until the client closes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `release` is set or the client closes; every `comment_s` send `comment`."""

    release: threading.Event | Signal | None
    comment_s: float = 0.0
    comment: bytes = b""


@dataclass(frozen=True, slots=True)
class End:
    """Close the connection: in order, or with a reset."""

    reset: bool = False


Act: TypeAlias = Send | Pause | Wait | End

RESET_PAUSE_S = 0.02
"""Between the first chunk and a reset, so that the client reads the chunk before the reset discards it."""


def plan(behaviour: Behaviour, record: RequestRecord) -> Iterator[Act]:
    """What to do for one request, in order. Without an `End` the connection stays open for the next one."""
    wire = wire_of(record.path)
    match behaviour:
        case Reply():
            return _reply(behaviour, record, wire)
        case Status(code, body, headers, delay_s):
            if body is None:
                body = wire.error(code, f"scripted status {code}")
            return iter((Pause(delay_s), Send(whole_answer(code, body, headers))))
        case Body(data, content_type, headers):
            return iter((Send(whole_answer(200, data, {"content-type": content_type, **headers})),))
        case Stall():
            return _stall(behaviour, record, wire)
        case Reset() | Close() | Raw():
            return _break(behaviour, record, wire)
        case ErrorEvent() | CutStream() | Events():
            return _special_stream(behaviour, record, wire)


def head(content_type: str, headers: Mapping[str, str] | None = None) -> bytes:
    """The head of a chunked answer with status 200."""
    lines = ["HTTP/1.1 200 OK", f"content-type: {content_type}", "transfer-encoding: chunked"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; of no bytes: its end."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def whole_answer(status: int, body: Any, headers: Mapping[str, str]) -> bytes:
    """A whole answer with a known length."""
    data = (
        body
        if isinstance(body, bytes)
        else body.encode()
        if isinstance(body, str)
        else json.dumps(body).encode()
    )
    named = {"content-type": "application/json", **{name.lower(): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status} {_reason(status)}", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in named.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Scripted"


def _reply(reply: Reply, record: RequestRecord, wire: Wire) -> Iterator[Act]:
    yield Pause(reply.delay_s)
    if not record.streamed:
        yield Send(whole_answer(200, wire.whole(reply, record.number), reply.headers))
        return
    yield Send(head(wire.content_type, reply.headers))
    yield from _chunks(reply, record, wire)


def _chunks(reply: Reply, record: RequestRecord, wire: Wire) -> Iterator[Act]:
    for event in _events(reply, record, wire):
        for _ in range(reply.comments):
            yield Send(chunk(b": keep-alive\n\n"))
            yield Pause(reply.gap_s)
        yield Send(chunk(event))
        yield Pause(reply.gap_s)
    yield Send(chunk(b""))


def _events(reply: Reply, record: RequestRecord, wire: Wire) -> Iterator[bytes]:
    options = record.body.get("stream_options") if isinstance(record.body, dict) else None
    return wire.stream(reply, record.number, usage_asked=bool(options and options.get("include_usage")))


def _first_chunk(reply: Reply, record: RequestRecord, wire: Wire) -> bytes:
    """Everything up to the first piece of text."""
    piece = pieces_of(reply.text, reply.pieces)[0]
    sent = b""
    for event in _events(reply, record, wire):
        sent += event
        if json.dumps(piece)[1:-1].encode() in event:
            break
    return sent


def _break(behaviour: Reset | Close | Raw, record: RequestRecord, wire: Wire) -> Iterator[Act]:
    match behaviour:
        case Close():
            yield End()
        case Raw(data):
            yield Send(data)
            yield End()
        case Reset(where, reply):
            if where == "mid_stream":
                yield Send(head(wire.content_type))
                yield Send(chunk(_first_chunk(reply, record, wire)))
                yield Pause(RESET_PAUSE_S)
            yield End(reset=True)


def _special_stream(
    behaviour: ErrorEvent | CutStream | Events, record: RequestRecord, wire: Wire
) -> Iterator[Act]:
    match behaviour:
        case ErrorEvent(error, text):
            events = [*_text_events(text, record, wire), wire.error_event(error)]
            return _chunked(wire.content_type, events, 0.0)
        case CutStream(text):
            return _chunked(wire.content_type, _text_events(text, record, wire), 0.0)
        case Events(events, gap_s, dribble, content_type):
            sent = [_event_bytes(event) for event in events]
            if dribble:
                sent = [bytes((byte,)) for event in sent for byte in event]
            return _chunked(content_type, sent, gap_s)


def _event_bytes(event: Mapping[str, Any] | str | bytes) -> bytes:
    if isinstance(event, bytes):
        return event
    return event.encode() if isinstance(event, str) else sse(event)


def _stall(stall: Stall, record: RequestRecord, wire: Wire) -> Iterator[Act]:
    comment = chunk(b": keep-alive\n\n")
    if stall.where == "before_headers":
        yield Wait(stall.release)
        yield from _reply(stall.reply, record, wire)
        return
    rest = b"".join(_events(stall.reply, record, wire))
    if not record.streamed:  # a whole answer stalls in the middle of its body
        answer = whole_answer(200, wire.whole(stall.reply, record.number), stall.reply.headers)
        cut = answer.index(b"\r\n\r\n") + (4 if stall.where == "before_first_chunk" else 12)
        yield Send(answer[:cut])
        yield Wait(stall.release)
        yield Send(answer[cut:])
        return
    yield Send(head(wire.content_type, stall.reply.headers))
    first = _first_chunk(stall.reply, record, wire) if stall.where == "mid_stream" else b""
    if first:
        yield Send(chunk(first))
    yield Wait(stall.release, stall.comment_s, comment)
    yield Send(chunk(rest[len(first) :]))
    yield Send(chunk(b""))


def _text_events(text: str, record: RequestRecord, wire: Wire) -> list[bytes]:
    return [_first_chunk(Reply(text, pieces=1), record, wire)] if text else []


def _chunked(content_type: str, events: list[bytes], gap_s: float) -> Iterator[Act]:
    yield Send(head(content_type))
    for event in events:
        yield Send(chunk(event))
        yield Pause(gap_s)
    yield Send(chunk(b""))

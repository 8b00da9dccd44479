"""What the bytes of a reply say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from makegood.tasks.model.wire import WireFacts


def read(data: bytes, content_type: str = "text/event-stream", *, at_once: int = 1 << 20) -> WireFacts:
    """The facts of a body that arrives in pieces of `at_once` bytes."""
    facts = WireFacts(content_type)
    for start in range(0, len(data), at_once):
        facts.feed(data[start : start + at_once])
    facts.end()
    return facts


STREAM = (
    b': hello\r\n\r\nevent: x\ndata: {"choices":[{"delta":{"content":"h\xc3\xa9"}}]}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\ndata: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("at_once", [1, 2, 7, 1 << 20])
def test_facts_do_not_depend_on_how_the_bytes_arrive(at_once: int) -> None:
    """Split anywhere, the stream says the same; comments are no events."""
    facts = read(STREAM, at_once=at_once)
    assert (facts.events, facts.finish, facts.usage, facts.done) == (4, "stop", True, True)
    assert (facts.known, facts.garbage, facts.error) == (True, False, None)


@pytest.mark.contract("B6")
def test_comments_complete_no_event() -> None:
    """SSE comments do not stop the first-token clock."""
    facts = WireFacts("text/event-stream")
    assert facts.feed(b": keep-alive\n\n: keep-alive\n\n") == 0
    assert facts.feed(b'data: {"choices":[]}\n\n') == 1


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}, "length"),
        ({"candidates": [{"finishReason": "SAFETY"}]}, "SAFETY"),
        ({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, "PROHIBITED_CONTENT"),
        ({"type": "message", "stop_reason": "end_turn"}, "end_turn"),
        ({"done": True, "done_reason": "stop"}, "stop"),
        ({"object": "response", "status": "completed", "output": []}, "completed"),
        (
            {
                "object": "response",
                "status": "incomplete",
                "incomplete_details": {"reason": "content_filter"},
            },
            "content_filter",
        ),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": None}]}, None),
    ],
)
def test_the_finish_is_read_in_every_shape(reply: dict[str, Any], finish: str | None) -> None:
    """The provider's own word for the end."""
    facts = read(json.dumps(reply).encode(), "application/json")
    assert facts.finish == finish
    assert facts.events == 1


@pytest.mark.parametrize("body", [b"", b"<html></html>", b"\x00\xff", b"{}", b"[]", b"null", b'"text"', b"{"])
def test_a_body_that_is_no_reply_has_no_events(body: bytes) -> None:
    """Pages and garbage say nothing."""
    facts = read(body, "application/json")
    assert (facts.events, facts.finish, facts.error) == (0, None, None)


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
def test_an_error_body_is_found_whatever_was_announced(content_type: str) -> None:
    """A pretty-printed JSON error in place of a stream."""
    facts = read(json.dumps({"error": {"code": 429}}, indent=2).encode(), content_type)
    assert facts.error == {"code": 429}


def test_geminis_list_of_errors_is_unwrapped() -> None:
    """Errors of its streamed calls come in a list."""
    assert read(b'[{"error":{"code":503}}]', "application/json").error == {"code": 503}


def test_a_stream_is_recognised_without_its_content_type() -> None:
    """Some gateways announce a stream as plain text."""
    assert read(STREAM, "text/plain").finish == "stop"

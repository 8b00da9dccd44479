"""The scripted provider itself, used without an event loop."""

from __future__ import annotations

import json
import threading

import httpx
import pytest

from makegood.testing import Events, Provider, Reply, RequestRecord, Signal, Stall, Status, openai_delta

CHAT = "/v1/chat/completions"


def ask(provider: Provider, **body: object) -> httpx.Response:
    """One request in OpenAI's shape."""
    return httpx.post(
        provider.url + CHAT, json={"messages": [{"role": "user", "content": "hi"}], **body}, timeout=10
    )


def test_a_list_is_played_in_order_and_its_end_is_loud() -> None:
    """Beyond the end of the script nothing is made up."""
    with Provider([Reply("one"), Status(429, headers={"Retry-After": "1"})]) as provider:
        assert ask(provider).json()["choices"][0]["message"]["content"] == "one"
        limited = ask(provider)
        assert (limited.status_code, limited.headers["retry-after"]) == (429, "1")
        assert ask(provider).status_code == 418
        provider.script(Reply("more"))
        assert ask(provider).json()["choices"][0]["message"]["content"] == "more"


def test_a_function_answers_what_it_is_told() -> None:
    """A model that reacts: it asks for a tool, and then reports what the tool said."""

    def model(record: RequestRecord) -> Reply:
        if record.results:
            return Reply(f"the tool said {record.results['c1']}")
        return Reply("", [("look", {"x": 1}, "c1")])

    with Provider(model) as provider:
        call = ask(provider).json()["choices"][0]["message"]["tool_calls"][0]
        assert (call["id"], json.loads(call["function"]["arguments"])) == ("c1", {"x": 1})
        told = [{"role": "tool", "tool_call_id": "c1", "content": "42"}]
        assert "said 42" in ask(provider, messages=told).text


def test_streams_are_what_the_script_says() -> None:
    """Raw events go out as they are."""
    with Provider([Events([openai_delta("x"), ": comment\n\n", b"data: [DONE]\n\n"])]) as provider:
        text = ask(provider, stream=True).text
    assert text.endswith(": comment\n\ndata: [DONE]\n\n")


def test_requests_and_connections_are_recorded() -> None:
    """Path, headers, body and the moment at which the client closed."""
    with Provider() as provider:
        ask(provider, model="m")
        record = provider.requests[0]
        assert (record.method, record.path, record.body["model"]) == ("POST", CHAT, "m")
        assert record.headers["content-type"] == "application/json"
        assert provider.arrived(1).is_set()
        assert record.connection.peer_closed.wait(10)


@pytest.mark.parametrize("kind", [threading.Event, Signal])
def test_a_stall_can_be_released(kind: type[threading.Event] | type[Signal]) -> None:
    """The rest of the reply follows."""
    release = kind()
    with Provider([Stall("mid_stream", Reply("hello"), release)]) as provider:
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(ask(provider, stream=True).text))
        thread.start()
        assert provider.arrived().wait(10)
        assert provider.requests[0].reached.wait(10)
        release.set()
        thread.join(10)
    assert "[DONE]" in answers[0]


def test_stopping_ends_stalled_requests() -> None:
    """The server does not outlive its `with` block."""
    with Provider([Stall()]) as provider:
        errors: list[Exception] = []

        def wait() -> None:
            try:
                ask(provider)
            except httpx.HTTPError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert provider.arrived().wait(10)
    thread.join(10)
    assert len(errors) == 1

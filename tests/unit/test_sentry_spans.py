"""Spans of attempts: names, trees, payloads, and what happens when telling of them fails."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
import sentry_sdk

from makegood.monitoring import genai, sentry_spans
from makegood.tasks import spans
from makegood.tasks.model.types import ModelReply, ToolCallPart, UsageChunk
from makegood.tasks.spans import NO_SPAN, SafeSpan, attempt_span
from support.sentry import Kept, kept, switched_on, traced

__all__ = ["kept", "traced"]

LONG = "ä" * 10_000


def begin(number: int = 1, *, payloads: bool = False, run_id: str = "07-01k9") -> SafeSpan:
    """An attempt as the engine begins it."""
    subscriber = sentry_spans.subscribe(1.0, payloads=payloads)
    assert subscriber is not None
    return attempt_span(subscriber, run_id, "travel", number)


@pytest.mark.parametrize("span_items", [True, False])
def test_an_attempt_is_a_transaction_with_a_span_for_each_request_and_try(span_items: bool) -> None:
    """By the conventions' names, in both forms in which spans leave."""
    with switched_on(traces=1.0, span_items=span_items) as sent:
        attempt = begin(2)
        with attempt.child("chat", "openai/gpt-5-mini", model="openai/gpt-5-mini", step=1) as chat:
            chat.note(input_tokens=12, output_tokens=3)
        attempt.child("tool", "hotel", tool="hotel", call_key="k1", number=2).end("TOOL_TIMEOUT")
        attempt.note(steps=1, calls=1, state="succeeded")
        attempt.end()
        assert bool(sent.items) is span_items
    (root,), (asked, called) = sent.roots(), sent.spans()
    assert (root.op, root.name, root.status) == ("gen_ai.invoke_agent", "invoke_agent travel", "ok")
    assert root.data["gen_ai.operation.name"] == "invoke_agent"
    assert root.data["gen_ai.agent.name"] == "travel"
    assert (root.data["makegood.run.id"], root.data["makegood.attempt.number"]) == ("07-01k9", 2)
    assert root.data["makegood.run.state"] == "succeeded"
    assert (asked.op, asked.name) == ("gen_ai.chat", "chat openai/gpt-5-mini")
    assert asked.data["gen_ai.request.model"] == "openai/gpt-5-mini"
    assert (asked.data["gen_ai.usage.input_tokens"], asked.data["gen_ai.usage.output_tokens"]) == (12, 3)
    assert (called.op, called.name) == ("gen_ai.execute_tool", "execute_tool hotel")
    assert (called.data["gen_ai.tool.name"], called.data["gen_ai.tool.call.id"]) == ("hotel", "k1")
    assert called.data["makegood.code"] == "TOOL_TIMEOUT"
    assert called.status in ("error", "deadline_exceeded")
    assert {each.parent for each in (asked, called)} == {root.id}
    assert {each.trace for each in (asked, called)} == {root.trace}


async def test_the_trees_of_fifty_attempts_on_one_loop_do_not_mix(traced: Kept) -> None:
    """Parallel calls end in another order than they began, and tools use sentry-sdk themselves."""

    async def call(attempt: SafeSpan, run: int, number: int) -> None:
        with attempt.child("tool", f"tool-{run}", tool=f"tool-{run}", number=number):
            sentry_sdk.set_tag("run", str(run))
            for _ in range((run * 7 + number) % 5):
                await asyncio.sleep(0)
            with sentry_sdk.start_span(op="gen_ai.chat", name="of the tool itself"):
                await asyncio.sleep(0)

    async def one(run: int) -> None:
        attempt = begin(run_id=f"run-{run}")
        with attempt.child("chat", f"model-{run}", model=f"model-{run}"):
            await asyncio.sleep(0)
        await asyncio.gather(*(call(attempt, run, number) for number in range(3)))
        attempt.end()

    await asyncio.gather(*(one(run) for run in range(50)))
    roots = {root.id: root for root in traced.roots()}
    assert len(roots) == len({root.trace for root in roots.values()}) == 50
    assert len(traced.spans()) == 50 * 4
    for span in traced.spans():
        root = roots[span.parent]
        run = root.data["makegood.run.id"].removeprefix("run-")
        assert span.trace == root.trace
        assert span.name in (f"chat model-{run}", f"execute_tool tool-{run}")
    assert not any("run" in transaction["tags"] for transaction in traced.transactions)


def test_payloads_stay_here_unless_they_are_switched_on() -> None:
    """Then each is JSON of at most 4 KiB, messages from the newest; arguments a model wrote are never in a message."""
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": '{"card": "4111"}'}}
    messages = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "paid"},
    ]
    reply = ModelReply("fine", (ToolCallPart("c2", "pay", '{"card": "4111"}'),), UsageChunk(1, 1), "stop")
    for payloads in (False, True):
        with switched_on(traces=1.0) as sent:
            attempt = begin(payloads=payloads)
            with attempt.child("chat", "m") as chat:
                chat.attach(messages=messages, reply=reply)
            with attempt.child("tool", "pay") as tool:
                tool.attach(arguments={"note": LONG}, result={"id": "T-1", 3: object()})
            attempt.end()
        chat_data, tool_data = (span.data for span in sent.spans())
        assert not sent.said("4111")
        if not payloads:
            assert set(genai.PAYLOADS.values()).isdisjoint({*chat_data, *tool_data})
            continue
        told = json.loads(chat_data["gen_ai.input.messages"])
        assert [each["role"] for each in told] == ["assistant", "tool"]
        assert told[0]["tool_calls"] == [{"id": "c1", "name": "pay"}]
        assert json.loads(chat_data["gen_ai.output.messages"])[0]["content"] == "fine"
        assert len(tool_data["gen_ai.tool.call.arguments"].encode()) <= sentry_spans.MAX_PAYLOAD
        assert '"id":"T-1"' in tool_data["gen_ai.tool.call.result"]


def test_without_traces_nobody_is_told(kept: Kept) -> None:
    """No subscriber, and the engine's span is the one that does nothing."""
    assert sentry_spans.subscribe(0.0, payloads=True) is None
    nothing = attempt_span(None, "r", "a", 1)
    assert nothing is NO_SPAN
    assert nothing.child("tool", "t", tool="t") is NO_SPAN


def test_an_attempt_that_is_not_sampled_costs_nothing_either() -> None:
    """The decision is made once, at its beginning."""
    with switched_on(traces=0.5, traces_sampler=lambda context: 0.0) as sent:
        subscriber = sentry_spans.subscribe(0.5, payloads=False)
        assert attempt_span(subscriber, "r", "a", 1) is NO_SPAN
    assert not sent.raw


class Broken:
    """A subscriber with a defect in every place."""

    def attempt(self, *_: Any) -> Broken:
        return self

    def child(self, *_: Any) -> Any:
        raise OSError

    def note(self, **_: Any) -> None:
        raise KeyError

    def attach(self, **_: Any) -> None:
        raise TypeError

    def end(self, _: str) -> None:
        raise ValueError


def test_whatever_a_subscriber_raises_is_suppressed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged once."""
    monkeypatch.setattr(spans, "_told", [])
    caplog.set_level(logging.DEBUG, "makegood.telemetry")
    with attempt_span(Broken(), "r", "a", 1) as attempt:
        attempt.note(steps=1)
        attempt.attach(messages=[])
        with attempt.child("tool", "t") as child:
            child.note(step=1)
    assert len(caplog.records) == 1


def test_a_span_ends_with_the_code_of_what_left_it_and_only_once(traced: Kept) -> None:
    """The text of an error is no code."""
    attempt = begin()
    with pytest.raises(RuntimeError), attempt.child("tool", "t"):
        raise RuntimeError("secret words")
    with attempt.child("tool", "t") as child:
        child.end("ABORTED")
    attempt.end()
    attempt.end("BUG")
    assert [span.data["makegood.code"] for span in traced.spans()] == ["RuntimeError", "ABORTED"]
    assert len(traced.roots()) == 1
    assert not traced.said("secret words")


def test_a_transport_that_raises_does_not_reach_the_engine() -> None:
    """The transaction is lost, and that is all."""
    with switched_on(Kept(breaks=True), traces=1.0) as broken:
        begin().end()
        assert broken.tried == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", "ok"),
        ("RUN_TIMEOUT", "deadline_exceeded"),
        ("CANCELLED", "cancelled"),
        ("STALE_FENCE", "aborted"),
        ("BUG", "internal_error"),
    ],
)
def test_codes_have_a_status_of_the_closed_set(code: str, status: str) -> None:
    """As the SDK knows them."""
    assert genai.status_of(code) == status

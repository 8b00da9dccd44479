"""Assembling replies from chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from makegood.tasks.model.assemble import CallAssembler, collect
from makegood.tasks.model.types import (
    Chunk,
    Failure,
    FailureCode,
    Finish,
    ModelFailure,
    TextDelta,
    ToolCallDelta,
    ToolCallPart,
    UsageChunk,
)


def assembled(*fragments: ToolCallDelta) -> tuple[ToolCallPart, ...]:
    """The calls that these fragments make."""
    calls = CallAssembler()
    for fragment in fragments:
        calls.add(fragment)
    return calls.parts()


@pytest.mark.contract("B3")
def test_interleaved_calls_keep_their_arguments_apart() -> None:
    """Fragments of two calls that alternate end up in their own calls."""
    first, second = assembled(
        ToolCallDelta(0, "a", "charge", ""),
        ToolCallDelta(1, "b", "mail", ""),
        ToolCallDelta(0, None, None, '{"n"'),
        ToolCallDelta(1, None, None, '{"to"'),
        ToolCallDelta(0, None, None, ": 1}"),
        ToolCallDelta(1, None, None, ": 2}"),
    )
    assert first == ToolCallPart("a", "charge", '{"n": 1}')
    assert second == ToolCallPart("b", "mail", '{"to": 2}')


@pytest.mark.contract("B3")
def test_two_ids_on_one_index_are_two_calls() -> None:
    """Providers that number every call 0 lose none of them."""
    parts = assembled(
        ToolCallDelta(0, "a", "charge", '{"n": 1}'),
        ToolCallDelta(0, "b", "charge", '{"n"'),
        ToolCallDelta(0, "b", None, ": 2}"),
    )
    assert parts == (ToolCallPart("a", "charge", '{"n": 1}'), ToolCallPart("b", "charge", '{"n": 2}'))


@pytest.mark.contract("B3")
def test_alternating_ids_on_one_index_stay_apart() -> None:
    """A fragment that names an id goes to the call with that id."""
    parts = assembled(
        ToolCallDelta(0, "a", "x", "1"),
        ToolCallDelta(0, "b", "y", "3"),
        ToolCallDelta(0, "a", None, "2"),
        ToolCallDelta(0, "b", None, "4"),
    )
    assert [part.arguments for part in parts] == ["12", "34"]


@pytest.mark.contract("B3")
def test_a_missing_id_is_made_up_and_unique() -> None:
    """Two calls without ids on one index are told apart by their names, and get ids of their own."""
    parts = assembled(
        ToolCallDelta(0, None, "charge", '{"n": 1}'),
        ToolCallDelta(0, None, "charge", '{"n": 2}'),
        ToolCallDelta(1, None, "mail", "{}"),
    )
    assert [(part.name, part.arguments) for part in parts] == [
        ("charge", '{"n": 1}'),
        ("charge", '{"n": 2}'),
        ("mail", "{}"),
    ]
    assert len({part.id for part in parts}) == 3
    assert all(part.id for part in parts)


@pytest.mark.contract("B3")
def test_a_late_id_joins_its_call() -> None:
    """An id that comes after the first fragment of the arguments belongs to the same call."""
    assert assembled(ToolCallDelta(0, None, "t", '{"a"'), ToolCallDelta(0, "late", None, ": 1}")) == (
        ToolCallPart("late", "t", '{"a": 1}'),
    )


@pytest.mark.contract("B3")
def test_a_doubled_id_is_replaced() -> None:
    """Ids are unique in a reply even where the provider repeats one."""
    first, second = assembled(ToolCallDelta(0, "same", "t", "{}"), ToolCallDelta(1, "same", "t", "{}"))
    assert first.id == "same"
    assert second.id != "same"


@pytest.mark.contract("B3")
def test_repeated_names_and_ids_do_not_split_a_call() -> None:
    """Providers that repeat id and name in every fragment send one call."""
    parts = assembled(ToolCallDelta(0, "a", "t", '{"x"'), ToolCallDelta(0, "a", "t", ": 1}"))
    assert parts == (ToolCallPart("a", "t", '{"x": 1}'),)


@pytest.mark.contract("B3")
def test_ids_stay_the_same_when_asked_again() -> None:
    """A made-up id does not change."""
    calls = CallAssembler()
    calls.add(ToolCallDelta(0, None, "t", "{}"))
    assert calls.parts() == calls.parts()


class Stream:
    """A stream that remembers whether it was closed."""

    def __init__(self, *chunks: Chunk, hang: bool = False) -> None:
        self.closed = False
        self._chunks, self._hang = chunks, hang

    async def run(self) -> AsyncGenerator[Chunk, None]:
        """The stream itself."""
        try:
            for chunk in self._chunks:
                yield chunk
            if self._hang:
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.closed = True


async def test_collect_returns_the_whole_reply() -> None:
    """Text, calls, usage and finish reason; every piece of text is passed on as it comes."""
    pieces: list[str] = []
    usage = UsageChunk(3, 4, 0.5)
    stream = Stream(
        TextDelta("he"), TextDelta("llo"), ToolCallDelta(0, "a", "t", '{"x":1 }'), usage, Finish("tool_calls")
    )
    reply = await collect(stream.run(), pieces.append)
    assert (reply.text, reply.usage, reply.finish_reason) == ("hello", usage, "tool_calls")
    assert reply.tool_calls == (ToolCallPart("a", "t", '{"x":1 }'),)
    assert pieces == ["he", "llo"]
    assert stream.closed


@pytest.mark.contract("B4")
async def test_collect_raises_the_failure_of_a_finish() -> None:
    """Both error paths come out as one type."""
    failure = Failure("slow down", FailureCode.RATE_LIMIT)
    stream = Stream(TextDelta("he"), Finish("error", failure))
    with pytest.raises(ModelFailure) as caught:
        await collect(stream.run())
    assert caught.value.failure == failure


@pytest.mark.contract("B7")
async def test_collect_awaits_the_close_when_cancelled() -> None:
    """Leaving a stream early always awaits its close."""
    stream = Stream(TextDelta("he"), hang=True)
    arrived = asyncio.Event()
    task = asyncio.ensure_future(collect(stream.run(), lambda _: arrived.set()))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.closed


@pytest.mark.contract("B7")
async def test_collect_awaits_the_close_when_a_listener_fails() -> None:
    """An error of the listener closes the stream as well."""
    stream = Stream(TextDelta("he"), hang=True)

    def fail(_: str) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await collect(stream.run(), fail)
    assert stream.closed

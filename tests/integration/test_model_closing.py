"""The four clocks and cancelling: each really closes the socket, which the server sees."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from makegood.tasks.model.assemble import collect
from makegood.tasks.model.litellm_adapter import LiteLLMAdapter
from makegood.tasks.model.types import Clocks, FailureCode, ModelFailure, ModelRequest, TextDelta
from makegood.testing import Provider, Reply, RequestRecord, Stall
from support.model_calls import PATIENT, PROVIDERS, chunks_of, failure_of, request_for

EOF_S = 0.1 * 10
"""CONTRACT B7 says 100 ms; tests check with a bound ten times wider."""

SLOW = pytest.mark.parametrize(
    "model", [PROVIDERS[0], PROVIDERS[1], PROVIDERS[2], PROVIDERS[5], PROVIDERS[6]]
)


@pytest.fixture
async def adapter() -> AsyncIterator[LiteLLMAdapter]:
    """An adapter of this test's loop."""
    made = LiteLLMAdapter()
    yield made
    await made.aclose()


@pytest.fixture
def unreachable() -> Iterator[str]:
    """An address that takes no more connections and does not refuse them: its queue is full."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = []
        for _ in range(3):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(full.getsockname())
            waiting.append(client)
        yield f"http://127.0.0.1:{full.getsockname()[1]}"
        for client in waiting:
            client.close()


def descriptors() -> int:
    """How many file descriptors this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def assert_closed(record: RequestRecord, since_s: float) -> None:
    """The server saw the end of the request's connection, soon."""
    assert await record.connection.peer_closed.happened(10)
    assert record.connection.peer_closed.at_s - since_s < EOF_S


@pytest.mark.contract("B6")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", [PROVIDERS[0], PROVIDERS[1]])
async def test_no_connection_in_time(
    adapter: LiteLLMAdapter, unreachable: str, model: str, stream: bool
) -> None:
    """TIMEOUT_CONNECT has a code and a sentence of its own, and leaves the call clock alone."""
    args = {"api_base": unreachable, "api_key": "k"}
    request = ModelRequest(model, [{"role": "user", "content": "hi"}], args=args, stream=stream)
    failure = await failure_of(adapter, request, Clocks(0.2, 30, 30, 30))
    assert failure.code is FailureCode.TIMEOUT_CONNECT
    assert failure.message == "No connection to the provider within 0.2 s."


@pytest.mark.contract("B6")
@SLOW
@pytest.mark.parametrize(
    "stall", [Stall(), Stall("before_first_chunk"), Stall("before_first_chunk", comment_s=0.02)],
    ids=["no headers", "no chunk", "comments only"],
)  # fmt: skip
async def test_no_first_token_in_time(adapter: LiteLLMAdapter, model: str, stall: Stall) -> None:
    """Headers and comments are no tokens: TIMEOUT_FIRST_TOKEN after one request, and the server sees the
    close.
    """
    if stall.comment_s and model.startswith("ollama"):
        stall = Stall("before_first_chunk")  # its stream knows no comments
    with Provider([stall]) as provider:
        failure = await failure_of(
            adapter, request_for(provider, model, stream=True), Clocks(30, 0.2, 30, 30)
        )
        now_s = time.monotonic()
        assert failure.code is FailureCode.TIMEOUT_FIRST_TOKEN
        assert failure.message == "The provider accepted the request but sent nothing within 0.2 s."
        assert len(provider.requests) == 1
        await assert_closed(provider.requests[0], now_s)


@pytest.mark.contract("B6", "J15")
async def test_a_tiny_first_token_limit_still_sends_the_request(adapter: LiteLLMAdapter) -> None:
    """First output after 1 s, limit 20 ms: the request was at the server before its clock ran out."""
    with Provider([Reply("late", delay_s=1)]) as provider:
        failure = await failure_of(adapter, request_for(provider, stream=True), Clocks(5, 0.02, 20, 60))
        assert failure.code is FailureCode.TIMEOUT_FIRST_TOKEN
        assert len(provider.requests) == 1


@pytest.mark.contract("B6")
@SLOW
async def test_silence_in_the_middle(adapter: LiteLLMAdapter, model: str) -> None:
    """TIMEOUT_IDLE after the first delta; what came before was delivered."""
    with Provider([Stall("mid_stream")]) as provider:
        stream = adapter.stream(request_for(provider, model, stream=True), Clocks(30, 30, 0.2, 30))
        got: list[str] = []
        with pytest.raises(ModelFailure) as caught:
            await collect(stream, got.append)
        now_s = time.monotonic()
        assert got == ["hel"]
        assert caught.value.failure.code is FailureCode.TIMEOUT_IDLE
        assert caught.value.failure.message == "The provider's stream fell silent for 0.2 s."
        await assert_closed(provider.requests[0], now_s)


@pytest.mark.contract("B6")
async def test_comments_do_not_feed_the_idle_clock(adapter: LiteLLMAdapter) -> None:
    """A server that only says that it is alive is silent."""
    with Provider([Stall("mid_stream", comment_s=0.02)]) as provider:
        failure = await failure_of(adapter, request_for(provider, stream=True), Clocks(30, 30, 0.2, 30))
        assert failure.code is FailureCode.TIMEOUT_IDLE


@pytest.mark.contract("B6", "J13")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@SLOW
async def test_the_whole_call_takes_too_long(adapter: LiteLLMAdapter, model: str, stream: bool) -> None:
    """TIMEOUT_CALL with a limit of 20 ms: exactly one request was at the server, and its connection is
    closed.
    """
    with Provider([Stall()]) as provider:
        failure = await failure_of(
            adapter, request_for(provider, model, stream=stream), Clocks(5, 15, 20, 0.02)
        )
        now_s = time.monotonic()
        assert failure.code is FailureCode.TIMEOUT_CALL
        assert failure.message == "The model call was not finished within 0.02 s."
        assert await provider.arrived().happened()
        assert len(provider.requests) == 1
        await assert_closed(provider.requests[0], now_s)


@pytest.mark.contract("B6")
async def test_a_stream_that_keeps_talking_is_ended_by_the_call_clock(adapter: LiteLLMAdapter) -> None:
    """Every chunk restarts the idle clock, none the clock of the call."""
    with Provider([Reply("x" * 400, pieces=400, gap_s=0.02)]) as provider:
        failure = await failure_of(adapter, request_for(provider, stream=True), Clocks(30, 30, 2, 0.5))
        assert failure.code is FailureCode.TIMEOUT_CALL


@pytest.mark.contract("B6")
async def test_first_token_and_idle_can_be_off(adapter: LiteLLMAdapter) -> None:
    """0 is off; and they do not exist where the call is not streamed."""
    with Provider([Reply("hello", delay_s=0.2, gap_s=0.1), Reply("hello", delay_s=0.2)]) as provider:
        streamed = await collect(adapter.stream(request_for(provider, stream=True), Clocks(30, 0, 0, 30)))
        whole = await collect(adapter.stream(request_for(provider), Clocks(30, 0.05, 0.05, 30)))
        assert (streamed.text, whole.text) == ("hello", "hello")


@pytest.mark.contract("B6")
async def test_a_slow_consumer_is_not_a_silent_provider(adapter: LiteLLMAdapter) -> None:
    """The time the consumer takes over a chunk does not count as idle."""
    with Provider([Reply("hello", pieces=5)]) as provider:
        texts = []
        async for chunk in adapter.stream(request_for(provider, stream=True), Clocks(30, 30, 0.15, 30)):
            if isinstance(chunk, TextDelta):
                texts.append(chunk.text)
                await asyncio.sleep(0.2)
        assert "".join(texts) == "hello"


PHASES = {
    "before headers": ("before_headers", True),
    "before the first chunk": ("before_first_chunk", True),
    "mid-stream": ("mid_stream", True),
    "non-streamed": ("before_headers", False),
    "non-streamed, in the body": ("mid_stream", False),
}


@pytest.mark.contract("B7")
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("model", PROVIDERS)
async def test_cancel_closes_the_connection(adapter: LiteLLMAdapter, model: str, phase: str) -> None:
    """When the cancelled task has ended, the server has seen EOF."""
    where, stream = PHASES[phase]
    with Provider([Stall(where)]) as provider:  # type: ignore[arg-type]
        task = asyncio.ensure_future(
            collect(adapter.stream(request_for(provider, model, stream=stream), PATIENT))
        )
        await provider.arrived()
        record = provider.requests[0]
        await record.reached
        await asyncio.sleep(0.01)
        now_s = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await assert_closed(record, now_s)


@pytest.mark.contract("B7")
@pytest.mark.parametrize("model", PROVIDERS)
async def test_leaving_a_stream_early_closes_it(adapter: LiteLLMAdapter, model: str) -> None:
    """`aclose()` after the first chunk: the server sees EOF."""
    with Provider([Stall("mid_stream")]) as provider:
        stream = adapter.stream(request_for(provider, model, stream=True), PATIENT)
        assert await anext(stream) == TextDelta("hel")
        now_s = time.monotonic()
        await stream.aclose()
        await assert_closed(provider.requests[0], now_s)


@pytest.mark.contract("B7")
async def test_cancel_before_the_request_leaves_sends_none(adapter: LiteLLMAdapter) -> None:
    """A call that is cancelled while it is prepared reaches no server later on."""
    await adapter.warm_up()
    with Provider() as provider:
        task = asyncio.ensure_future(chunks_of(adapter, request_for(provider)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(await chunks_of(adapter, request_for(provider))) == 3, (
            "and the next call is not held up by it"
        )
        assert len(provider.requests) == 1


@pytest.mark.contract("B7", "H4")
async def test_cancelled_streams_leave_nothing_behind(adapter: LiteLLMAdapter) -> None:
    """40 cancelled streams: connections, descriptors and tasks are back where they were."""
    with Provider(lambda record: Stall("mid_stream") if record.number > 1 else Reply("ok")) as provider:
        await chunks_of(adapter, request_for(provider, stream=True))
        await asyncio.sleep(0.05)
        before = (descriptors(), len(asyncio.all_tasks()))
        got = asyncio.Semaphore(0)
        tasks = [
            asyncio.ensure_future(
                collect(adapter.stream(request_for(provider, stream=True), PATIENT), lambda _: got.release())
            )
            for _ in range(40)
        ]
        for _ in range(40):
            await got.acquire()
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError)
            for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
        for record in provider.requests[1:]:
            assert await record.connection.closed.happened(10)
        await asyncio.sleep(0.05)
        after = (descriptors(), len(asyncio.all_tasks()))
        assert provider.open_connections <= 1
        assert abs(after[0] - before[0]) <= 2
        assert abs(after[1] - before[1]) <= 2


@pytest.mark.contract("F7")
async def test_a_cancel_wins_over_a_clock_of_the_same_moment(adapter: LiteLLMAdapter) -> None:
    """Labelled cancelled, not timed out."""
    with Provider([Stall()]) as provider:
        task = asyncio.ensure_future(
            chunks_of(adapter, request_for(provider, stream=True), Clocks(5, 0.3, 20, 60))
        )
        await provider.arrived()
        deadline_s = time.monotonic() + 0.31
        while time.monotonic() < deadline_s:  # the loop is busy over the moment at which the clock runs out
            time.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_the_adapter_closes_kept_connections() -> None:
    """Nothing stays open at the server."""
    adapter = LiteLLMAdapter()
    with Provider(lambda _: Reply("ok")) as provider:
        await chunks_of(adapter, request_for(provider))
        await chunks_of(adapter, request_for(provider, "anthropic/claude-sonnet-4-5"))
        assert provider.open_connections > 0
        await adapter.aclose()
        for connection in provider.connections:
            assert await connection.closed.happened(10)

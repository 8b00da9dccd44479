"""Good replies through real LiteLLM: chunks, tool calls, usage, cost, and how quietly it loads."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from makegood.tasks.model.adapter import ModelAdapter
from makegood.tasks.model.assemble import collect
from makegood.tasks.model.litellm_adapter import LiteLLMAdapter
from makegood.tasks.model.types import Clocks, Finish, TextDelta, UsageChunk
from makegood.testing import Body, Events, Provider, Reply, Stall, openai_delta, openai_tool
from support.model_calls import PATIENT, PROVIDERS, TOOL, chunks_of, request_for


@pytest.fixture
async def adapter() -> AsyncIterator[LiteLLMAdapter]:
    """An adapter of this test's loop."""
    made = LiteLLMAdapter()
    yield made
    await made.aclose()


@pytest.mark.contract("B1", "B2")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", PROVIDERS)
async def test_every_provider_gives_the_same_chunks(
    adapter: LiteLLMAdapter, model: str, stream: bool
) -> None:
    """Deltas, then usage, then finish, then nothing; one request on one connection however often it is
    called.
    """
    assert isinstance(adapter, ModelAdapter)
    with Provider([Reply("hello wörld", pieces=3)] * 2) as provider:
        for _ in range(2):
            chunks = await chunks_of(adapter, request_for(provider, model, stream=stream))
            *deltas, usage, finish = chunks
            assert all(isinstance(delta, TextDelta) for delta in deltas)
            assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "hello wörld"
            assert len(deltas) == (3 if stream else 1)
            assert isinstance(usage, UsageChunk)
            assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (10, 5, False)
            assert finish == Finish("stop")
        assert len(provider.requests) == 2
        assert len(provider.connections) == 1, "the connection is kept for the next call"


@pytest.mark.contract("B3", "B5")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", PROVIDERS)
async def test_parallel_tool_calls_arrive_whole(adapter: LiteLLMAdapter, model: str, stream: bool) -> None:
    """Two calls of one tool: two calls, two ids, and no question to the server besides the one request."""
    script = Reply("", [("look", {"x": "1"}), ("look", {"x": "2"})])
    with Provider([script]) as provider:
        reply = await collect(
            adapter.stream(request_for(provider, model, stream=stream, tools=[TOOL]), PATIENT)
        )
        assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == [
            ("look", {"x": "1"}),
            ("look", {"x": "2"}),
        ]
        assert len({call.id for call in reply.tool_calls}) == 2
        assert [record.path for record in provider.requests] == [provider.requests[0].path]


@pytest.mark.contract("B3")
async def test_arguments_stay_the_raw_text(adapter: LiteLLMAdapter) -> None:
    """Spacing, order and doubled keys of the JSON text are the provider's, also where it is no JSON at
    all.
    """
    raw = '{ "b":1,"a" : 1.0, "a": 2 }'
    for stream in (False, True):
        with Provider([Reply("", [("look", raw), ("look", '{"cut')])]) as provider:
            reply = await collect(adapter.stream(request_for(provider, stream=stream, tools=[TOOL]), PATIENT))
        assert [call.arguments for call in reply.tool_calls] == [raw, '{"cut']


HARD: dict[str, tuple[list[Mapping[str, Any] | str], list[str] | None]] = {
    "interleaved": (
        [
            openai_tool(0, call_id="a", name="look"),
            openai_tool(1, call_id="b", name="look"),
            openai_tool(0, '{"x"'),
            openai_tool(1, '{"x"'),
            openai_tool(0, ': "1"}'),
            openai_tool(1, ': "2"}'),
        ],
        ["a", "b"],
    ),
    "two ids on one index": (
        [
            openai_tool(0, call_id="a", name="look"),
            openai_tool(0, '{"x": "1"}'),
            openai_tool(0, call_id="b", name="look"),
            openai_tool(0, '{"x": "2"}'),
        ],
        ["a", "b"],
    ),
    "no ids": (
        [
            openai_tool(0, name="look"),
            openai_tool(0, '{"x": "1"}'),
            openai_tool(1, name="look"),
            openai_tool(1, '{"x": "2"}'),
        ],
        None,
    ),
    "no ids on one index": (
        [openai_tool(0, '{"x": "1"}', name="look"), openai_tool(0, '{"x": "2"}', name="look")],
        None,
    ),
}


@pytest.mark.contract("B3")
@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "hosted_vllm/some-model"])
@pytest.mark.parametrize("case", HARD)
async def test_difficult_fragments_make_two_calls(adapter: LiteLLMAdapter, case: str, model: str) -> None:
    """No merged and no vanished call, through LiteLLM and all."""
    events, ids = HARD[case]
    ending: list[Mapping[str, Any] | str] = [openai_delta(finish_reason="tool_calls"), "data: [DONE]\n\n"]
    with Provider([Events([*events, *ending])]) as provider:
        reply = await collect(
            adapter.stream(request_for(provider, model, stream=True, tools=[TOOL]), PATIENT)
        )
    assert [call.arguments for call in reply.tool_calls] == ['{"x": "1"}', '{"x": "2"}']
    assert [call.name for call in reply.tool_calls] == ["look", "look"]
    found = [call.id for call in reply.tool_calls]
    assert found == ids if ids else len(set(found)) == 2 and all(found)


async def test_a_dribbled_stream_is_the_same(adapter: LiteLLMAdapter) -> None:
    """Byte by byte, with text outside of ASCII."""
    events: list[Mapping[str, Any] | str] = [
        openai_delta("hé"),
        openai_delta("llo ✓"),
        openai_delta(finish_reason="stop"),
        "data: [DONE]\n\n",
    ]
    with Provider([Events(events, dribble=True)]) as provider:
        reply = await collect(adapter.stream(request_for(provider, stream=True), PATIENT))
    assert reply.text == "héllo ✓"


@pytest.mark.contract("B12")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_usage_that_was_not_sent_is_marked_as_an_estimate(
    adapter: LiteLLMAdapter, stream: bool
) -> None:
    """LiteLLM makes numbers up; they are ours then, and say so."""
    with Provider([Reply("hello there", usage=None)]) as provider:
        usage = (await collect(adapter.stream(request_for(provider, stream=stream), PATIENT))).usage
    assert usage.estimated
    assert 0 < usage.completion_tokens < 20
    assert 0 < usage.prompt_tokens < 50


async def test_cost_is_computed_from_the_local_price_list(adapter: LiteLLMAdapter) -> None:
    """Known models have a price, unknown ones None, local ones cost nothing."""
    costs = {}
    for model in ("openai/gpt-4o-mini", "hosted_vllm/some-model", "ollama/some-model", "openai/nobody-knows"):
        with Provider([Reply("x", usage=(1_000_000, 1_000_000))]) as provider:
            costs[model] = (
                await collect(adapter.stream(request_for(provider, model), PATIENT))
            ).usage.cost_usd
    assert costs["openai/gpt-4o-mini"] == pytest.approx(0.15 + 0.60)
    assert costs["hosted_vllm/some-model"] is None
    assert costs["openai/nobody-knows"] is None
    assert costs["ollama/some-model"] == 0.0


async def test_model_args_reach_the_provider(adapter: LiteLLMAdapter) -> None:
    """Temperature, own headers and the key, which may be a SecretStr; the library's own retries and timeouts
    do not.
    """
    with Provider() as provider:
        args: dict[str, Any] = {
            "temperature": 0.3,
            "extra_headers": {"x-team": "blue"},
            "num_retries": 5,
            "timeout": 0.001,
        }
        await chunks_of(adapter, request_for(provider, **args))
        record = provider.requests[0]
    assert record.body["temperature"] == 0.3
    assert record.headers["x-team"] == "blue"
    assert record.headers["authorization"] == "Bearer sk-very-secret-key-0123456789"


@pytest.mark.contract("J16")
async def test_output_in_time_needs_one_request(adapter: LiteLLMAdapter) -> None:
    """Output after 10 ms, limit 200 ms (here ten times as wide): one request."""
    with Provider([Reply("hello", delay_s=0.01)]) as provider:
        reply = await collect(adapter.stream(request_for(provider, stream=True), Clocks(first_token_s=2.0)))
        assert reply.text == "hello"
        assert len(provider.requests) == 1


async def test_a_hundred_equal_chunks_are_no_error(adapter: LiteLLMAdapter) -> None:
    """LiteLLM takes a hundred equal chunks for a loop; a table of zeros is one."""
    with Provider([Reply("0" * 150, pieces=150)]) as provider:
        reply = await collect(adapter.stream(request_for(provider, stream=True), PATIENT))
    assert reply.text == "0" * 150


async def test_models_of_the_responses_interface_work(adapter: LiteLLMAdapter) -> None:
    """LiteLLM sends some models to `/responses` with a client of its own: the same chunks come out."""
    body = {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "gpt-5-pro", "output": [
            {"type": "message", "id": "m", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "hello", "annotations": []}]}],
        "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}, "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None,
    }  # fmt: skip
    with Provider([Body(json.dumps(body).encode())]) as provider:
        reply = await collect(adapter.stream(request_for(provider, "openai/gpt-5-pro"), PATIENT))
        assert [record.path for record in provider.requests] == ["/responses"]
    assert (reply.text, reply.finish_reason, reply.usage.prompt_tokens) == ("hello", "stop", 10)


async def test_many_calls_at_once_all_succeed(adapter: LiteLLMAdapter) -> None:
    """A hundred calls started together are prepared in turn; no clock blames the provider for it."""
    with Provider(lambda _: Reply("hello")) as provider:
        replies = await asyncio.gather(
            *(collect(adapter.stream(request_for(provider), Clocks())) for _ in range(100))
        )
        assert [reply.text for reply in replies] == ["hello"] * 100
        assert len(provider.requests) == 100


async def test_a_stalled_call_holds_up_no_other(adapter: LiteLLMAdapter) -> None:
    """While calls wait for their providers, others are prepared and answered."""
    with Provider([Stall()] * 20) as silent, Provider() as quick:
        models = ["openai/gpt-4o-mini", "openai/gpt-5-pro"] * 10
        waiting = [asyncio.ensure_future(chunks_of(adapter, request_for(silent, model))) for model in models]
        assert await silent.arrived(20).happened()
        assert len(await chunks_of(adapter, request_for(quick))) == 3
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


LOADING = """
import asyncio, gc, json, os, socket, sys, time
connects = []
original = socket.socket.connect
def connect(self, address):
    connects.append(address)
    return original(self, address)
socket.socket.connect = connect
socket.getaddrinfo = lambda *a, **k: connects.append(a) or []
import makegood.tasks.model.litellm_adapter as module
assert "litellm" not in sys.modules, "importing makegood must not import litellm"
async def main():
    adapter = module.LiteLLMAdapter()
    await adapter.warm_up()
    assert not connects, connects
    assert "FROM_DOTENV" not in os.environ
    from makegood.testing import CutStream, Provider, Reply, Stall, Status
    from makegood.tasks.model.assemble import collect
    from makegood.tasks.model.types import Clocks, ModelFailure, ModelRequest
    took = []
    with Provider(lambda _: Reply("ok")) as provider:
        for stream in (True, True, True, False, False, False):
            args = {"api_base": provider.url, "api_key": "k"}
            request = ModelRequest("openai/gpt-4o-mini", [{"role": "user", "content": "hi"}], (), args, stream)
            start = time.perf_counter()
            [chunk async for chunk in adapter.stream(request, Clocks())]
            took.append(time.perf_counter() - start)
    faults = [Status(500), CutStream("x"), Status(401), Reply("x", usage=None), Stall("mid_stream")]
    with Provider(faults) as provider:
        for model in ("openai/llama-3-8b", "openai/gpt-4o-mini") * 2 + ("anthropic/claude-sonnet-4-5",):
            args = {"api_base": provider.url, "api_key": "k"}
            request = ModelRequest(model, [{"role": "user", "content": "hi"}], (), args, True)
            try:
                [chunk async for chunk in adapter.stream(request, Clocks(idle_s=0.2))]
            except ModelFailure:
                pass
    for delay in range(12):
        with Provider() as provider:
            args = {"api_base": provider.url, "api_key": "k"}
            request = ModelRequest("openai/gpt-4o-mini", [{"role": "user", "content": "hi"}], (), args)
            task = asyncio.ensure_future(collect(adapter.stream(request, Clocks())))
            await asyncio.sleep(delay / 1000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await adapter.aclose()
    gc.collect()
    with open("took.json", "w") as file:
        json.dump(took, file)
asyncio.run(main())
"""


@pytest.mark.contract("B13")
def test_loading_is_quiet_and_local_and_the_first_call_is_warm(tmp_path: Path) -> None:
    """No network, no `.env`, not a word on stdout or stderr; after the warm-up the first call is like the
    second.
    """
    (tmp_path / ".env").write_text("FROM_DOTENV=1\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM")}
    done = subprocess.run(
        [sys.executable, "-c", LOADING],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    streamed, whole = (times for times in _halves(json.loads((tmp_path / "took.json").read_text())))
    for times in (streamed, whole):
        assert times[0] < 10 * min(times[1:]), times


def _halves(times: list[float]) -> tuple[list[float], list[float]]:
    return times[: len(times) // 2], times[len(times) // 2 :]


async def test_warming_up_does_not_block_the_loop_while_importing(adapter: LiteLLMAdapter) -> None:
    """Warming up twice is harmless and quick."""
    await adapter.warm_up()
    start = time.monotonic()
    await adapter.warm_up()
    assert time.monotonic() - start < 10

"""Everything that can go wrong with a reply, against real LiteLLM."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from makegood.tasks.model.assemble import collect
from makegood.tasks.model.litellm_adapter import LiteLLMAdapter
from makegood.tasks.model.types import (
    Failure,
    FailureCode,
    Finish,
    ModelFailure,
    ModelRequest,
    TextDelta,
    UsageChunk,
)
from makegood.testing import (
    Behaviour,
    Body,
    Close,
    CutStream,
    ErrorEvent,
    Events,
    Garbage,
    Html200,
    JsonError200,
    Provider,
    Raw,
    Reply,
    Reset,
    Status,
    openai_delta,
)
from support.model_calls import KEY, PATIENT, PROVIDERS, chunks_of, failure_of, request_for

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
async def adapter() -> AsyncIterator[LiteLLMAdapter]:
    """An adapter of this test's loop."""
    made = LiteLLMAdapter()
    yield made
    await made.aclose()


@pytest.fixture
def refused() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refused for certain
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


STATUSES = {
    301: "INVALID_REQUEST", 400: "INVALID_REQUEST", 401: "AUTH", 402: "QUOTA", 403: "AUTH", 404: "INVALID_REQUEST",
    408: "SERVER", 409: "SERVER", 413: "CONTEXT_WINDOW_EXCEEDED", 422: "INVALID_REQUEST", 429: "RATE_LIMIT",
    500: "SERVER", 503: "SERVER", 529: "SERVER",
}  # fmt: skip


@pytest.mark.contract("B5", "B8", "B9", "B11")
@BOTH
@pytest.mark.parametrize("model", PROVIDERS)
async def test_every_status_is_one_request_and_one_code(
    adapter: LiteLLMAdapter, model: str, stream: bool
) -> None:
    """Counted at the server: no provider's client repeats anything, and the real status comes out."""
    headers = {
        "retry-after-ms": "1500",
        "x-request-id": "req-9",
        "location": "/elsewhere",
        "x-should-retry": "true",
    }
    with Provider(lambda record: Status(list(STATUSES)[record.number - 1], headers=headers)) as provider:
        for count, (status, code) in enumerate(STATUSES.items(), 1):
            failure = await failure_of(adapter, request_for(provider, model, stream=stream))
            assert (failure.status, failure.code) == (status, code)
            assert (failure.retry_after_ms, failure.request_id) == (1500, "req-9")
            assert len(provider.requests) == count
            assert Failure.from_dict(failure.to_dict()) == failure


@pytest.mark.contract("B5")
@BOTH
@pytest.mark.parametrize("model", PROVIDERS)
@pytest.mark.parametrize(
    "behaviour", [Close(), Reset(), Raw(b"\x00\x01 nonsense\r\n\r\n")], ids=["close", "reset", "raw"]
)
async def test_a_lost_reply_is_one_request(
    adapter: LiteLLMAdapter, model: str, stream: bool, behaviour: Behaviour
) -> None:
    """Closed, reset or answered with nonsense: TRANSPORT, and nobody sends it again."""
    with Provider(lambda _: behaviour) as provider:
        failure = await failure_of(adapter, request_for(provider, model, stream=stream))
        assert (failure.code, failure.status) == (FailureCode.TRANSPORT, None)
        assert len(provider.requests) == 1
        assert len(provider.connections) == 1


@pytest.mark.contract("B9")
@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "anthropic/claude-sonnet-4-5"])
async def test_nobody_there(adapter: LiteLLMAdapter, refused: str, model: str) -> None:
    """Refused and unknown hosts are TRANSPORT and say what happened."""
    for base, words in (
        (refused, "refused the connection"),
        ("http://no-such-host.invalid", "could not be resolved"),
    ):
        args = {"api_base": base, "api_key": "k"}
        failure = await failure_of(
            adapter, ModelRequest(model, [{"role": "user", "content": "hi"}], args=args)
        )
        assert failure.code is FailureCode.TRANSPORT
        assert words in failure.message


@pytest.mark.contract("B10")
@BOTH
@pytest.mark.parametrize("model", PROVIDERS)
@pytest.mark.parametrize(
    "behaviour",
    [Html200(), Garbage(), Body(b""), Body(b"{}"), Body(b"[]"), Events(["data: nonsense\n\n"]), Reply("")],
    ids=["html", "garbage", "nothing", "{}", "[]", "nonsense event", "empty reply"],
)
async def test_no_reply_is_an_empty_response(
    adapter: LiteLLMAdapter, model: str, stream: bool, behaviour: Behaviour
) -> None:
    """Status 200 alone makes no reply, and neither does a normal finish without content."""
    with Provider(lambda _: behaviour) as provider:
        failure = await failure_of(adapter, request_for(provider, model, stream=stream))
        assert failure.code is FailureCode.EMPTY_RESPONSE
        assert len(provider.requests) == 1


@pytest.mark.contract("B2", "B10")
async def test_an_empty_reply_still_reports_its_usage(adapter: LiteLLMAdapter) -> None:
    """The tokens were used: usage comes before the finish that carries the failure."""
    with Provider([Reply("", usage=(10, 0))]) as provider:
        usage, finish = await chunks_of(adapter, request_for(provider, stream=True))
    assert isinstance(usage, UsageChunk)
    assert usage.prompt_tokens == 10
    assert isinstance(finish, Finish)


@pytest.mark.contract("B10")
@BOTH
@pytest.mark.parametrize("model", [name for name in PROVIDERS if not name.startswith("ollama")])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "slow down", "code": "rate_limit_exceeded"}, FailureCode.RATE_LIMIT),
        ({"message": "no money", "code": "insufficient_quota"}, FailureCode.QUOTA),
        ({"message": "prompt is too long"}, FailureCode.CONTEXT_WINDOW_EXCEEDED),
    ],
)
async def test_a_json_error_with_status_200_has_its_own_code(
    adapter: LiteLLMAdapter, model: str, stream: bool, error: dict[str, str], code: FailureCode
) -> None:
    """Whatever the status, a JSON error body is classified by its code."""
    with Provider([JsonError200(error)]) as provider:
        assert (await failure_of(adapter, request_for(provider, model, stream=stream))).code is code


@pytest.mark.contract("B4")
@pytest.mark.parametrize("model", [name for name in PROVIDERS if not name.startswith("ollama")])
async def test_an_error_in_the_stream_ends_it_in_order(adapter: LiteLLMAdapter, model: str) -> None:
    """What came before is delivered; then usage, then a finish that carries the failure; nothing is
    raised.
    """
    with Provider(
        [ErrorEvent({"message": "slow down", "type": "rate_limit_error", "code": 429}, "hel")]
    ) as provider:
        text, usage, finish = await chunks_of(adapter, request_for(provider, model, stream=True))
    assert text == TextDelta("hel")
    assert isinstance(usage, UsageChunk)
    assert isinstance(finish, Finish)
    assert finish.failure is not None
    assert (finish.failure.code, finish.failure.status) == (FailureCode.RATE_LIMIT, 429)


@pytest.mark.contract("B10")
@pytest.mark.parametrize("model", PROVIDERS)
@pytest.mark.parametrize(
    "behaviour", [CutStream("hel"), CutStream(""), Reset("mid_stream")], ids=["cut", "cut at once", "reset"]
)
async def test_a_stream_without_finish_is_transport(
    adapter: LiteLLMAdapter, model: str, behaviour: Behaviour
) -> None:
    """LiteLLM would call it "stop"."""
    with Provider([behaviour]) as provider:
        with pytest.raises(ModelFailure) as caught:
            await chunks_of(adapter, request_for(provider, model, stream=True))
        assert caught.value.failure.code is FailureCode.TRANSPORT


@pytest.mark.contract("B10")
async def test_done_alone_is_no_finish(adapter: LiteLLMAdapter) -> None:
    """The end of the stream is not the end of a reply."""
    with Provider([Events([openai_delta("hel"), "data: [DONE]\n\n"])]) as provider:
        failure = await failure_of(adapter, request_for(provider, stream=True))
    assert failure.code is FailureCode.TRANSPORT


async def test_a_finished_reply_survives_a_reset_behind_it(adapter: LiteLLMAdapter) -> None:
    """Once the finish was said, the reply is whole."""
    events = [openai_delta("hello"), openai_delta(finish_reason="stop")]
    with Provider([Events(events)]) as provider:
        assert (await collect(adapter.stream(request_for(provider, stream=True), PATIENT))).text == "hello"


@pytest.mark.contract("B9")
@BOTH
@pytest.mark.parametrize(
    ("model", "reason", "code"),
    [
        ("openai/gpt-4o-mini", "content_filter", FailureCode.CONTENT_FILTER),
        ("anthropic/claude-sonnet-4-5", "refusal", FailureCode.CONTENT_FILTER),
        ("gemini/gemini-2.5-flash", "SAFETY", FailureCode.CONTENT_FILTER),
        ("openrouter/openai/gpt-4o", "error", FailureCode.SERVER),
        ("deepseek/deepseek-chat", "insufficient_system_resource", FailureCode.SERVER),
    ],
)
async def test_finish_reasons_that_are_failures(
    adapter: LiteLLMAdapter, model: str, reason: str, code: FailureCode, stream: bool
) -> None:
    """LiteLLM turns finish reasons it does not know into "stop"."""
    with Provider([Reply("as far as it g", finish_reason=reason)]) as provider:
        assert (await failure_of(adapter, request_for(provider, model, stream=stream))).code is code


@BOTH
async def test_a_reply_cut_at_its_limit_is_a_reply(adapter: LiteLLMAdapter, stream: bool) -> None:
    """`length` is for the engine to judge."""
    with Provider([Reply("as far as it g", finish_reason="length")]) as provider:
        assert (
            await collect(adapter.stream(request_for(provider, stream=stream), PATIENT))
        ).finish_reason == "length"


@pytest.mark.contract("B9")
async def test_an_output_limit_error_is_not_taken_for_a_reply(adapter: LiteLLMAdapter) -> None:
    """LiteLLM makes an empty reply of this one error."""
    body = {
        "error": {
            "message": "Could not finish the message because max_tokens or model output limit was reached."
        }
    }
    with Provider([Status(400, body)]) as provider:
        assert (await failure_of(adapter, request_for(provider))).code is FailureCode.INVALID_REQUEST


@pytest.mark.contract("B11")
async def test_failures_carry_no_key_and_serialise(adapter: LiteLLMAdapter) -> None:
    """A provider that quotes the key gets it masked; the exception survives pickling."""
    body = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    with Provider([Status(401, body)]) as provider, pytest.raises(ModelFailure) as caught:
        await chunks_of(adapter, request_for(provider))
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).failure == caught.value.failure


@pytest.mark.contract("B11")
@pytest.mark.parametrize("model", ["nonsense/model", "no-such-provider", "", "perplexity/sonar"])
async def test_what_litellm_refuses_is_an_invalid_request(adapter: LiteLLMAdapter, model: str) -> None:
    """No exception of a library crosses, also where nothing was sent."""
    tools = [
        {"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}
    ]
    with Provider() as provider:
        failure = await failure_of(adapter, request_for(provider, model, tools=tools))
        assert failure.code is FailureCode.INVALID_REQUEST
        assert provider.requests == []


@pytest.mark.contract("B8")
async def test_facts_also_come_from_clients_of_litellms_own(adapter: LiteLLMAdapter) -> None:
    """The Responses interface takes no client from outside: the facts are in the exception's chain."""
    body = {"error": {"message": "slow down", "code": "rate_limit_exceeded", "type": "requests"}}
    with Provider([Status(429, body, {"retry-after": "3", "x-request-id": "req-3"})]) as provider:
        failure = await failure_of(adapter, request_for(provider, "openai/gpt-5-pro"))
        assert (failure.code, failure.status) == (FailureCode.RATE_LIMIT, 429)
        assert (failure.retry_after_ms, failure.request_id) == (3000, "req-3")
        assert len(provider.requests) == 1


async def test_an_error_of_one_call_does_not_touch_another(adapter: LiteLLMAdapter) -> None:
    """Calls that run at the same time share connections and nothing else."""

    def script(record: object) -> Behaviour:
        return Reply("ok") if getattr(record, "number", 0) % 2 else Status(500)

    with Provider(script) as provider:
        results = await asyncio.gather(
            *(collect(adapter.stream(request_for(provider), PATIENT)) for _ in range(20)),
            return_exceptions=True,
        )
    assert sum(isinstance(result, ModelFailure) for result in results) == 10

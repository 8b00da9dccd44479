"""From replies and error objects to codes and facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from makegood.tasks.model.failure_facts import failure_of_error, failure_of_status, scrub
from makegood.tasks.model.types import Failure, FailureCode

NOW_S = 1_800_000_000.0


def judged(status: int, body: Any, headers: dict[str, str] | None = None) -> Failure:
    """The failure of a reply with this status and JSON body."""
    return failure_of_status(status, headers or {}, json.dumps(body).encode(), NOW_S)


def openai(message: str, code: str | None = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    """An error body in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


OVERFLOWS: list[tuple[str, int, Any]] = [
    (
        "openai code",
        400,
        openai("This model's maximum context length is 128000 tokens.", "context_length_exceeded"),
    ),
    ("openai responses", 400, openai("Your input exceeds the context window of this model.")),
    ("openai code alone", 400, openai("Too much.", "context_length_exceeded")),
    (
        "anthropic",
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens"},
        },
    ),
    (
        "anthropic sum",
        400,
        {"error": {"message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"}},
    ),
    (
        "anthropic 413",
        413,
        {
            "type": "error",
            "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"},
        },
    ),
    (
        "gemini",
        400,
        {
            "error": {
                "code": 400,
                "status": "INVALID_ARGUMENT",
                "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            }
        },
    ),
    (
        "deepseek",
        400,
        openai("This model's maximum context length is 65536 tokens. However, you requested 70000."),
    ),
    (
        "vllm",
        400,
        {
            "object": "error",
            "message": "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        },
    ),
    (
        "llama.cpp",
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size. try increasing the context size",
                "type": "exceed_context_size_error",
            }
        },
    ),
    (
        "openrouter",
        400,
        {"error": {"code": 400, "message": "This endpoint's maximum context length is 32768 tokens."}},
    ),
    (
        "qwen",
        400,
        openai("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]"),
    ),
    ("kimi", 400, openai("Invalid request: Your request exceeded model token limit: 131072")),
    ("z.ai", 400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
    (
        "openrouter nested",
        400,
        {
            "error": {
                "code": 400,
                "message": "Provider returned error",
                "metadata": {"raw": '{"m":"prompt is too long"}'},
            }
        },
    ),
    (
        "500 by vllm",
        500,
        openai("This model's maximum context length is 4096 tokens.", kind="BadRequestError"),
    ),
]


@pytest.mark.contract("B9")
@pytest.mark.parametrize(
    ("status", "body"), [case[1:] for case in OVERFLOWS], ids=[case[0] for case in OVERFLOWS]
)
def test_overflow_is_recognised_in_every_wording(status: int, body: Any) -> None:
    """All known wordings and codes of "too long" have one code."""
    assert judged(status, body).code is FailureCode.CONTEXT_WINDOW_EXCEEDED


CODES: list[tuple[FailureCode, int, Any]] = [
    (
        FailureCode.QUOTA,
        429,
        openai("You exceeded your current quota.", "insufficient_quota", "insufficient_quota"),
    ),
    (FailureCode.QUOTA, 402, openai("Insufficient Balance", kind="unknown_error")),
    (FailureCode.QUOTA, 402, {}),
    (
        FailureCode.QUOTA,
        400,
        {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low"}},
    ),
    (FailureCode.QUOTA, 429, openai("exceeded", kind="exceeded_current_quota_error")),
    (FailureCode.RATE_LIMIT, 429, openai("Rate limit reached", "rate_limit_exceeded", "tokens")),
    (
        FailureCode.RATE_LIMIT,
        429,
        openai("Request too large on tokens per min (TPM): Limit 30000", None, "tokens"),
    ),
    (
        FailureCode.RATE_LIMIT,
        413,
        openai("Request too large on tokens per minute (TPM)", "rate_limit_exceeded"),
    ),
    (
        FailureCode.RATE_LIMIT,
        429,
        {
            "error": {
                "code": 429,
                "status": "RESOURCE_EXHAUSTED",
                "message": "You exceeded your current quota, please wait",
            }
        },
    ),
    (FailureCode.RATE_LIMIT, 500, openai("slow down", "rate_limit_exceeded")),
    (FailureCode.AUTH, 401, openai("Incorrect API key provided", "invalid_api_key")),
    (FailureCode.AUTH, 403, {}),
    (FailureCode.AUTH, 400, {"error": {"status": "PERMISSION_DENIED", "message": "no"}}),
    (FailureCode.INVALID_REQUEST, 404, openai("The model does not exist", "model_not_found")),
    (FailureCode.INVALID_REQUEST, 400, openai("Unknown parameter")),
    (FailureCode.INVALID_REQUEST, 422, {"detail": [{"loc": ["body"], "msg": "field required"}]}),
    (FailureCode.INVALID_REQUEST, 308, {}),
    (FailureCode.CONTENT_FILTER, 400, openai("filtered", "content_filter")),
    (
        FailureCode.CONTENT_FILTER,
        400,
        openai("Output data may contain inappropriate content.", "data_inspection_failed"),
    ),
    (
        FailureCode.SERVER,
        529,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ),
    (FailureCode.SERVER, 408, {}),
    (FailureCode.SERVER, 409, {}),
    (FailureCode.SERVER, 503, openai("The server is overloaded", kind="server_error")),
]


@pytest.mark.contract("B9")
@pytest.mark.parametrize(("code", "status", "body"), CODES)
def test_statuses_and_bodies_have_one_code(code: FailureCode, status: int, body: Any) -> None:
    """The body's own code says more than the status; `insufficient_quota` in a 429 and a 402 are QUOTA."""
    failure = judged(status, body)
    assert (failure.code, failure.status) == (code, status if "429" not in str(body) else 429)


@pytest.mark.contract("B9")
def test_a_body_that_is_no_json_is_judged_by_its_status() -> None:
    """A gateway's page adds nothing to the message."""
    failure = failure_of_status(502, {}, b"<html><body>Bad gateway</body></html>", NOW_S)
    assert (failure.code, failure.message) == (
        FailureCode.SERVER,
        "The provider could not answer (HTTP 502).",
    )


@pytest.mark.contract("B10")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "m", "code": "rate_limit_exceeded"}, FailureCode.RATE_LIMIT),
        ({"message": "m", "code": 429}, FailureCode.RATE_LIMIT),
        ({"message": "m", "code": "429"}, FailureCode.RATE_LIMIT),
        ({"message": "m", "type": "overloaded_error"}, FailureCode.SERVER),
        ({"message": "m", "type": "invalid_request_error"}, FailureCode.INVALID_REQUEST),
        ({"message": "m", "code": 401}, FailureCode.AUTH),
        ({"message": "prompt is too long"}, FailureCode.CONTEXT_WINDOW_EXCEEDED),
        ("model requires more system memory", FailureCode.SERVER),
        ({"error": {"message": "m", "code": "insufficient_quota"}}, FailureCode.QUOTA),
    ],
)
def test_an_error_inside_a_reply_is_classified_by_its_code(error: Any, code: FailureCode) -> None:
    """Whatever the status of the reply."""
    assert failure_of_error(error, 200, {}, NOW_S).code is code


@pytest.mark.contract("B8")
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7000),
        ({"retry-after-ms": "1500"}, 1500),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:07 GMT"}, 7000),
        ({"retry-after": "soon"}, None),
    ],
)
def test_retry_after_is_read_in_all_three_forms(headers: dict[str, str], expected: int | None) -> None:
    """Seconds, milliseconds and an HTTP date; nonsense is none."""
    assert judged(429, {}, headers).retry_after_ms == expected


@pytest.mark.contract("B8")
def test_geminis_delay_in_the_body_counts_as_retry_after() -> None:
    """Gemini says how long to wait in the body only."""
    body = {
        "error": {"code": 429, "details": [{"@type": "x"}, {"@type": "RetryInfo", "retryDelay": "17.5s"}]}
    }
    assert judged(429, body).retry_after_ms == 17_500


@pytest.mark.contract("B8")
@pytest.mark.parametrize("name", ["x-request-id", "request-id", "x-ds-trace-id"])
def test_the_request_id_is_found(name: str) -> None:
    """Under whichever header the provider uses."""
    assert judged(500, {}, {name: "req-7"}).request_id == "req-7"


@pytest.mark.contract("B11")
@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-abcdefghij1234. See our page.",
        "Authorization: Bearer abcdefghij1234",
        "GET https://x.test/v1?key=abcdefghij1234&alt=sse failed",
        "key AIzaabcdefghij1234 not valid",
        "custom: my-own-abcdefghij1234 is wrong",
    ],
)
def test_messages_carry_no_secrets(text: str) -> None:
    """Keys, tokens and key parameters are masked, and so is the key of the call itself."""
    assert "abcdefghij1234" not in scrub(text, ("my-own-abcdefghij1234",))


def test_long_messages_are_cut() -> None:
    """A provider may quote the whole prompt."""
    assert len(judged(400, openai("x" * 10_000)).message) < 400

"""What goes into a model call and what comes out of it (CONTRACT B).

Everything here is plain data: it can be pickled, compared and (for a failure) written as JSON. An adapter
reports facts in these shapes and decides nothing; whether a failure is worth a retry is a rule of
`tasks/rules/model_retry.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias


class FailureCode(StrEnum):
    """The closed set of reasons why a model call has no usable reply (CONTRACT B9).

    Consumers compare codes and never parse texts. `PARTIAL_RESPONSE` is added by the engine alone,
    `CANCELLED` by whoever cancelled the call: an adapter lets `asyncio.CancelledError` pass.
    """

    RATE_LIMIT = "RATE_LIMIT"
    SERVER = "SERVER"
    TIMEOUT_CONNECT = "TIMEOUT_CONNECT"
    TIMEOUT_FIRST_TOKEN = "TIMEOUT_FIRST_TOKEN"
    TIMEOUT_IDLE = "TIMEOUT_IDLE"
    TIMEOUT_CALL = "TIMEOUT_CALL"
    TRANSPORT = "TRANSPORT"
    EMPTY_RESPONSE = "EMPTY_RESPONSE"
    AUTH = "AUTH"
    QUOTA = "QUOTA"
    INVALID_REQUEST = "INVALID_REQUEST"
    CONTEXT_WINDOW_EXCEEDED = "CONTEXT_WINDOW_EXCEEDED"
    CONTENT_FILTER = "CONTENT_FILTER"
    CANCELLED = "CANCELLED"
    PARTIAL_RESPONSE = "PARTIAL_RESPONSE"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a model call failed (CONTRACT B8).

    `message` is one sentence for people and carries no key or token. `status` is the status of the innermost
    HTTP response, if there was one; `retry_after_ms` what the provider asked for in any of its three forms;
    `request_id` the provider's name for the request; `cause` the failure that this one wraps. There is no
    verdict on retries here.
    """

    message: str
    code: FailureCode
    status: int | None = None
    retry_after_ms: int | None = None
    request_id: str | None = None
    cause: Failure | None = None

    def to_dict(self) -> dict[str, Any]:
        """The failure as a JSON object; facts that are not known are left out."""
        known: dict[str, Any] = {"message": self.message, "code": str(self.code)}
        for name in ("status", "retry_after_ms", "request_id"):
            value = getattr(self, name)
            if value is not None:
                known[name] = value
        if self.cause is not None:
            known["cause"] = self.cause.to_dict()
        return known

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Failure:
        """The reverse of `to_dict`. Raises `KeyError` or `ValueError` when it is no failure record."""
        cause = data.get("cause")
        return cls(
            message=str(data["message"]),
            code=FailureCode(data["code"]),
            status=data.get("status"),
            retry_after_ms=data.get("retry_after_ms"),
            request_id=data.get("request_id"),
            cause=None if cause is None else cls.from_dict(cause),
        )


class ModelFailure(Exception):
    """A model call failed; `.failure` says how. It survives pickling and holds nothing of a library."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return f"{self.failure.code}: {self.failure.message}"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A fragment of a tool call, as the provider cut it. Fragments belong together by `index` (CONTRACT
    B3).
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class UsageChunk:
    """Tokens of the call and their price; `estimated` when the provider sent no numbers (CONTRACT B12).

    `cost_usd` is None when neither the provider nor the local price list knows a price.
    """

    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """The last chunk of a stream. `failure` is set when the provider reported an error inside its reply
    (CONTRACT B4).

    `reason` is `stop`, `tool_calls`, `length`, `content_filter`, `error`, or the provider's own word if it is
    none of them.
    """

    reason: str
    failure: Failure | None = None


Chunk: TypeAlias = TextDelta | ToolCallDelta | UsageChunk | Finish


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request. `model` is LiteLLM's name (`openai/gpt-5-mini`), `messages` and `tools` have OpenAI's
    shape.

    `args` are the agent's `model_args` (`api_base`, `api_key`, `temperature`, …), where secrets are `SecretStr`.
    With `stream` False the provider is asked for one whole reply, which comes out as the same chunks.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Clocks:
    """The four limits of one call, in seconds (CONTRACT B6). 0 turns `first_token_s` and `idle_s` off.

    `call_s` is the smallest of all limits of the caller. The connect clock runs from the moment the request
    is handed to the connection, the others from the moment it is sent: what LiteLLM takes to prepare it is not
    held against the provider (and bounded separately).
    """

    connect_s: float = 5.0
    first_token_s: float = 15.0
    idle_s: float = 20.0
    call_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A whole tool call of a reply. `arguments` is the raw JSON text, to be parsed once, at validation
    (CONTRACT B3).
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole reply, assembled from its chunks."""

    text: str
    tool_calls: tuple[ToolCallPart, ...]
    usage: UsageChunk
    finish_reason: str

"""One model call through LiteLLM, from the request to the last chunk."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import SecretBytes, SecretStr

from makegood.tasks.model import verdict
from makegood.tasks.model.clocks import CallClocks
from makegood.tasks.model.exchange import Exchange
from makegood.tasks.model.litellm_setup import client_for, model_for
from makegood.tasks.model.price import cost_of, estimate_prompt_tokens, estimate_tokens
from makegood.tasks.model.types import (
    Chunk,
    Failure,
    Finish,
    ModelFailure,
    ModelRequest,
    TextDelta,
    ToolCallDelta,
    UsageChunk,
)

T = TypeVar("T")

LITELLM_TIMEOUT_S = 86_400.0
"""LiteLLM's own timeout: constant, because clients are cached by it, and long, because the clocks are
ours.
"""


class LiteLLMCall:
    """State of one call. `chunks` yields what the provider says; `close` always closes the connection."""

    def __init__(self, litellm: Any, request: ModelRequest, exchange: Exchange, clocks: CallClocks) -> None:
        self._litellm = litellm
        self._request = request
        self._exchange = exchange
        self._clocks = clocks
        self._args = {name: _revealed(value) for name, value in request.args.items()}
        self._secrets = tuple(_secrets_in(request.args))
        self._stream: Any = None
        self._finish: str | None = None
        self._usage: Any = None
        self._chars = 0
        self._has_calls = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Deltas, then usage, then finish. Raises `ModelFailure`."""
        failure: Failure | None = None
        try:
            reply = await self._limited(self._send())
            if self._request.stream:
                self._stream = reply.__aiter__()
                while (event := await self._limited(anext(self._stream, None))) is not None:
                    if not self._exchange.begun:
                        self._clocks.event()
                    for chunk in self._deltas_of(event):
                        yield chunk
            else:
                for chunk in self._parts_of(reply):
                    yield chunk
        except ModelFailure as error:
            if not self._said_inside():
                raise
            failure = error.failure
        for chunk in self._ending(failure):
            yield chunk

    async def close(self) -> None:
        """Close the connection unless its reply was read to the end. Never raises an error of a library."""
        try:
            if self._stream is not None and hasattr(self._stream, "aclose"):
                with suppress(Exception):
                    await self._stream.aclose()
        finally:
            with suppress(Exception):
                await self._exchange.close()

    async def _send(self) -> Any:
        request = self._request
        options: dict[str, Any] = {
            **self._args,
            "num_retries": 0,
            "max_retries": 0,
            "timeout": LITELLM_TIMEOUT_S,
        }
        if request.tools:
            options["tools"] = [dict(tool) for tool in request.tools]
        if request.stream:
            options["stream"] = True
            options["stream_options"] = {"include_usage": True}
        model = model_for(self._litellm, request.model, with_tools=bool(request.tools))
        client = client_for(self._litellm, model, self._args, request.tools, self._exchange)
        if client is not None:
            options["client"] = client
        else:  # LiteLLM's own client: its connecting cannot be told from its waiting
            self._clocks.leaving()
            self._clocks.connected()
            self._clocks.sent()
        messages = [dict(message) for message in request.messages]
        return await self._litellm.acompletion(model=model, messages=messages, **options)

    async def _limited(self, awaitable: Awaitable[T]) -> T:
        """Await under the clocks; what a library raises becomes a `ModelFailure` that knows nothing of it."""
        try:
            return await self._clocks.limit(awaitable)
        except ModelFailure:
            raise
        except Exception as error:
            judge = verdict.of_exchange if self._exchange.begun else verdict.of_exception
            failure = judge(self._exchange, error, time.time(), self._secrets)
        raise ModelFailure(failure)

    def _said_inside(self) -> bool:
        """Whether the failure stands inside an accepted reply: then it ends the stream in order."""
        status = self._exchange.status
        return status is not None and status < 300 and self._exchange.facts.error is not None

    def _deltas_of(self, event: Any) -> Iterator[Chunk]:
        self._usage = getattr(event, "usage", None) or self._usage
        for choice in getattr(event, "choices", None) or ():
            if getattr(choice, "index", 0):
                continue  # one answer is asked for
            self._finish = getattr(choice, "finish_reason", None) or self._finish
            yield from self._parts(choice.delta)

    def _parts_of(self, reply: Any) -> Iterator[Chunk]:
        self._usage = getattr(reply, "usage", None)
        choices = getattr(reply, "choices", None) or ()
        if choices:
            self._finish = choices[0].finish_reason
            yield from self._parts(choices[0].message)

    def _parts(self, message: Any) -> Iterator[Chunk]:
        text = getattr(message, "content", None)
        if isinstance(text, str) and text:
            self._chars += len(text)
            yield TextDelta(text)
        for position, call in enumerate(getattr(message, "tool_calls", None) or ()):
            self._has_calls = True
            index = getattr(call, "index", None)
            function = call.function
            arguments = function.arguments or ""
            self._chars += len(arguments)
            yield ToolCallDelta(
                position if index is None else int(index), call.id or None, function.name or None, arguments
            )

    def _ending(self, failure: Failure | None) -> Iterator[Chunk]:
        """Usage and finish; raises where the reply turns out to be none."""
        exchange = self._exchange
        exchange.facts.end()
        if failure is None:
            failure = verdict.of_ended(exchange, time.time(), self._secrets)
            if failure is not None and not self._said_inside():
                raise ModelFailure(failure)
        reason = verdict.finish_reason(exchange.facts.finish, self._finish, has_calls=self._has_calls)
        usage = self._usage_chunk()
        if failure is None:
            failure = verdict.of_finish(reason, empty=self._chars == 0 and not self._has_calls)
        if not (usage.estimated and failure is not None and self._chars == 0):
            yield usage  # an error instead of a reply took no tokens that anybody counts
        yield Finish("error" if failure is not None and reason == "stop" else reason, failure)

    def _usage_chunk(self) -> UsageChunk:
        usage, facts = self._usage, self._exchange.facts
        prompt = int(getattr(usage, "prompt_tokens", 0) or 0)
        completion = int(getattr(usage, "completion_tokens", 0) or 0)
        sent = facts.usage and usage is not None
        if not sent and (
            facts.known or not prompt
        ):  # else LiteLLM's count of a reply in a shape unknown to us
            usage = None
            prompt = estimate_prompt_tokens(self._request.messages, self._request.tools)
            completion = estimate_tokens(self._chars)
        cost = cost_of(self._request.model, usage, prompt, completion)
        return UsageChunk(prompt, completion, cost, estimated=not sent)


def _revealed(value: Any) -> Any:
    if isinstance(value, SecretStr | SecretBytes):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: _revealed(inner) for name, inner in value.items()}
    return value


def _secrets_in(args: Mapping[str, Any]) -> Iterator[str]:
    for name, value in args.items():
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        elif isinstance(value, Mapping):
            yield from _secrets_in(value)
        elif isinstance(value, str) and any(
            word in name.lower() for word in ("key", "token", "secret", "auth")
        ):
            yield value

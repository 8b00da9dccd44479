"""Putting the chunks of one reply together (CONTRACT B3).

LiteLLM's own builder merges two tool calls that share an index and drops one that has no id, so this is done
here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from uuid import uuid4

from makegood.tasks.model.types import (
    Chunk,
    Failure,
    FailureCode,
    Finish,
    ModelFailure,
    ModelReply,
    TextDelta,
    ToolCallDelta,
    ToolCallPart,
    UsageChunk,
)


class _Call:
    """One tool call while its fragments arrive."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self, call_id: str | None) -> None:
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []


class CallAssembler:
    """Collects fragments of tool calls; calls come out in the order in which they began.

    A fragment continues the latest call of its index, unless it carries another id, or a name or first id
    although the arguments so far are already whole.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._open: dict[int, _Call] = {}
        self._by_id: dict[tuple[int, str], _Call] = {}

    def add(self, fragment: ToolCallDelta) -> None:
        """Take one fragment in."""
        call = self._target(fragment)
        if call.id is None and fragment.id:
            call.id = fragment.id
            self._by_id[fragment.index, fragment.id] = call
        if fragment.name and not call.name:
            call.name = fragment.name
        elif fragment.name and fragment.name != call.name and not call.arguments:
            call.name += fragment.name
        if fragment.arguments:
            call.arguments.append(fragment.arguments)

    def parts(self) -> tuple[ToolCallPart, ...]:
        """The whole calls, with unique ids: a missing one is made up, a doubled one replaced."""
        seen: set[str] = set()
        parts = []
        for call in self._calls:
            if not call.id or call.id in seen:
                call.id = f"call_{uuid4().hex[:24]}"
            seen.add(call.id)
            parts.append(ToolCallPart(call.id, call.name, "".join(call.arguments) or "{}"))
        return tuple(parts)

    def _target(self, fragment: ToolCallDelta) -> _Call:
        current = self._open.get(fragment.index)
        if fragment.id:
            known = self._by_id.get((fragment.index, fragment.id))
            if known is not None:
                self._open[fragment.index] = known
                return known
        if current is not None and not self._begins_another(current, fragment):
            return current
        call = _Call(fragment.id or None)
        self._calls.append(call)
        self._open[fragment.index] = call
        if call.id:
            self._by_id[fragment.index, call.id] = call
        return call

    @staticmethod
    def _begins_another(current: _Call, fragment: ToolCallDelta) -> bool:
        if fragment.id and current.id:
            return True  # another id: had it been the same, `_by_id` would have found it
        return bool(fragment.id or fragment.name) and _is_whole("".join(current.arguments))


def _is_whole(arguments: str) -> bool:
    """Whether the fragments so far are complete JSON: then a new name or id on the index is a new call."""
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True


async def collect(
    chunks: AsyncGenerator[Chunk, None], on_delta: Callable[[str], None] | None = None
) -> ModelReply:
    """Read a stream to its end and return the whole reply; `on_delta` gets every piece of text as it arrives.

    Raises `ModelFailure` when the stream raised it or its `Finish` carries one. However it is left, by an
    end, an error or a cancellation, the close of the stream has been awaited.
    """
    texts: list[str] = []
    calls = CallAssembler()
    usage = UsageChunk(0, 0, None, estimated=True)
    finish: Finish | None = None
    try:
        async for chunk in chunks:
            match chunk:
                case TextDelta(text):
                    texts.append(text)
                    if on_delta is not None:
                        on_delta(text)
                case ToolCallDelta():
                    calls.add(chunk)
                case UsageChunk():
                    usage = chunk
                case Finish():
                    finish = chunk
    finally:
        await chunks.aclose()
    if finish is None:
        raise ModelFailure(Failure("The model's reply ended without a finish.", FailureCode.TRANSPORT))
    if finish.failure is not None:
        raise ModelFailure(finish.failure)
    return ModelReply("".join(texts), calls.parts(), usage, finish.reason)

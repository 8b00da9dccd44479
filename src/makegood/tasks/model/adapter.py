"""The narrow interface between makegood and whatever talks to a model (CONTRACT B1)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from makegood.tasks.model.types import Chunk, Clocks, ModelRequest


@runtime_checkable
class ModelAdapter(Protocol):
    """Parameters in, a stream of chunks out; it reports facts and decides nothing.

    One instance belongs to one event loop. Concurrent calls of `stream` are independent of each other.
    """

    def stream(self, request: ModelRequest, clocks: Clocks) -> AsyncGenerator[Chunk, None]:
        """Send exactly one HTTP request and yield what comes back: deltas, then one `UsageChunk`, then one
        `Finish`.

        Transport and protocol errors, error statuses and clocks raise `ModelFailure`; an error that the
        provider reports inside its reply ends the stream with a `Finish` that carries the failure. Cancelling
        the task that consumes it, or `aclose()`, closes the connection before the call returns (CONTRACT B2,
        B4 to B7). Whoever leaves the stream early must await `aclose()`; `assemble.collect` does.
        """
        ...

    async def warm_up(self) -> None:
        """Load what the first call would load, without touching the network (CONTRACT B13)."""
        ...

    async def aclose(self) -> None:
        """Close every connection. No call may be running."""
        ...


def litellm_adapter() -> ModelAdapter:
    """The adapter that workers use; loads LiteLLM's half of it when it is called."""
    from makegood.tasks.model.litellm_adapter import LiteLLMAdapter

    return LiteLLMAdapter()

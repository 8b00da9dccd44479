"""Servers of a test's own: `model`, a scripted provider behind LiteLLM, and `shop`, which tools talk to.

Every request that a `model` saw is checked for balance when the test ends (CONTRACT F4).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pytest

from makegood.testing import Behaviour, Provider, RequestRecord, Status

Script = Sequence[Behaviour] | Callable[[RequestRecord], Behaviour]


def assert_balanced(messages: Sequence[Mapping[str, Any]]) -> None:
    """Every call has exactly one result, right after its message and before anything else; no result without a call."""
    open_ids: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_ids, f"message {place} is a result without a call"
            open_ids.remove(message["tool_call_id"])
            continue
        assert not open_ids, f"message {place} comes before the results of {open_ids}"
        open_ids = [call["id"] for call in message.get("tool_calls") or ()]
        assert len(set(open_ids)) == len(open_ids), f"message {place} has two calls of one id"
    assert not open_ids, f"the history ends without the results of {open_ids}"


class MakeProvider(Protocol):
    """Makes a started provider of the test's own."""

    def __call__(self, script: Script | None = None, *, then: Behaviour | None = None) -> Provider: ...


@pytest.fixture
def model() -> Iterator[MakeProvider]:
    """A factory of scripted model providers; at the end every history they were sent must balance."""
    made: list[Provider] = []

    def make(script: Script | None = None, *, then: Behaviour | None = None) -> Provider:
        made.append(Provider(script, then=then).start())
        return made[-1]

    yield make
    for provider in made:
        provider.stop()
    for provider in made:
        for request in provider.requests:
            assert_balanced(request.messages)


class Shop:
    """A real HTTP server that tools talk to. It remembers what each idempotency key did, and how often it was asked.

    `faults` are used up first, one per request, and may be behaviours or None (answer well). With `loses` the effect
    happens though the answer is the fault.
    """

    def __init__(self, *faults: Behaviour | None, loses: bool = False) -> None:
        self._faults, self._loses = list(faults), loses
        self._lock = threading.Lock()
        self.done: dict[str, str] = {}
        self.provider = Provider(self._answer)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.provider.url

    @property
    def requests(self) -> list[RequestRecord]:
        """Everything that arrived."""
        return self.provider.requests

    @property
    def keys(self) -> list[str]:
        """The idempotency keys in the order of arrival."""
        return [request.headers["idempotency-key"] for request in self.requests]

    def _answer(self, request: RequestRecord) -> Behaviour:
        with self._lock:
            fault = self._faults.pop(0) if self._faults else None
            key = request.headers.get("idempotency-key", "")
            if fault is None or self._loses:
                self.done.setdefault(key, f"T-{len(self.done) + 1}")
        return fault or Status(200, {"id": self.done[key]})


@pytest.fixture
def shop() -> Iterator[Callable[..., Shop]]:
    """A factory of shops."""
    made: list[Shop] = []

    def make(*faults: Behaviour | None, loses: bool = False) -> Shop:
        made.append(Shop(*faults, loses=loses))
        made[-1].provider.start()
        return made[-1]

    yield make
    for each in made:
        each.provider.stop()

"""What Sentry is told, seen through a transport of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from makegood.monitoring import sentry


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if (event := item.get_event()) is not None:
                self.events.append(dict(event))


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Sentry, switched on for one test."""
    transport = Kept()
    assert sentry.start("https://key@sentry.invalid/1", transport=transport, default_integrations=False)
    yield transport
    sentry_sdk.get_global_scope().set_client(None)


@pytest.mark.contract("E8")
def test_a_run_that_waits_for_a_person_is_one_event_with_a_stable_fingerprint(kept: Kept) -> None:
    """Grouped by agent, tool and code; the run's id is context, not a tag."""
    facts = {"agent": "travel", "tool": "hotel", "code": "HTTP_500", "run_id": "07-01k9"}
    sentry.alert("The compensation of hotel failed 3 times", facts)
    (event,) = kept.events
    assert event["fingerprint"] == ["makegood", "review", "travel", "hotel", "HTTP_500"]
    assert event["tags"] == {"agent": "travel", "tool": "hotel", "code": "HTTP_500"}
    assert event["contexts"]["run"] == {"run_id": "07-01k9"}
    assert event["level"] == "error"


def test_an_unexpected_exception_is_grouped_apart(kept: Kept) -> None:
    """The same call with a bug is another issue."""
    try:
        raise KeyError("secret value")
    except KeyError as error:
        sentry.capture(error, {"agent": "travel", "tool": "hotel", "run_id": "07-01k9"})
    (event,) = kept.events
    assert event["fingerprint"] == ["makegood", "bug", "travel", "hotel", ""]


def test_while_it_is_off_nothing_happens() -> None:
    """Neither an error nor an event."""
    sentry.alert("nothing", {})
    sentry.capture(KeyError("x"), {})
    assert sentry.start(None) is False

"""What Sentry is told, seen through a transport of the test's own."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import warnings
from pathlib import Path
from typing import Any

import pydantic
import pytest
import sentry_sdk

from makegood.errors import MakegoodError, ToolError
from makegood.monitoring import sentry
from makegood.tasks import spans
from makegood.tasks.engine.env import AlertKind
from support.sentry import Kept, kept, switched_on

__all__ = ["kept"]

FACTS = {"agent": "travel", "tool": "hotel", "code": "HTTP_500", "run_id": "07-01k9"}


@pytest.mark.contract("E8")
@pytest.mark.parametrize("kind", ["review", "stuck"])
def test_what_somebody_has_to_look_at_is_one_event_with_a_stable_fingerprint(
    kept: Kept, kind: AlertKind
) -> None:
    """Grouped by agent, tool and code; the run's id is context, not a tag."""
    sentry.alert(kind, "The compensation of hotel failed 3 times", FACTS)
    (event,) = kept.events
    assert "hotel" in event["message"]
    assert "travel" in event["message"]
    assert event["fingerprint"] == ["makegood", kind, "travel", "hotel", "HTTP_500"]
    assert event["tags"] == {"agent": "travel", "tool": "hotel", "code": "HTTP_500"}
    assert event["contexts"]["run"] == {"run_id": "07-01k9"}
    assert event["level"] == "error"


def raised(error: Exception) -> Exception:
    """The error with a stack, whose frames hold a local variable that must not leave."""
    prompt = secrets.token_hex(8)
    try:
        raise error
    except Exception as caught:
        caught.prompt = prompt  # type: ignore[attr-defined]
        return caught


def test_an_unexpected_exception_is_grouped_apart_and_keeps_its_stack_without_values(kept: Kept) -> None:
    """The same call with a bug is another issue; frames name files and lines, and no local variable."""
    error = raised(KeyError("key"))
    sentry.capture(error, {"agent": "travel", "tool": "hotel", "run_id": "07-01k9"})
    (event,) = kept.events
    assert event["fingerprint"] == ["makegood", "bug", "travel", "hotel", ""]
    (value,) = event["exception"]["values"]
    assert value["stacktrace"]["frames"][-1]["function"] == "raised"
    assert not kept.said(error.prompt)  # type: ignore[attr-defined]


@pytest.mark.parametrize("payloads", [False, True])
def test_texts_of_errors_leave_only_when_payloads_are_switched_on(payloads: bool) -> None:
    """They quote what the error is about: a response, an argument, a value that pydantic refuses; at most 500 characters."""
    secret = secrets.token_hex(8)
    long = "x" * 1000
    with pytest.raises(pydantic.ValidationError, match=secret) as refused:
        pydantic.TypeAdapter(int).validate_python(secret)
    chained = raised(ValueError(f"{secret} {long}"))
    chained.__cause__ = ToolError(f"refused {secret}")
    with switched_on(payloads=payloads) as sent:
        sentry.alert("review", f"The compensation failed: {secret} {long}", FACTS)
        sentry.capture(chained, FACTS)
        sentry.capture(refused.value, FACTS)
        assert len(sent.events) == 3
        assert sent.said(secret) == (3 if payloads else 0)
        assert not sent.said(long)


def test_what_makegood_says_of_itself_is_sent(kept: Kept) -> None:
    """It quotes nothing of a run."""
    sentry.capture(MakegoodError("Run R was taken up 3 times"), {"run_id": "R"})
    assert kept.events[0]["exception"]["values"][0]["value"] == "Run R was taken up 3 times"


def test_while_it_is_off_nothing_happens() -> None:
    """Neither an error nor an event."""
    sentry.alert("review", "nothing", {})
    sentry.capture(KeyError("x"), {})
    sentry.check_in(ok=True)
    sentry.flush()
    assert sentry.start(None) is False
    assert sentry.is_on() is False


def test_only_integrations_that_add_no_text_of_the_process_are_on(kept: Kept) -> None:
    """Neither logging, HTTP, Celery, Redis, argv nor any of a model's; an outgoing request gets no header."""
    client = sentry_sdk.get_client()
    assert set(client.integrations) <= {"atexit", "dedupe", "excepthook", "modules"}
    assert client.get_integration("litellm") is None
    assert client.options["trace_propagation_targets"] == []
    assert client.options["include_local_variables"] is False


def test_starting_it_warns_of_nothing_and_asks_for_no_personal_data() -> None:
    """Whichever option the installed sentry-sdk has for that."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with switched_on(traces=1.0, span_items=False):
            client = sentry_sdk.get_client()
    assert client.should_send_default_pii() is False
    collected = client.options.get("data_collection")
    assert collected is None or (collected["user_info"], *collected["gen_ai"].values()) == (False,) * 3


def test_log_records_are_neither_events_nor_breadcrumbs(kept: Kept) -> None:
    """A business error that is logged stays in the log."""
    logging.getLogger("makegood.run").error("the agent said %s", "refused words")
    logging.getLogger("makegood.run").warning("the agent said %s", "refused words")
    sentry.alert("stuck", "hotel does not stop", FACTS)
    (event,) = kept.events
    assert not event.get("breadcrumbs", {}).get("values")
    assert not kept.said("refused words")


def test_what_a_tool_left_on_sentrys_scopes_does_not_go_along(kept: Kept) -> None:
    """All runs of a process share them."""
    with sentry_sdk.isolation_scope():
        sentry_sdk.set_tag("customer", "another run's")
        sentry_sdk.add_breadcrumb(message="another run's")
        sentry_sdk.get_current_scope().set_extra("customer", "another run's")
        sentry.alert("review", "look", FACTS)
        assert sentry_sdk.get_current_scope()._tags == {}
    assert len(kept.events) == 1
    assert not kept.said("another run's")


def test_a_transport_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """It is logged once, at debug."""
    monkeypatch.setattr(spans, "_told", [])
    caplog.set_level(logging.DEBUG, "makegood.telemetry")
    with switched_on(Kept(breaks=True)) as broken:
        sentry.alert("review", "look", FACTS)
        sentry.capture(KeyError("x"), FACTS)
        sentry.check_in(ok=True)
        assert broken.tried == 3
    said = [record for record in caplog.records if "could not be told" in record.message]
    assert [record.levelno for record in said] == [logging.DEBUG]


@pytest.mark.parametrize(("ok", "status"), [(True, "ok"), (False, "error")])
def test_the_sweeper_checks_in_as_a_monitor_that_makes_itself(kept: Kept, ok: bool, status: str) -> None:
    """Once a minute, with a margin and a threshold of failures."""
    sentry.check_in(ok=ok)
    (sent,) = kept.check_ins
    assert (sent["monitor_slug"], sent["status"]) == ("makegood-sweeper", status)
    assert sent["monitor_config"]["schedule"] == {"type": "interval", "value": 1, "unit": "minute"}
    assert sent["monitor_config"]["failure_issue_threshold"] == 3


def test_sending_waits_for_nobody() -> None:
    """The server has taken the request and does not answer: an alert and a check-in return all the same."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = threading.Event()

        def hear() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                heard.set()
                over.wait(30)

        over = threading.Event()
        listener = threading.Thread(target=hear)
        listener.start()
        assert sentry.start(f"http://key@127.0.0.1:{server.getsockname()[1]}/1")
        try:
            sentry.check_in(ok=True)
            assert heard.wait(30)
            sentry.check_in(ok=True)
            sentry.alert("stuck", "hotel does not stop", FACTS)
        finally:
            over.set()
            listener.join(30)
            sentry_sdk.get_client().transport.kill()  # type: ignore[union-attr]
            sentry_sdk.get_global_scope().set_client(None)


def test_names_of_the_conventions_stand_in_one_module() -> None:
    """A change of them is made there alone."""
    package = Path(sentry.__file__).parents[1]
    spelled = [path.name for path in package.rglob("*.py") if '"gen_ai.' in path.read_text(encoding="utf-8")]
    assert spelled == ["genai.py"]

"""Unexpected exceptions and runs that wait for a person go to Sentry when SENTRY_DSN is set, without prompts or payloads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("makegood.worker")

TAGS = ("agent", "tool", "hook", "code")
"""What an event is grouped by and can be searched for; the run's id goes along as context only."""


def start(dsn: str | None, **options: Any) -> bool:
    """Switch Sentry on. Returns False when there is no DSN. `options` go to sentry-sdk (tests: `transport`)."""
    if not dsn:
        return False
    import sentry_sdk
    from sentry_sdk.integrations.litellm import LiteLLMIntegration

    sentry_sdk.init(
        dsn=dsn,
        send_default_pii=False,
        include_local_variables=False,  # they hold tool arguments and model replies
        max_request_body_size="never",
        disabled_integrations=[LiteLLMIntegration()],
        **options,
    )
    return True


def alert(message: str, facts: Mapping[str, Any]) -> None:
    """Send one event: a run waits for a person. Does nothing while Sentry is off. Never raises."""
    _send("review", facts, lambda sdk, scope: sdk.capture_message(message, level="error", scope=scope))


def capture(error: BaseException, facts: Mapping[str, Any]) -> None:
    """Send one unexpected exception; does nothing while Sentry is off. Never raises."""
    _send("bug", facts, lambda sdk, scope: sdk.capture_exception(error, scope=scope))


def report_bug(error: BaseException, tags: Mapping[str, Any]) -> None:
    """Log an unexpected exception and send it."""
    log.error("unexpected %s in %s", type(error).__name__, dict(tags), exc_info=error)
    capture(error, tags)


def _send(kind: str, facts: Mapping[str, Any], send: Callable[[Any, Any], object]) -> None:
    try:
        import sentry_sdk
    except ImportError:  # the extra is not installed
        return
    if not sentry_sdk.is_initialized():
        return
    with sentry_sdk.new_scope() as scope:
        known = {name: str(facts[name]) for name in TAGS if facts.get(name) is not None}
        for name, value in known.items():
            scope.set_tag(name, value)
        scope.set_context("run", {"run_id": facts.get("run_id")})
        scope.fingerprint = ["makegood", kind, *(known.get(name, "") for name in ("agent", "tool", "code"))]
        send(sentry_sdk, scope)

"""What goes to Sentry when SENTRY_DSN is set: runs that wait for a person, work that hangs, unexpected exceptions, check-ins.

Prompts and payloads never do, nor the texts of errors, which quote them, unless they are switched on. sentry-sdk's own
integrations would add log texts, URLs, headers and prompts of whatever the process does; only those that add none are on.
`send_default_pii` is not set: every 2.x takes that for False, and later ones warn of the option.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from makegood.tasks.engine.env import AlertKind
from makegood.tasks.spans import quietly

log = logging.getLogger("makegood.worker")

TAGS = ("agent", "tool", "hook", "code")
"""What an event is grouped by and can be searched for; the run's id goes along as context only."""

MAX_TEXT = 500
"""Characters of a message or of an exception's text that are sent."""

OWN_WORDS = frozenset(
    {
        "MakegoodError",
        "StoreUnreachable",
        "BrokerUnreachable",
        "NotAllowed",
        "RunNotFound",
        "StaleFence",
        "OutOfOrder",
    }
)
"""Errors of makegood whose texts quote nothing of a run, so that they are always sent."""

MAX_VALUE = 8 * 1024
"""No text of any kind is longer."""

FLUSH_S = 2.0

TITLES: Mapping[AlertKind, str] = {
    "review": "A run of {agent} waits for a person: {tool} {code}",
    "stuck": "A run of {agent} hangs: {tool} {code}",
}

MONITOR = "makegood-sweeper"
"""Slug of the cron monitor, which is made by its first check-in."""

MONITOR_CONFIG: Mapping[str, Any] = {
    "schedule": {"type": "interval", "value": 1, "unit": "minute"},
    "checkin_margin": 2,  # minutes; a worker that took the turn may be gone, and the next one is up to a minute later
    "max_runtime": 2,
    "failure_issue_threshold": 3,
    "recovery_threshold": 1,
}


def start(
    dsn: str | None, *, traces: float = 0.0, payloads: bool = False, span_items: bool = True, **options: Any
) -> bool:
    """Switch Sentry on. Returns False when there is no DSN. `options` go to sentry-sdk (tests: `transport`).

    `traces`: the share of attempts that are traced; `payloads`: texts of errors are sent; `span_items`: spans leave as
    items of their own.
    """
    if not dsn:
        return False
    import sentry_sdk
    from sentry_sdk.consts import DEFAULT_OPTIONS
    from sentry_sdk.integrations.atexit import AtexitIntegration
    from sentry_sdk.integrations.dedupe import DedupeIntegration
    from sentry_sdk.integrations.excepthook import ExcepthookIntegration
    from sentry_sdk.integrations.modules import ModulesIntegration

    ours: dict[str, Any] = {
        "dsn": dsn,
        "include_local_variables": False,  # they hold tool arguments and model replies
        "max_request_body_size": "never",
        "max_value_length": MAX_VALUE,
        "default_integrations": False,
        "auto_enabling_integrations": False,
        "integrations": [
            AtexitIntegration(callback=lambda pending, timeout: None),
            DedupeIntegration(),
            ExcepthookIntegration(),
            ModulesIntegration(),
        ],
        "trace_propagation_targets": [],  # no header of ours on a request to a provider or a tool's downstream
        "traces_sample_rate": traces or None,
        "before_send": cap_texts if payloads else drop_texts,
    }
    if (
        not span_items and "stream_gen_ai_spans" in DEFAULT_OPTIONS
    ):  # one that does not know it makes no such items
        ours["stream_gen_ai_spans"] = False
    sentry_sdk.init(**{**ours, **options})
    return True


def is_on() -> bool:
    """Whether this process sends anything."""
    try:
        import sentry_sdk
    except ImportError:  # the extra is not installed
        return False
    return sentry_sdk.is_initialized()


def alert(kind: AlertKind, message: str, facts: Mapping[str, Any]) -> None:
    """Send one event that somebody has to look at. Does nothing while Sentry is off. Never raises.

    `message` may quote an error, so that the event has a title of its own.
    """
    what = TITLES[kind].format(
        agent=facts.get("agent"), tool=facts.get("tool") or "?", code=facts.get("code")
    )
    said = {**facts, "message": message[:MAX_TEXT]}
    _send(kind, said, lambda sdk, scope: sdk.capture_message(what[:MAX_TEXT], level="error", scope=scope))


def capture(error: BaseException, facts: Mapping[str, Any]) -> None:
    """Send one unexpected exception; does nothing while Sentry is off. Never raises."""
    _send("bug", facts, lambda sdk, scope: sdk.capture_exception(error, scope=scope))


def report_bug(error: BaseException, tags: Mapping[str, Any]) -> None:
    """Log an unexpected exception and send it."""
    log.error("unexpected %s in %s", type(error).__name__, dict(tags), exc_info=error)
    capture(error, tags)


def check_in(*, ok: bool) -> None:
    """Tell the cron monitor that runs are swept, or that they are not. Never raises and never waits: a thread of Sentry's sends."""

    def send() -> None:
        from sentry_sdk.crons import capture_checkin

        config: Any = dict(MONITOR_CONFIG)
        with alone():
            capture_checkin(monitor_slug=MONITOR, status="ok" if ok else "error", monitor_config=config)

    if is_on():
        quietly(send)


def flush() -> None:
    """Wait shortly for what is on its way; for a process that ends without Python's own end."""

    def wait() -> None:
        import sentry_sdk

        sentry_sdk.flush(timeout=FLUSH_S)

    if is_on():
        quietly(wait)


@contextmanager
def alone() -> Iterator[Any]:
    """A scope with nothing on it: what tools left on the process's scopes does not go along, and nothing stays behind."""
    from sentry_sdk.scope import Scope, ScopeType, use_isolation_scope, use_scope

    with use_isolation_scope(Scope(ty=ScopeType.ISOLATION)), use_scope(Scope(ty=ScopeType.CURRENT)) as scope:
        yield scope


def cap_texts(event: dict[str, Any], hint: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten the texts of exceptions."""
    for each in _exceptions(event):
        each["value"] = str(each.get("value") or "")[:MAX_TEXT]
    return event


def drop_texts(event: dict[str, Any], hint: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what may quote a prompt or a payload: the texts of exceptions and of alerts."""
    event.get("contexts", {}).get("run", {}).pop("message", None)
    for each in _exceptions(event):
        own = str(each.get("module") or "").startswith("makegood") and each.get("type") in OWN_WORDS
        each["value"] = str(each.get("value") or "")[:MAX_TEXT] if own else ""
    return event


def _exceptions(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((event.get("exception") or {}).get("values") or ())


def _send(kind: str, facts: Mapping[str, Any], send: Callable[[Any, Any], object]) -> None:
    def work() -> None:
        import sentry_sdk

        known = {name: str(facts[name])[:MAX_TEXT] for name in TAGS if facts.get(name) is not None}
        with alone() as scope:
            for name, value in known.items():
                scope.set_tag(name, value)
            run = {name: facts[name] for name in ("run_id", "message") if facts.get(name) is not None}
            scope.set_context("run", run)
            scope.fingerprint = [
                "makegood",
                kind,
                *(known.get(name, "") for name in ("agent", "tool", "code")),
            ]
            send(sentry_sdk, scope)

    if is_on():
        quietly(work)

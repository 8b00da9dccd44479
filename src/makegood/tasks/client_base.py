"""What the blocking and the asyncio client have in common: settings, patience, refusals and the sentences of errors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from makegood.errors import (
    BrokerUnreachable,
    InvalidInput,
    NotAllowed,
    NotBuilt,
    SettingsError,
    StillStopping,
    WaitTimeout,
)
from makegood.store.states import State
from makegood.tasks.wakeup import CLEANUP_QUEUE, RUNS_QUEUE, Publisher
from makegood.urls import broker_url_for, is_broker_url, mask_url

CATALOG_S = 5.0
"""How long a client trusts the declarations it has read."""

MAX_ACTOR_CHARS, MAX_REASON_CHARS = 200, 2000
"""What one entry of the audit log may hold."""

_LATER = {
    "approve": "client.approve",
    "deny": "client.deny",
    "session": "client.session",
    "output": "run.output",
    "interrupt": "run.interrupt",
}


def pauses() -> Iterator[float]:
    """Seconds between two looks at a run: short at first, never more than a quarter of a second."""
    return itertools.chain((0.005 * 1.5**n for n in range(10)), itertools.repeat(0.25))


class Common:
    """Settings of a client, and what both kinds refuse."""

    def __init__(self, url: str | None, broker_url: str | None, live_url: str | None) -> None:
        if live_url is not None:
            raise NotBuilt(
                f"{type(self).__name__}(live_url=…) is not built yet; leave it at its default (None)."
            )
        if url is None or broker_url is None:
            from makegood.settings import Settings  # pydantic: only when the environment has to be read

            settings = Settings.load(**({} if url is None else {"redis_url": url}))
            url, broker_url = settings.redis_url, broker_url or settings.broker_url
        self.url, self.broker_url = url, broker_url_for(broker_url)
        if not is_broker_url(self.broker_url):
            raise SettingsError(
                f"{mask_url(broker_url)!r} is no URL of a broker; use redis://host:6379/0 or amqp://user:password@host."
            )
        self.publisher = Publisher(self.broker_url, mask_url(self.broker_url))
        self.catalog: dict[str, Any] = {}
        self.catalog_until_s = 0.0

    def __getattr__(self, name: str) -> NoReturn:
        refuse_later(self, name)

    def announce(self, run_id: str, state: str) -> bool:
        """Wake whoever goes on with a run that was moved; False without a broker: then a worker's sweeper finds it."""
        queue = {State.CLEANING: CLEANUP_QUEUE, State.QUEUED: RUNS_QUEUE}.get(State(state))
        if queue is None:
            return True
        try:
            self.publisher.wake(run_id, queue)
        except (BrokerUnreachable, NotAllowed):
            return False
        return True

    def _known(self) -> dict[str, Any] | None:
        return self.catalog if time.monotonic() < self.catalog_until_s else None

    def _learn(self, known: dict[str, Any]) -> None:
        self.catalog, self.catalog_until_s = known, time.monotonic() + CATALOG_S


def refuse_later(owner: object, name: str) -> NoReturn:
    """The error for an attribute that is not there, or not yet."""
    if name in _LATER:
        raise NotBuilt(f"{_LATER[name]} is not built yet; see the README for what is.")
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")


def refuse_unbuilt_enqueue(session: object, stream: object, if_breaker_open: object) -> None:
    """Parameters of enqueue whose capability is not built yet."""
    if session is not None:
        raise NotBuilt("enqueue(session=…) is not built yet; leave it at its default (None).")
    if stream:
        raise NotBuilt("enqueue(stream=True) is not built yet; leave it at its default (False).")
    if if_breaker_open != "accept":
        raise NotBuilt('enqueue(if_breaker_open=…) is not built yet; leave it at its default ("accept").')


def hanging(info: dict[str, Any]) -> StillStopping:
    """The error of a cancel that did not come to rest in time; it names the call that hangs."""
    detail = info.get("activity_detail") or {}
    where = f" in {detail['call']} for {detail['for_s']} s" if info.get("activity") == "hanging" else ""
    return StillStopping(
        f"Run {info['run_id']} was told to stop but is still {info['state']}{where}; look again with "
        f"`makegood runs show {info['run_id']}`."
    )


def waited_out(run_id: str, state: str, timeout: float) -> WaitTimeout:
    """The error of a wait that ended before the run."""
    return WaitTimeout(
        f"Run {run_id} is still {state} after {timeout:g} s; wait again, or look at it with `makegood runs show {run_id}`."
    )


def refuse_keep_inbox(keep_inbox: bool) -> None:
    """A parameter of cancel whose capability is not built yet."""
    if keep_inbox:
        raise NotBuilt("cancel(keep_inbox=True) is not built yet; leave it at its default (False).")


def check_audited(actor: object, reason: object) -> None:
    """Refuse what the audit log cannot hold. Raises InvalidInput."""
    if not isinstance(actor, str) or not 0 < len(actor) <= MAX_ACTOR_CHARS:
        raise InvalidInput(f"actor must be a text of 1 to {MAX_ACTOR_CHARS} characters: who asks for this.")
    if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARS:
        raise InvalidInput(f"reason must be a text of at most {MAX_REASON_CHARS} characters.")


def check_decision(actor: object, reason: object, expected_version: object) -> None:
    """Refuse a decision without who and why, or with a version that is none. Raises InvalidInput."""
    check_audited(actor, reason)
    if not str(reason).strip():
        raise InvalidInput("reason is mandatory for a decision: say in one sentence why, for the audit log.")
    whole = isinstance(expected_version, int) and not isinstance(expected_version, bool)
    if expected_version is not None and not (whole and expected_version >= 0):  # type: ignore[operator]
        raise InvalidInput("expected_version must be the version of a run, a whole number, or None.")

"""The sweeper is a cron monitor of Sentry: it checks in once a minute, so that somebody hears when nothing sweeps any more."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from makegood.monitoring import sentry
from makegood.store.async_store import AsyncStore
from makegood.store.ops.turns import take_turn

EVERY_S = 60.0

TURN_MS = 55_000
"""One check-in a minute for all processes; less than the minute, so that the same process has the next one too."""

FAILED_S = 60.0
"""A duty that has not worked for this long has failed."""


@dataclass(slots=True)
class Sweeps:
    """When each of these duties last came to its end without an error, on the monotonic clock."""

    duties: Collection[str]
    began_s: float = field(default_factory=time.monotonic)
    last_s: dict[str, float] = field(default_factory=dict)

    def worked(self, duty: str, now_s: float) -> None:
        """A duty has worked."""
        self.last_s[duty] = now_s

    def verdict(self, now_s: float) -> bool | None:
        """True: each has worked within the last minute; False: one has failed for all of it; None: too early to say."""
        oldest_s = min(self.last_s.get(duty, self.began_s) for duty in self.duties)
        if now_s - oldest_s >= FAILED_S:
            return False
        return True if all(duty in self.last_s for duty in self.duties) else None


async def run_once(store: AsyncStore, worker: str, *, swept: bool | None) -> None:
    """Check in. What does not work is told by every process, since the store may be what is away."""
    if swept is None or not sentry.is_on():
        return
    if not swept or await store.do(take_turn("check-in", f"{worker}/{secrets.token_hex(4)}", TURN_MS)):
        sentry.check_in(ok=swept)

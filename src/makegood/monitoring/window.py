"""The window that numbers are asked for: a duration or a moment, rounded outwards to the hours the store counts in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from makegood.errors import InvalidInput
from makegood.store.ops.numbers import HOUR_MS
from makegood.store.ops.reads import iso

DAYS = 14
"""How far numbers look back. The store keeps an hour for 15 days, so that the first one asked for is still there."""

MAX_MS = DAYS * 24 * HOUR_MS
DEFAULT_SINCE = "24h"

_UNITS_MS = {"s": 1000, "m": 60_000, "h": HOUR_MS, "d": 24 * HOUR_MS, "w": 7 * 24 * HOUR_MS}
_DURATION = re.compile(r"([0-9]{1,12})([smhdw])")


@dataclass(frozen=True, slots=True)
class Window:
    """Whole hours (since 1970, UTC) `first` to `last`, both included; the present one ends now."""

    first: int
    last: int
    now_ms: int

    @property
    def since_ms(self) -> int:
        """The first moment in it."""
        return self.first * HOUR_MS

    @property
    def until_ms(self) -> int:
        """The first moment after it."""
        return min((self.last + 1) * HOUR_MS, self.now_ms)

    @property
    def hours(self) -> range:
        """Its hours, oldest first."""
        return range(self.first, self.last + 1)

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {"since": iso(self.since_ms), "until": iso(self.until_ms), "hours": len(self.hours)}


def window_of(since: str, until: str | None, now_ms: int) -> Window:
    """The window between two texts (`24h`: that long ago; or an ISO-8601 time). Raises InvalidInput."""
    since_ms = moment(since, now_ms, "--since")
    until_ms = now_ms if until is None else moment(until, now_ms, "--until")
    for option, text, at_ms in (("--since", since, since_ms), ("--until", until, until_ms)):
        if at_ms > now_ms:
            raise InvalidInput(
                f"{option} {text} is in the future; by the store's clock it is {iso(now_ms)} now."
            )
        if at_ms < now_ms - MAX_MS:
            raise InvalidInput(
                f"{option} {text} is more than {DAYS} days ago, which is as far as numbers are kept by the hour; "
                f"ask for {DAYS}d at most."
            )
    if until_ms <= since_ms:
        raise InvalidInput(
            f"The window has no end after its beginning ({iso(since_ms)} to {iso(until_ms)}); "
            "give a --since that is earlier than --until."
        )
    return Window(since_ms // HOUR_MS, (until_ms - 1) // HOUR_MS, now_ms)


def moment(text: str, now_ms: int, option: str) -> int:
    """A moment in ms: `90m`, `24h`, `7d` ago, or an ISO-8601 time, UTC unless it says otherwise. Raises InvalidInput."""
    ago = _DURATION.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        at = datetime.fromisoformat(text)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{option} {text[:80]!r} is no duration such as 90m, 24h or 7d, and no time such as 2026-11-28T10:00Z."
        ) from None

"""When a server says how long to wait (CONTRACT C2; RFC 9110 section 10.2.3)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

_NUMBER = re.compile(r"[0-9]{1,300}(\.[0-9]{1,300})?")

# What a float still holds exactly; a longer wait is as good as for ever.
_MAX_MS = 2**53 - 1


def parse_retry_after_ms(headers: Mapping[str, str], now_wall_s: float) -> int | None:
    """Returns the milliseconds the server asks to wait, or None when it says nothing valid.

    Reads `retry-after-ms` first, then `retry-after` as seconds or as an HTTP date (compared with `now_wall_s`,
    Unix seconds; a date in the past is 0). Names match in any case. Rounds up: never earlier than allowed.
    """
    found = {name.lower(): value for name, value in headers.items() if name.lower().startswith("retry-after")}
    from_ms = _number(found.get("retry-after-ms", ""))
    if from_ms is not None:
        return _whole_ms(from_ms)
    value = found.get("retry-after", "")
    seconds = _number(value)
    if seconds is not None:
        return _whole_ms(seconds * 1000)
    at_s = _http_date_s(value)
    return None if at_s is None else _whole_ms((at_s - now_wall_s) * 1000)


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _http_date_s(text: str) -> float | None:
    try:
        at = parsedate_to_datetime(text.strip())
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _whole_ms(ms: float) -> int:
    # A nanosecond of slack, so that float noise (0.3 s is 300.00000000000006 ms) does not add a millisecond.
    return max(0, math.ceil(min(ms, float(_MAX_MS)) - 1e-6))

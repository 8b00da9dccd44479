"""How long to wait before a retry (CONTRACT C2, C6, J11, J12)."""

from __future__ import annotations

# Doubling beyond this changes nothing any more: every cap in seconds is far below 2**64 times the base.
_MAX_DOUBLINGS = 64


def backoff_s(try_no: int, *, base_s: float, cap_s: float, jitter: float, rnd: float) -> float:
    """Returns the seconds to wait before retry number `try_no` (1 is the first).

    The wait doubles from `base_s`, is capped, spread by ± `jitter` (a share, 0.1 is ten per cent) by the random
    number `rnd` in [0, 1), and capped again. A base of 0 waits 0.
    """
    if try_no < 1:
        raise ValueError(f"try_no counts retries from 1, got {try_no}")
    plain_s: float = min(base_s * 2.0 ** min(try_no - 1, _MAX_DOUBLINGS), cap_s)
    return max(0.0, min(plain_s * (1 + jitter * (2 * rnd - 1)), cap_s))

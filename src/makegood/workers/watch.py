"""Nothing ends by time that was not watched (invariant 5): a pure judge of whether time can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

DRIFT_MS = 1_000
"""Difference between the server's clock and ours, per look, above which a clock has jumped."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Since when the same server with a steady clock was seen."""

    identity: tuple[str, str] = ("", "")
    since_s: float = 0.0
    server_ms: int = 0
    seen_s: float = 0.0


def look(watch: Watch, identity: tuple[str, str], server_ms: int, now_s: float, lease_s: float) -> Watch:
    """The watch after one look at the server: identity (run id, replication id), its clock, our monotonic clock.

    While it did not answer for half a lease it was not watched: nobody could renew a lease then.
    """
    passed_ms = (now_s - watch.seen_s) * 1000
    steady = abs((server_ms - watch.server_ms) - passed_ms) <= DRIFT_MS
    if identity != watch.identity or not steady or now_s - watch.seen_s > lease_s / 2:
        return Watch(identity, now_s, server_ms, now_s)
    return replace(watch, server_ms=server_ms, seen_s=now_s)


def trusted(watch: Watch, lease_s: float, now_s: float) -> bool:
    """Whether leases and expiry may be acted upon: the server was watched for one full lease."""
    return (
        bool(watch.identity[0])
        and watch.seen_s - watch.since_s >= lease_s
        and now_s - watch.seen_s <= lease_s
    )

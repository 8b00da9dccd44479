"""Maintenance: what is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from makegood.store.codes import text
from makegood.store.ops.args import counted
from makegood.store.scripts import Op


def _ids(reply: list[Any]) -> list[str]:
    return [text(item) for item in reply[1:]]


def sweep_parked(shard_prefix: str, limit: int = 100) -> Op[list[str]]:
    """Parked runs that are due become queued; returns those that need a message."""
    return Op("sweep_parked", (shard_prefix,), (limit,), _ids)


def sweep_expired(shard_prefix: str, limit: int = 100) -> Op[list[str]]:
    """Queued runs past their `expires_in` end as expired; returns them."""
    return Op("sweep_expired", (shard_prefix,), (limit,), _ids)


QUIET_MS = 5_000
"""A shard in which a run (for quarantine: a suspect) was claimed within this time needs no new messages."""


def sweep_queued(
    shard_prefix: str, agents: Sequence[str], *, quarantine: bool = False, limit: int = 100
) -> Op[list[str]]:
    """Queued runs of these agents that nobody has claimed for a while."""
    args = (QUIET_MS, limit, int(quarantine), *counted([(name,) for name in agents]))
    return Op("sweep_queued", (shard_prefix,), args, _ids)

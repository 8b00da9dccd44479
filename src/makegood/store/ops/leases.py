"""Leases: one per worker process and shard, with the set of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from makegood.store.codes import text
from makegood.store.ops.args import counted
from makegood.store.scripts import Op

MAX_CONTINUATIONS = 10
"""Hand-overs and losses after which one attempt is given up."""

MAX_DEATHS = 3
"""Process deaths in quarantine that end a run (invariant 10)."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Answer of a heartbeat: runs that are someone else's by now, and runs whose claim this worker never heard of."""

    lost: tuple[str, ...]
    found: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Runs that wait to be continued, and how many of them only a quarantine process may take."""

    run_ids: tuple[str, ...]
    suspects: int


def renew_lease(shard_prefix: str, worker: str, lease_ms: int, run_ids: Sequence[str]) -> Op[Beat]:
    """Renew the lease of a shard and compare what is held."""

    def parse(reply: list[Any]) -> Beat:
        n_lost = int(reply[1])
        names = [text(item) for item in reply[2:]]
        return Beat(tuple(names[:n_lost]), tuple(names[n_lost:]))

    args = (worker, lease_ms, *counted([(run_id,) for run_id in run_ids]))
    return Op("renew_lease", (shard_prefix,), args, parse)


def lose_worker(
    shard_prefix: str, worker: str, *, only_expired: bool, death: bool, limit: int = 200, run_id: str = ""
) -> Op[Lost]:
    """Put the runs of a lost worker back into the queue. `death`: a process died by itself, which counts for poison.

    Repeat until it returns fewer than `limit` runs. With `run_id` the worker lives and gives up this run alone.
    """

    def parse(reply: list[Any]) -> Lost:
        return Lost(tuple(text(item) for item in reply[2:]), int(reply[1]))

    args = (worker, int(only_expired), int(death), MAX_CONTINUATIONS, MAX_DEATHS, limit, run_id)
    return Op("lose_worker", (shard_prefix,), args, parse)


def sweep_leases(shard_prefix: str, limit: int = 20) -> Op[list[str]]:
    """Workers whose lease has expired in this shard."""
    return Op("sweep_leases", (shard_prefix,), (limit,), lambda reply: [text(item) for item in reply[1:]])


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Which server answers: its run id and replication id change with a restart and a failover."""

    run_id: str
    replication_id: str


def read_server() -> Op[ServerIdentity]:
    """The server's identity."""

    def parse(reply: Any) -> ServerIdentity:
        if isinstance(reply, dict):
            return ServerIdentity(str(reply.get("run_id", "")), str(reply.get("master_replid", "")))
        lines = dict(line.split(":", 1) for line in text(reply).splitlines() if ":" in line)
        return ServerIdentity(lines.get("run_id", ""), lines.get("master_replid", ""))

    return Op(None, (), ("INFO", "server", "replication"), parse)


def count_suspects(shard_prefix: str, agents: Sequence[str]) -> Op[int]:
    """How many suspects of these agents wait in a shard for a quarantine process."""
    return Op("count_suspects", (shard_prefix,), (*counted([(name,) for name in agents]),), int)

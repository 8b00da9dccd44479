"""Reads behind the numbers: counters, histograms, gauges, and the workers that are alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from makegood.store import keys
from makegood.store.codes import text
from makegood.store.ops import breakers
from makegood.store.ops.reads import numbers_in, pairs
from makegood.store.scripts import Op

HOUR_MS = 3_600_000

WAITING = ("queued", "parked", "running", "stopping", "cleaning", "requires_manual_review")
"""States of runs that have not ended; the store knows which run has been in each for longest."""


_UNTIL, _FACTS = f"{keys.WORKERS}until", f"{keys.WORKERS}facts"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a living worker process says of itself.

    Attributes:
        queue: `runs`, `cleanup`, or `quarantine`.
        slots: how many runs or cleanups it can have in flight.
        lag_s: how late its event loop is.
        stuck: threads that hang in tools that did not stop.
    """

    worker: str
    queue: str
    slots: int
    lag_s: float
    stuck: int


def read_hour(shard_prefix: str, hour: int) -> Op[dict[str, int]]:
    """What was counted in one hour (since 1970, UTC) in a shard, under the names of the counters."""
    return Op(None, (), ("HGETALL", f"{shard_prefix}h:{hour}"), numbers_in)


def read_series(shard_prefix: str) -> Op[list[str]]:
    """Names (`kind:name`) of the tools, agents, models and queues that were counted in a shard, sorted."""
    return Op(None, (), ("SMEMBERS", f"{shard_prefix}series"), lambda r: sorted(text(each) for each in r))


def read_totals(shard_prefix: str, series: str) -> Op[dict[str, int]]:
    """Counters and histograms of one tool, agent, model or queue in a shard."""
    return Op(None, (), ("HGETALL", f"{shard_prefix}c:{series}"), numbers_in)


def count_state(shard_prefix: str, agent: str, state: str) -> Op[int]:
    """How many runs of an agent are in a state, in a shard."""
    return Op(None, (), ("ZCARD", keys.state_index(shard_prefix, agent, state)), int)


def oldest_in(shard_prefix: str, state: str) -> Op[float | None]:
    """When the run that has been in a state for longest entered it (ms since 1970); None when none is in it."""

    def parse(reply: Any) -> float | None:
        if not reply:
            return None
        first = reply[0]
        return float(first[1] if isinstance(first, list | tuple) else reply[1])

    return Op(None, (), ("ZRANGE", f"{shard_prefix}since:{state}", 0, 0, "WITHSCORES"), parse)


def read_breaker_counters() -> Op[dict[str, int]]:
    """`breaker_transitions_total|name|to`, and what operators did to breakers → how often."""
    return Op(None, (), ("HGETALL", breakers.COUNTERS), numbers_in)


def read_catalog_counters() -> Op[dict[str, int]]:
    """What operators did to limits: `operator_actions_total|timeout_set|done` → how often."""
    return Op(None, (), ("HGETALL", keys.CATALOG_COUNTERS), numbers_in)


def tell_worker(facts: WorkerFacts, lifetime_ms: int) -> Op[None]:
    """Say that a process is alive; forgotten after `lifetime_ms` without a repetition."""
    body = {"queue": facts.queue, "slots": facts.slots, "lag_s": facts.lag_s, "stuck": facts.stuck}
    return _tell(facts.worker, lifetime_ms, orjson.dumps(body))


def forget_worker(worker: str) -> Op[None]:
    """A process has ended."""
    return _tell(worker, 0, b"")


def _tell(worker: str, lifetime_ms: int, body: bytes) -> Op[None]:
    args = (worker, lifetime_ms, body)
    return Op("tell_worker", (_UNTIL, _FACTS), args, lambda reply: None)


def read_workers() -> Op[list[WorkerFacts]]:
    """The processes that are alive, by name."""
    return Op("list_workers", (_UNTIL, _FACTS), (), _workers)


def _workers(reply: Any) -> list[WorkerFacts]:
    found: Mapping[str, bytes] = pairs(reply)
    read = ((worker, orjson.loads(body)) for worker, body in sorted(found.items()))
    # Another version may say more, or less.
    return [
        WorkerFacts(worker, str(said["queue"]), int(said["slots"]), float(said["lag_s"]), int(said["stuck"]))
        for worker, said in read
        if said.keys() >= {"queue", "slots", "lag_s", "stuck"}
    ]

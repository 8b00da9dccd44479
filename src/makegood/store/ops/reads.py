"""Plain reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from makegood.store import keys
from makegood.store.codes import text
from makegood.store.scripts import Op


def pairs(reply: Any) -> dict[str, bytes]:
    """A hash reply as a dict, whichever protocol the connection speaks."""
    if isinstance(reply, Mapping):
        return {text(field): value for field, value in reply.items()}
    return {text(reply[i]): reply[i + 1] for i in range(0, len(reply or ()), 2)}


def numbers_in(reply: Any) -> dict[str, int]:
    """A hash of numbers. What is none says nothing, and hides nothing."""
    return {name: int(value) for name, value in pairs(reply).items() if value.lstrip(b"-").isdigit()}


def read_record(run_id: str) -> Op[dict[str, bytes]]:
    """The record's fields; empty when there is no such run."""
    return Op(None, (), ("HGETALL", keys.run_key(run_id)), pairs)


def read_state(run_id: str) -> Op[str | None]:
    """The state alone; None when there is no such run."""
    return Op(None, (), ("HGET", keys.run_key(run_id), "state"), lambda reply: text(reply) or None)


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The state of a run, and whether only a quarantine process may take it; no such run: an empty state."""

    state: str
    alone: bool


def read_whereabouts(run_id: str) -> Op[Whereabouts]:
    """Where a run waits."""

    def parse(reply: list[Any]) -> Whereabouts:
        state, suspect, cleaning_suspect = (text(item) for item in reply)
        return Whereabouts(state, (cleaning_suspect if state == "cleaning" else suspect) == "1")

    return Op(None, (), ("HMGET", keys.run_key(run_id), "state", "suspect", "cl_suspect"), parse)


def read_agent(run_id: str) -> Op[str | None]:
    """The run's agent; None when there is no such run."""
    return Op(None, (), ("HGET", keys.run_key(run_id), "agent"), lambda reply: text(reply) or None)


def count_waiting(shard_prefix: str, agent: str, *, cleaning: bool = False) -> Op[int]:
    """How many runs of an agent wait in a shard to be executed, or to be cleaned up."""
    return Op(None, (), ("ZCARD", f"{shard_prefix}{'cleaning' if cleaning else 'queued'}:{agent}"), int)


def read_journal(run_id: str) -> Op[dict[str, bytes]]:
    """Raw journal fields; tasks/journal.py makes rows of them."""
    return Op(None, (), ("HGETALL", keys.journal_key(run_id)), pairs)


def read_steps(run_id: str) -> Op[dict[str, bytes]]:
    """Stored decisions: `attempt:step` → JSON; fields that end in `.op` are left out."""

    def parse(reply: Any) -> dict[str, bytes]:
        return {field: value for field, value in pairs(reply).items() if not field.endswith(".op")}

    return Op(None, (), ("HGETALL", keys.steps_key(run_id)), parse)


@dataclass(frozen=True, slots=True)
class Page:
    """Events as clients see them, and the id to go on from."""

    events: list[dict[str, Any]]
    last_id: str


def iso(ms: float | int | None) -> str | None:
    """Milliseconds since the epoch as ISO-8601 UTC."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _event(stream_id: str, fields: dict[str, bytes]) -> dict[str, Any]:
    attempt, step = text(fields["a"]), text(fields["s"])
    return {
        "id": stream_id,
        "type": text(fields["t"]),
        "at": iso(int(stream_id.split("-", maxsplit=1)[0])),
        "attempt": int(attempt) if attempt else None,
        "step": int(step) if step else None,
        "call_key": text(fields["c"]) or None,
        "data": orjson.loads(fields["d"]),
    }


def read_events(run_id: str, after: str, count: int = 500) -> Op[Page]:
    """Events after a stream id (`0` = from the beginning), oldest first."""

    def parse(reply: Any) -> Page:
        found = [_event(text(entry[0]), pairs(entry[1])) for entry in reply]
        return Page(found, found[-1]["id"] if found else after)

    start = "-" if after in ("0", "") else f"({after}"
    return Op(None, (), ("XRANGE", keys.events_key(run_id), start, "+", "COUNT", count), parse)


def read_agents_seen(shard_prefix: str) -> Op[list[str]]:
    """Agents that have runs in this shard."""
    return Op(
        None, (), ("SMEMBERS", f"{shard_prefix}agents"), lambda reply: sorted(text(name) for name in reply)
    )


def newest_runs(
    shard_prefix: str, agent: str, state: str, limit: int, until_ms: int | None = None
) -> Op[list[tuple[str, float]]]:
    """Newest runs of one agent in one state, each with its time of enqueue in ms; `until_ms`: enqueued no later."""

    def parse(reply: Any) -> list[tuple[str, float]]:
        if reply and isinstance(reply[0], (list, tuple)):
            return [(text(entry[0]), float(entry[1])) for entry in reply]
        return [(text(reply[i]), float(reply[i + 1])) for i in range(0, len(reply), 2)]

    name = keys.state_index(shard_prefix, agent, state)
    last = "+inf" if until_ms is None else until_ms
    by_time = ("ZRANGE", name, last, "-inf", "BYSCORE", "REV", "LIMIT", 0, limit, "WITHSCORES")
    return Op(None, (), by_time, parse)


def read_cancels(shard_prefix: str) -> Op[dict[str, str]]:
    """Runs of a shard that were asked to stop: run id → cause."""

    def parse(reply: Any) -> dict[str, str]:
        return {field: text(value) for field, value in pairs(reply).items()}

    return Op(None, (), ("HGETALL", f"{shard_prefix}cancels"), parse)


def read_counters(shard_prefix: str) -> Op[dict[str, int]]:
    """Counters of a shard, `name|label|label` → value."""
    return Op(None, (), ("HGETALL", f"{shard_prefix}counters"), numbers_in)


def read_latency(shard_prefix: str, series: str, day: int) -> Op[dict[str, int]]:
    """One day (since 1970, UTC) of a series in a shard: bucket → count, `max` → ms."""
    name = f"{shard_prefix}lat:{series}:{day}"
    return Op(None, (), ("HGETALL", name), lambda r: {k: int(v) for k, v in pairs(r).items()})


def ping() -> Op[bool]:
    """Whether the server answers."""
    return Op(None, (), ("PING",), bool)

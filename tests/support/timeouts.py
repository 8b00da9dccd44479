"""Agents with limits, and what the store holds of them, written by hand; for the tests of `makegood timeouts`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from makegood import Agent, Timeouts, agent, tool
from makegood.store import keys
from makegood.store.ops.breakers import server_time
from makegood.store.ops.catalog import publish_agents
from makegood.store.ops.numbers import HOUR_MS
from makegood.store.states import State
from makegood.tasks.latencies import DAY_MS
from makegood.tasks.rules.latency import bucket
from support.cli import Ran
from support.store import PREFIX, World, real_world
from support.store_ops import end

MODEL = "openai/any"


@tool(effect="read", timeout=8)
async def look_up(ctx: Any) -> None:
    """With a limit of its own."""


@tool(effect="read", slow=True)
async def export(ctx: Any) -> None:
    """Slow now and then, with its agent's limit."""


support = Agent("support", MODEL, tools=[look_up, export], timeouts=Timeouts(step=20))
quick = Agent("quick", MODEL, tools=[export], timeouts=Timeouts(call=4))


@agent(name="code", model=MODEL)
async def code(ctx: Any, input: Any) -> None:  # noqa: A002
    """An agent that is code."""


@contextmanager
def published(url: str) -> Iterator[World]:
    """A server to which workers have published the three agents."""
    made = real_world("sync", url)
    made.do(publish_agents({each.name: each.declaration() for each in (support, quick, code)}))
    yield made
    made.door.close()
    made.raw.close()


def measured(world: World, series: str, counts_s: dict[float, int], *, days_ago: int = 0) -> None:
    """Durations, spread over two shards."""
    day = world.do(server_time()) // DAY_MS - days_ago
    for shard, part in enumerate((0, 1)):
        name = f"{keys.prefix(shard)}lat:{series}:{day}"
        for seconds, count in counts_s.items():
            share = count // 2 + (count % 2 if part else 0)
            if share:
                world.raw.hincrby(name, bucket(seconds * 1000), share)
        world.raw.hset(name, "max", round(max(counts_s) * 1000))


def in_hour(world: World, name: str, count: int, *, hours_ago: int = 0) -> None:
    """A counter of an hour."""
    hour = world.do(server_time()) // HOUR_MS - hours_ago
    world.raw.hincrby(f"{PREFIX}h:{hour}", name, count)


def row(ran: Ran, level: str, name: str) -> dict[str, Any]:
    """One row of a report or suggestion."""
    assert ran.code == 0, ran.err
    (found,) = [each for each in ran.json if (each["level"], each["name"]) == (level, name)]
    return dict(found)


def timed_out(world: World, name: str = "support") -> str:
    """A run that ended so."""
    held = world.running(agent=name)
    world.do(end(held, world.op(), State.TIMED_OUT, code="RUN_TIMEOUT", message="Too long.", latencies=[]))
    return held.run_id

"""`makegood timeouts set` and `verdict` against a real server: what they change and count, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from makegood import AsyncClient, Client, Conflict, InvalidInput, UnknownAgent
from makegood.monitoring.limits import load_limits
from makegood.store import keys
from makegood.tasks.rules.limits import FalseKills
from support.cli import environment, inside
from support.store import World
from support.timeouts import published, timed_out

WHO = {"actor": "ada", "reason": "why not"}


@pytest.fixture
def world(store_url: str) -> Iterator[World]:
    """A server to which workers have published three agents."""
    with published(store_url) as made:
        yield made


@pytest.fixture
def env(store_url: str, world: World) -> dict[str, str]:
    """An environment that names it."""
    return environment(MAKEGOOD_REDIS_URL=store_url)


# --- set --------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("A7")
def test_a_limit_is_set_and_taken_back(env: dict[str, str], world: World) -> None:
    """What was and what is; who and why are kept."""
    first = inside(
        "timeouts", "set", "call", "look_up", "2.5", "--actor", "ada", "--reason", "slow", "--json", env=env
    )
    assert first.json == {"level": "call", "name": "look_up", "from_s": None, "to_s": 2.5}
    second = inside("timeouts", "set", "call", "look_up", "default", "--actor", "bob", env=env)
    assert second.out.split() == ["limit", "call", "look_up", "from", "2.5", "s", "to", "default"]
    with Client(env["MAKEGOOD_REDIS_URL"]) as client:
        assert client.timeouts() == []
        log = client.timeout_changes()
    assert [(each["actor"], each["reason"], each["from_s"], each["to_s"]) for each in log] == [
        ("ada", "slow", None, 2.5),
        ("bob", "", 2.5, None),
    ]
    assert {(each["level"], each["name"]) for each in log} == {("call", "look_up")}


def test_what_was_set_for_something_that_is_gone_can_be_taken_back(env: dict[str, str], world: World) -> None:
    """It was renamed; its old limit must not stay for ever."""
    world.raw.hset(keys.LIMITS, "call|old", "3")
    assert inside("timeouts", "set", "call", "old", "default", env=env).code == 0
    assert world.raw.hgetall(keys.LIMITS) == {}


@pytest.mark.parametrize(
    "words",
    [
        ("set", "total", "support", "3"),
        ("set", "call", "look_up", "0"),
        ("set", "call", "look_up", "-1"),
        ("set", "call", "look_up", "soon"),
        ("set", "call", "look_up", "nan"),
        ("set", "call", "look_up", "inf"),
        ("set", "call", "look_up", "0.0001"),
        ("set", "call", "look_up", "1e10"),
        ("set", "call", "look_up", ""),
        ("set", "call", "look_up"),
        ("set", "call", "look_up", "3", "--actor", "x" * 300),
        ("verdict", "x"),
        ("verdict", keys.new_run_id(7), "maybe"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    env: dict[str, str], world: World, words: tuple[str, ...]
) -> None:
    """Exit code 2."""
    ran = inside("timeouts", *words, env=env)
    assert (ran.code, ran.out) == (2, "")
    assert ran.sentence
    assert world.raw.hgetall(keys.LIMITS) == {}


@pytest.mark.parametrize(
    "given",
    [
        ("total", "support", 3),
        ("call", "", 3),
        ("call", None, 3),
        ("call", "look_up", True),
        ("call", "look_up", "3"),
        ("call", "look_up", float("nan")),
        ("call", "look_up", 0),
    ],
)
def test_the_client_refuses_what_is_no_limit(
    env: dict[str, str], world: World, given: tuple[Any, ...]
) -> None:
    """InvalidInput, and nothing is sent."""
    with Client(env["MAKEGOOD_REDIS_URL"]) as client, pytest.raises(InvalidInput):
        client.set_timeout(*given, **WHO)
    assert world.raw.hgetall(keys.LIMITS) == {}


# --- verdict ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("A8")
def test_a_verdict_is_recorded_shown_and_counted_once(env: dict[str, str], world: World) -> None:
    """The same again is the same; another one is a conflict with exit code 5."""
    run_id = timed_out(world)
    told = ("timeouts", "verdict", run_id, "false_kill", "--actor", "ada", "--reason", "the report was there")
    first = inside(*told, "--json", env=env)
    assert (first.json["run_id"], first.json["verdict"], first.json["by"]) == (run_id, "false_kill", "ada")
    assert inside(*told, "--json", env=env).json == first.json
    assert inside(*told, env=env).out.split()[:2] == ["verdict", "false_kill"]
    shown = inside("runs", "show", run_id, "--json", env=env).json
    assert shown["timeout_verdict"] == {"verdict": "false_kill", "by": "ada", "at": first.json["at"]}
    (entry,) = inside("runs", "audit", run_id, "--json", env=env).json
    assert (entry["action"], entry["reason"]) == ("timeout_verdict", "the report was there")
    other = inside("timeouts", "verdict", run_id, "true_kill", env=env)
    assert other.code == 5
    assert "was judged false_kill by ada" in other.sentence
    with Client(env["MAKEGOOD_REDIS_URL"]) as client:
        known = client.run_flow(load_limits())
    assert known.kills == {"support": FalseKills(0, 1, 0)}
    assert any("(1 of 1)" in note for each in known.rows if each.name == "support" for note in each.notes)


@pytest.mark.contract("A8")
def test_a_run_that_did_not_time_out_is_a_conflict_and_one_that_is_not_there_is_not_found(
    env: dict[str, str], world: World
) -> None:
    """Exit codes 5 and 3."""
    ran = inside("timeouts", "verdict", world.enqueue(), "unknown", env=env)
    assert ran.code == 5
    assert "a verdict is for runs that timed out" in ran.sentence
    assert inside("timeouts", "verdict", keys.new_run_id(7), "unknown", env=env).code == 3
    assert inside("timeouts", "verdict", "x", "unknown", env=env).code == 3


@pytest.mark.contract("A7", "A8")
def test_the_asyncio_client_does_the_same(env: dict[str, str], world: World) -> None:
    """Set, list, judge, and the same refusals."""
    run_id = timed_out(world)

    async def play() -> None:
        async with AsyncClient(env["MAKEGOOD_REDIS_URL"]) as client:
            changed = await client.set_timeout("step", "support", 5, **WHO)
            assert changed == {"level": "step", "name": "support", "from_s": None, "to_s": 5.0}
            assert await client.timeouts() == [{"level": "step", "name": "support", "limit_s": 5.0}]
            assert [each["actor"] for each in await client.timeout_changes()] == ["ada"]
            with pytest.raises(UnknownAgent):
                await client.set_timeout("step", "nobody", 5, **WHO)
            judged = await client.judge_timeout(run_id, "true_kill", **WHO)
            assert judged["verdict"] == "true_kill"
            with pytest.raises(Conflict):
                await client.judge_timeout(run_id, "false_kill", **WHO)
            with pytest.raises(InvalidInput, match="verdict must be one of"):
                await client.judge_timeout(run_id, "maybe", **WHO)

    asyncio.run(play())


def test_a_store_that_is_not_there_is_exit_code_8() -> None:
    """Of every command."""
    away = environment(MAKEGOOD_REDIS_URL="redis://127.0.0.1:1/0")
    for words in (
        ("report",),
        ("suggest",),
        ("set", "call", "x", "3"),
        ("verdict", keys.new_run_id(7), "unknown"),
    ):
        assert inside("timeouts", *words, env=away).code == 8

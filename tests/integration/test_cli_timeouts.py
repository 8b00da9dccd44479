"""`makegood timeouts` against a real server: what it prints, changes and counts, and how it ends."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from makegood import Agent, AsyncClient, Client, Conflict, InvalidInput, Timeouts, UnknownAgent, agent, tool
from makegood.monitoring.limits import FalseKills, load_false_kills, load_limits
from makegood.store import keys
from makegood.store.ops.breakers import server_time
from makegood.store.ops.catalog import publish_agents
from makegood.store.ops.numbers import HOUR_MS
from makegood.store.states import State
from makegood.tasks.latencies import DAY_MS
from makegood.tasks.rules.latency import bucket
from support.cli import Ran, environment, inside
from support.store import PREFIX, World, real_world
from support.store_ops import end

MODEL = "openai/any"
WHO = {"actor": "ada", "reason": "why not"}


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


@pytest.fixture
def world(store_url: str) -> Iterator[World]:
    """A server to which workers have published three agents."""
    made = real_world("sync", store_url)
    made.do(publish_agents({each.name: each.declaration() for each in (support, quick, code)}))
    yield made
    made.door.close()
    made.raw.close()


@pytest.fixture
def env(store_url: str, world: World) -> dict[str, str]:
    """An environment that names it."""
    return environment(MAKEGOOD_REDIS_URL=store_url)


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


# --- report -----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("A7")
def test_the_report_has_a_row_for_every_tool_and_for_both_levels_of_every_agent(
    env: dict[str, str], world: World
) -> None:
    """Tools first; where a limit comes from; of agents that differ about a tool the shortest."""
    rows = inside("timeouts", "report", "--json", env=env).json
    assert [(r["level"], r["name"], r["threshold_s"], r["source"]) for r in rows] == [
        ("call", "export", 4.0, "agent"),
        ("call", "look_up", 8.0, "tool"),
        ("step", "code", 60.0, "default"),
        ("run", "code", 300.0, "default"),
        ("step", "quick", 60.0, "default"),
        ("run", "quick", 300.0, "default"),
        ("step", "support", 20.0, "agent"),
        ("run", "support", 300.0, "default"),
    ]
    assert {r["samples"] for r in rows} == {0}
    assert {r["fired"] for r in rows} == {None, 0}
    inside("timeouts", "set", "run", "quick", "45", env=env)
    changed = row(inside("timeouts", "report", "--json", env=env), "run", "quick")
    assert (changed["threshold_s"], changed["source"]) == (45.0, "set")


@pytest.mark.contract("A7")
def test_the_report_shows_percentiles_of_seven_days_over_all_shards(
    env: dict[str, str], world: World
) -> None:
    """P50, P95, P99 and the longest, each within 5 %; older days do not count; how often limits fired."""
    measured(world, "tool:look_up", {0.1: 90, 1.0: 9, 3.0: 1})
    measured(world, "tool:look_up", {0.1: 90, 1.0: 9, 3.0: 1}, days_ago=6)
    measured(world, "tool:look_up", {7.9: 5000}, days_ago=7)
    in_hour(world, "timeouts_total|support|step", 2, hours_ago=100)
    in_hour(world, "timeouts_total|support|step", 40, hours_ago=168)
    ran = inside("timeouts", "report", "--json", env=env)
    found = row(ran, "call", "look_up")
    assert found["samples"] == 200
    shown = [found[name] for name in ("p50_s", "p95_s", "p99_s", "max_s")]
    assert shown == [pytest.approx(each, rel=0.05) for each in (0.1, 1.0, 1.0, 3.0)]
    assert row(ran, "step", "support")["fired"] == 2
    plain = inside("timeouts", "report", env=env)
    (line,) = [each for each in plain.out.splitlines() if " look_up " in each]
    assert line.split()[:6] == ["call", "look_up", "8", "s", "tool", "200"]


@pytest.mark.contract("A7")
def test_the_report_can_be_narrowed_to_an_agent_or_a_tool(env: dict[str, str], world: World) -> None:
    """An agent comes with its tools."""
    named = [
        (r["level"], r["name"])
        for r in inside("timeouts", "report", "--agent", "quick", "--json", env=env).json
    ]
    assert named == [("call", "export"), ("step", "quick"), ("run", "quick")]
    (only,) = inside("timeouts", "suggest", "--tool", "look_up", "--json", env=env).json
    assert only["name"] == "look_up"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("report", "--agent", "suport"), "No worker publishes agent 'suport'; did you mean support?"),
        (("suggest", "--tool", "look"), "No worker publishes tool 'look'; did you mean look_up?"),
        (("set", "call", "support", "3"), "No worker publishes tool 'support'; did you mean export?"),
        (
            ("set", "run", "look_up", "3"),
            "No worker publishes agent 'look_up'; known are: code, quick, support.",
        ),
        (("set", "step", "qick", "3"), "No worker publishes agent 'qick'; did you mean quick?"),
    ],
)
def test_unknown_names_are_not_found(env: dict[str, str], words: tuple[str, ...], says: str) -> None:
    """Exit code 3 and the names that come near."""
    ran = inside("timeouts", *words, env=env)
    assert (ran.code, ran.out) == (3, "")
    assert ran.sentence.startswith(says.partition(";")[0])
    assert ran.sentence == says or "did you mean" in says


def test_without_any_worker_there_is_nothing_to_report(env: dict[str, str], world: World) -> None:
    """One sentence that says what to start; what is set by hand is shown all the same."""
    world.raw.delete(keys.CATALOG)
    assert "makegood worker" in inside("timeouts", "report", env=env).err
    assert "makegood worker" in inside("timeouts", "suggest", env=env).err
    assert inside("timeouts", "report", "--json", env=env).json == []
    assert inside("timeouts", "set", "call", "anything", "3", env=env).code == 0
    assert row(inside("timeouts", "report", "--json", env=env), "call", "anything")["threshold_s"] == 3.0


# --- suggest ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("A7")
def test_a_suggestion_is_the_p99_and_three_tenths_and_its_command_sets_it(
    env: dict[str, str], world: World
) -> None:
    """Never from the mean; nothing changes until the command is given; after that there is nothing to suggest."""
    measured(world, "tool:look_up", {0.1: 980, 2.0: 20})
    found = row(inside("timeouts", "suggest", "--json", env=env), "call", "look_up")
    assert found["suggested_s"] == pytest.approx(2.6, rel=0.06)
    assert found["notes"] == []
    assert inside("timeouts", "report", "--tool", "look_up", "--json", env=env).json[0]["threshold_s"] == 8
    shown = inside("timeouts", "suggest", "--tool", "look_up", env=env).out
    (typed,) = [line.strip() for line in shown.splitlines() if "makegood timeouts set" in line]
    assert typed == found["command"]
    assert inside(*shlex.split(typed)[1:], env=env).code == 0
    after = row(inside("timeouts", "suggest", "--json", env=env), "call", "look_up")
    assert (after["threshold_s"], after["source"], after["command"]) == (found["suggested_s"], "set", None)


@pytest.mark.contract("A7")
def test_too_few_samples_are_told_and_a_slow_tool_keeps_its_longest_try(
    env: dict[str, str], world: World
) -> None:
    """99 are not enough; `export` may take as long as it once did."""
    measured(world, "tool:look_up", {0.1: 99})
    measured(world, "tool:export", {0.1: 10_000, 3.9: 1})
    ran = inside("timeouts", "suggest", "--json", env=env)
    few = row(ran, "call", "look_up")
    assert (few["suggested_s"], few["command"]) == (None, None)
    assert "99 samples" in few["notes"][0]
    assert row(ran, "call", "export")["suggested_s"] == 3.9
    assert "99 samples" in inside("timeouts", "suggest", env=env).out


@pytest.mark.contract("A7")
def test_a_percentile_that_a_limit_cut_off_is_told_also_after_the_limit_was_raised(
    env: dict[str, str], world: World
) -> None:
    """2 % took as long as they might: raise it. Then what was cut is still there, and is no reason to lower it again."""
    measured(world, "tool:look_up", {0.1: 980, 8.1: 20})
    cut = row(inside("timeouts", "suggest", "--json", env=env), "call", "look_up")
    assert "raise the limit and look again" in cut["notes"][0]
    assert cut["suggested_s"] > 8
    assert cut["command"]
    inside("timeouts", "set", "call", "look_up", "30", env=env)
    raised = row(inside("timeouts", "suggest", "--json", env=env), "call", "look_up")
    assert raised["notes"] == cut["notes"]
    assert raised["command"] is None
    measured(world, "run:support", {1.0: 100})
    in_hour(world, "timeouts_total|support|run", 2)
    assert (
        "2 % of its samples"
        in row(inside("timeouts", "suggest", "--json", env=env), "run", "support")["notes"][0]
    )


def test_nothing_is_suggested_for_the_steps_of_an_agent_that_is_code(
    env: dict[str, str], world: World
) -> None:
    """What is measured of them is not what their limit covers."""
    measured(world, "step:code", {0.1: 500})
    measured(world, "run:code", {0.1: 500})
    ran = inside("timeouts", "suggest", "--json", env=env)
    assert row(ran, "step", "code")["suggested_s"] is None
    assert row(ran, "run", "code")["suggested_s"] == pytest.approx(0.13, rel=0.06)


@pytest.mark.contract("A8")
def test_a_false_kill_rate_above_its_limit_is_told(env: dict[str, str], world: World) -> None:
    """Over 7 days, of this agent alone; then no command lowers its limits."""
    measured(world, "run:support", {1.0: 500})
    assert row(inside("timeouts", "suggest", "--json", env=env), "run", "support")["command"]
    in_hour(world, "timeout_verdicts_total|support|true_kill", 198, hours_ago=100)
    in_hour(world, "timeout_verdicts_total|support|false_kill", 1)
    in_hour(world, "timeout_verdicts_total|support|false_kill", 7, hours_ago=168)
    ran = inside("timeouts", "suggest", "--json", env=env)
    told = row(ran, "run", "support")
    assert "(1 of 199)" in told["notes"][0]
    assert told["command"] is None
    assert row(ran, "run", "quick")["notes"] == ["There are too few samples: 0 samples, of 100."]
    with Client(env["MAKEGOOD_REDIS_URL"]) as client:
        assert client.run_flow(load_false_kills()) == {"support": FalseKills(198, 1, 0)}


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
        assert client.run_flow(load_false_kills()) == {"support": FalseKills(0, 1, 0)}
        rows = client.run_flow(load_limits())
    assert any("(1 of 1)" in note for each in rows if each.name == "support" for note in each.notes)


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

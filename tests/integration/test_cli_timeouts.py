"""`makegood timeouts report` and `suggest` against a real server: what they print, and how they end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from makegood import Client
from makegood.monitoring.limits import load_limits
from makegood.store import keys
from makegood.tasks.rules.limits import FalseKills
from support.cli import environment, inside
from support.store import World
from support.timeouts import in_hour, measured, published, row


@pytest.fixture
def world(store_url: str) -> Iterator[World]:
    """A server to which workers have published three agents."""
    with published(store_url) as made:
        yield made


@pytest.fixture
def env(store_url: str, world: World) -> dict[str, str]:
    """An environment that names it."""
    return environment(MAKEGOOD_REDIS_URL=store_url)


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
        assert client.run_flow(load_limits()).kills == {"support": FalseKills(198, 1, 0)}

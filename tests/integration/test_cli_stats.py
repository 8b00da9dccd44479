"""`makegood stats` against a real server: hours that a test has written, and what is true at the moment of asking."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from makegood.store import keys
from makegood.store.ops import breakers
from makegood.store.ops.numbers import HOUR_MS
from makegood.store.ops.reads import iso
from makegood.store.sync_store import SyncStore
from support.cli import environment, heard, inside, makegood, started
from support.servers import ServerFactory, kill

NAMES = [
    "window", "at", "agent", "agents", "all", "cleanups", "reviews_opened", "reviews_resolved", "retries_skipped",
    "recoveries", "recovery_seconds", "unknown_outcomes", "redeliveries", "oldest_seconds", "breakers_not_closed",
]  # fmt: skip
AGENT_NAMES = [
    "agent", "runs_enqueued", "runs_finished", "runs_finished_by_outcome", "steps_per_run", "tool_calls_per_run",
    "model_requests_per_run", "timed_out_cleaned", "retried_recovered", "false_kills", "runs_now",
]  # fmt: skip

READS = 1000
"""Of a terminal or a pipe: far more than what is waited for takes."""


class Hours:
    """A store whose hours are written by hand; `ago` counts from the present one."""

    def __init__(self, url: str) -> None:
        self.raw: Any = redis.Redis.from_url(url)
        self.store = SyncStore(url)

    def now_ms(self) -> int:
        """The server's clock."""
        return self.store.do(breakers.server_time())

    def write(self, ago: int, shard: int, **fields: int) -> None:
        """Count in an hour of a shard; `__` stands for the bar between name and labels."""
        key = f"{keys.prefix(shard)}h:{self.now_ms() // HOUR_MS - ago}"
        self.raw.hset(key, mapping={name.replace("__", "|"): value for name, value in fields.items()})

    def put(self, shard: int, agent: str, state: str, run: str, since_ms: float) -> None:
        """A run that is in a state."""
        self.raw.sadd(f"{keys.prefix(shard)}agents", agent)
        self.raw.zadd(keys.state_index(keys.prefix(shard), agent, state), {run: since_ms})
        self.raw.zadd(f"{keys.prefix(shard)}since:{state}", {run: since_ms})


@pytest.fixture
def env(store_url: str) -> dict[str, str]:
    """An environment that names the session's server."""
    return environment(MAKEGOOD_REDIS_URL=store_url)


@pytest.fixture
def hours(store_url: str) -> Iterator[Hours]:
    """The session's server, empty."""
    made = Hours(store_url)
    yield made
    made.raw.close()
    made.store.close()


@pytest.mark.contract("I1")
def test_hours_and_shards_are_added_up(env: dict[str, str], hours: Hours) -> None:
    """The hours of the window and no others; the names in JSON are these, in this order."""
    hours.write(0, 3, runs_finished_total__a__succeeded=2, run_steps__a__sum=7, runs_enqueued_total__a=3)
    hours.write(0, 4, runs_finished_total__a__failed=1, run_calls__a__tool__sum=5, run_calls__a__model__sum=9)
    hours.write(2, 4, runs_finished_total__b__timed_out=1, timed_out_runs_total__b__yes=1)
    hours.write(3, 4, runs_finished_total__a__succeeded=100)
    hours.write(400, 4, runs_finished_total__a__succeeded=1000)
    found = inside("stats", "--since", "2h", "--json", env=env).json
    assert list(found) == NAMES
    assert list(found["all"]) == AGENT_NAMES
    assert [each["agent"] for each in found["agents"]] == ["a", "b"]
    a, b = found["agents"]
    assert (a["runs_enqueued"], a["runs_finished"]) == (3, 3)
    assert a["steps_per_run"] == {"value": 2.333333, "numerator": 7, "denominator": 3}
    assert (a["tool_calls_per_run"]["numerator"], a["model_requests_per_run"]["numerator"]) == (5, 9)
    assert b["timed_out_cleaned"] == {"value": 1.0, "numerator": 1, "denominator": 1}
    assert found["all"]["runs_finished"] == 4
    assert inside("stats", "--json", env=env).json["all"]["runs_finished"] == 104
    assert inside("stats", "--since", "14d", "--json", env=env).json["all"]["runs_finished"] == 104


def test_the_window_is_printed_exactly(env: dict[str, str], hours: Hours) -> None:
    """Whole hours; the present one ends now, by the server's clock."""
    before_ms = hours.now_ms()
    found = inside("stats", "--since", "90m", "--json", env=env).json
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:00:00\.000Z", found["window"]["since"])
    assert found["window"]["until"] == found["at"]
    assert found["window"]["hours"] in (2, 3)
    assert found["at"] >= str(iso(before_ms))
    ended = inside("stats", "--since", "5h", "--until", "3h", "--json", env=env).json["window"]
    assert (ended["hours"], ended["until"][14:]) == (3, "00:00.000Z")


@pytest.mark.contract("I1")
def test_what_is_now_is_told_too(env: dict[str, str], hours: Hours) -> None:
    """Runs per state, the oldest in each, breakers that are not closed."""
    now_ms = hours.now_ms()
    hours.put(1, "a", "queued", "r1", now_ms - 5000)
    hours.put(9, "a", "queued", "r2", now_ms - 90_000)
    hours.put(9, "b", "requires_manual_review", "r3", now_ms - 7_200_000)
    hours.store.do(breakers.set_breaker("warehouse", "open", "ada", ""))
    hours.store.do(breakers.set_breaker("tickets", "close", "ada", ""))
    found = inside("stats", "--json", env=env).json
    assert [each["runs_now"]["queued"] for each in found["agents"]] == [2, 0]
    assert found["all"]["runs_now"]["requires_manual_review"] == 1
    assert 90 <= found["oldest_seconds"]["queued"] < 900
    assert found["oldest_seconds"]["running"] is None
    assert found["breakers_not_closed"] == [{"name": "warehouse", "state": "open", "until": None}]
    told = inside("stats", env=env).out
    assert "oldest now        queued 1 min" in told
    assert "review 2 h" in told
    assert "breakers now      warehouse open\n" in told


def test_a_person_reads_one_row_per_agent_and_one_for_all(env: dict[str, str], hours: Hours) -> None:
    """Shares with what they are made of, a dash where there is no number."""
    hours.write(1, 3, runs_finished_total__a__succeeded=12, runs_finished_total__a__timed_out=1, run_steps__a__sum=26,
                timed_out_runs_total__a__no=1, retried_runs_total__a__succeeded=12, retried_runs_total__a__failed=1,
                runs_enqueued_total__a=14)  # fmt: skip
    lines = inside("stats", env=env).out.splitlines()
    assert re.fullmatch(r"\S+Z to \S+Z, 25 hours", lines[0])
    rows = [re.split(r" {2,}", line) for line in lines[2:5]]
    assert rows[0][:4] == ["AGENT", "ENQUEUED", "ENDED", "STEPS/RUN"]
    numbers = [
        "14",
        "13: 12 succeeded, 1 timed_out",
        "2",
        "0",
        "0",
        "0 % (0 of 1)",
        "92.3 % (12 of 13)",
        "–",
        "0",
    ]
    assert rows[1:] == [["a", *numbers], ["all", *numbers]]


def test_one_agent_alone(env: dict[str, str], hours: Hours) -> None:
    """Its row only; one that nobody has heard of is a typing mistake."""
    hours.write(1, 3, runs_finished_total__a__succeeded=1, runs_finished_total__b__failed=1)
    found = inside("stats", "--agent", "a", "--json", env=env).json
    assert (found["agent"], [each["agent"] for each in found["agents"]]) == ("a", ["a"])
    assert found["all"]["runs_finished"] == 1
    refused = inside("stats", "--agent", "c", env=env)
    assert (refused.code, refused.sentence) == (3, "No worker publishes agent 'c'; known are: a, b.")
    hours.put(1, "support", "queued", "r1", hours.now_ms())
    assert inside("stats", "--agent", "suport", env=env).sentence.endswith("did you mean support?")


@pytest.mark.parametrize(
    "options",
    [
        ("--since", "15d"),
        ("--since", "2099-01-01"),
        ("--since", "1h", "--until", "2h"),
        ("--since", "yesterday"),
        ("--watch", "0"),
    ],
)
def test_what_is_no_window_is_refused(env: dict[str, str], options: tuple[str, ...], hours: Hours) -> None:
    """Exit code 2 and one sentence."""
    ran = inside("stats", *options, env=env)
    assert (ran.code, ran.out) == (2, "")
    assert ran.sentence


def test_an_empty_store_has_numbers(env: dict[str, str], hours: Hours) -> None:
    """All of them none."""
    found = inside("stats", "--json", env=env).json
    assert (found["agents"], found["all"]["runs_finished"]) == ([], 0)
    assert "all    0" in inside("stats", env=env).out


def test_finished_runs_cost_nothing(env: dict[str, str], hours: Hours) -> None:
    """As many commands and as many bytes with 20,000 of them as with one."""
    hours.put(2, "a", "queued", "r0", hours.now_ms())

    def cost() -> tuple[int, int]:
        before = hours.raw.info("stats")
        assert inside("stats", "--since", "14d", "--json", env=env).code == 0
        after = hours.raw.info("stats")
        commands, written = "total_commands_processed", "total_net_output_bytes"
        return after[commands] - before[commands], after[written] - before[written]

    one = cost()
    for state in ("succeeded", "failed"):
        hours.raw.zadd(keys.state_index(keys.prefix(2), "a", state), {f"run-{n}": n for n in range(10_000)})
    many = cost()
    assert abs(many[0] - one[0]) <= 2
    assert many[1] < 1.1 * one[1]


# --- watching -------------------------------------------------------------------------------------------------------


def test_watching_prints_one_object_per_line_until_ctrl_c(env: dict[str, str], hours: Hours) -> None:
    """Each is a look of its own; the end is quiet."""
    with started("stats", "--watch", "0.05", "--json", env=env) as watch:
        assert watch.stdout is not None
        first = json.loads(watch.stdout.readline())
        assert first["all"]["runs_finished"] == 0
        hours.write(0, 3, runs_finished_total__a__succeeded=1)
        looks = (json.loads(watch.stdout.readline()) for _ in range(READS))
        assert any(look["all"]["runs_finished"] == 1 for look in looks)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 130
        assert watch.stderr is not None
        assert watch.stderr.read() == ""


def test_a_store_that_goes_away_is_said_once_and_waited_for(fresh_server: ServerFactory) -> None:
    """One line, then another when it answers again; the numbers go on."""
    server = fresh_server()
    env = environment(MAKEGOOD_REDIS_URL=server.url)
    with started("stats", "--watch", "0.05", "--json", env=env) as watch:
        assert watch.stdout is not None
        json.loads(watch.stdout.readline())
        kill(server)
        (said,) = heard(watch, "The state store at ")
        assert "cannot be reached" in said
        server.start()
        assert heard(watch, "The store answers again.") == ["The store answers again."]
        assert watch.stdout.readline()


def test_a_store_that_was_never_there_is_an_error(tmp_path: Any) -> None:
    """Watching begins with a look."""
    ran = makegood("stats", "--watch", env=environment(MAKEGOOD_REDIS_URL=f"unix://{tmp_path}/none.sock"))
    assert (ran.code, ran.out) == (8, "")
    assert "cannot be reached" in ran.sentence


@pytest.mark.parametrize(("columns", "line"), [("160", "AGENT"), ("70", "  ended        3: 3 succeeded")])
def test_a_terminal_is_redrawn_and_a_narrow_one_gets_a_list(
    env: dict[str, str], hours: Hours, columns: str, line: str
) -> None:
    """No word is cut in the middle."""
    hours.write(0, 3, runs_finished_total__a__succeeded=3)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "makegood", "stats", "--watch", "0.05"]
    more = {"TERM": "xterm", "COLUMNS": columns, "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env | more) as watch:
        os.close(theirs)
        seen = ""
        for _ in range(READS):
            seen += os.read(ours, 65536).decode(errors="replace")
            if seen.count("\x1b[2J") >= 3:
                break
        watch.send_signal(signal.SIGINT)
        with os.fdopen(ours, "rb", buffering=0) as rest:
            assert any(not _more(rest) for _ in range(READS))
        assert watch.wait(60) == 130
    assert seen.count("\x1b[2J") >= 3
    assert line in seen


def _more(terminal: Any) -> bool:
    """Read what is left of a terminal; on Linux its end is an error."""
    try:
        return bool(terminal.read(65536))
    except OSError:
        return False

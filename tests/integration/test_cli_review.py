"""`makegood review`, `runs cleanup` and `runs audit` against a real server: what they print, change, and how they end."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from makegood.cli.cleanup import exit_code
from makegood.cli.enqueue import ended_badly
from makegood.cli.exits import Exit
from makegood.store import keys
from makegood.store.states import State
from makegood.tasks.records import Result
from support.cli import Ran, environment, inside
from support.review import Made, ended, in_review, worked
from support.store import AGENT, SHARD, World, real_world

WHY = ("--actor", "ada", "--reason", "checked with the hotel")
HOTEL = Made("hotel", undo="failed")
FLIGHT = Made("flight", undo="succeeded")
MAIL = Made("mail", status="unknown", args={"to": "c1", "text": "evil \x1b[2J"})
BANNER = Made("banner", effect="irreversible")
ANSWERS = {"hotel": "it may stay", "mail": "it did not", "banner": "it is undone, by hand"}


@pytest.fixture
def world(store_url: str) -> Iterator[World]:
    """An empty server, to prepare runs in."""
    made = real_world("sync", store_url)
    yield made
    made.door.close()
    made.raw.close()


@pytest.fixture
def env(store_url: str, world: World) -> dict[str, str]:
    """An environment that names it."""
    return environment(MAKEGOOD_REDIS_URL=store_url)


def typed(command: str, env: dict[str, str]) -> Ran:
    """A command as it is shown, with a reason in place of the dots."""
    words = shlex.split(command.replace("…", "because"))
    assert words[0] == "makegood"
    return inside(*words[1:], env=env)


@pytest.mark.contract("E11")
def test_the_list_says_who_waits_and_what_about(env: dict[str, str], world: World) -> None:
    """One array for a program, one line each for a person, one sentence when nobody waits."""
    assert inside("review", "list", env=env).err == "No run waits for a person.\n"
    run_id = in_review(world, HOTEL, MAIL)
    (listed,) = inside("review", "list", "--json", env=env).json
    assert (listed["run_id"], listed["state"], len(listed["items"])) == (run_id, "requires_manual_review", 2)
    out = inside("review", "list", env=env).out
    assert run_id in out
    assert "compensation hotel, unknown mail" in out
    assert inside("review", "list", "--agent", "other", "--json", env=env).json == []


@pytest.mark.contract("E11")
def test_the_person_on_call_sees_intent_knowledge_key_and_commands(env: dict[str, str], world: World) -> None:
    """For every open question, on one page; nothing of it can steer the terminal."""
    run_id = in_review(world, FLIGHT, HOTEL, MAIL)
    ran = inside("review", "show", run_id, env=env)
    assert ran.code == 0
    version = world.record(run_id)["version"]
    tail = f"--expected-version {version} --reason …"
    for wanted in (
        "1. Undoing hotel did not succeed.",
        "2. Did mail take effect?",
        'hotel {"customer": "c1"}',
        "failed after 1 try: TOOL_ERROR: The hotel is closed.",
        f"idempotency key {run_id}:{MAIL.call_key}:1",
        f"makegood review mark {run_id} {MAIL.call_key} undone --generation 1 {tail}",
        f"makegood review retry {run_id} {tail}",
        f"makegood review resolve {run_id} {tail}",
        "failed with  BUG: It broke.",
    ):
        assert wanted in ran.out, ran.out
    assert "\x1b" not in ran.out
    assert f"makegood review resume {run_id}" not in ran.out


@pytest.mark.contract("E11")
def test_the_commands_that_are_shown_do_what_they_say(env: dict[str, str], world: World) -> None:
    """Copied from the page, one after the other, until nothing is open; then the run goes on."""
    run_id = in_review(world, HOTEL, MAIL, BANNER)
    for _ in range(5):
        found = inside("review", "show", run_id, "--json", env=env).json
        questions = [each for each in found["items"] if each["open"]]
        if not questions:
            break
        wanted = ANSWERS[questions[0]["tool"]]
        (command,) = (each["command"] for each in questions[0]["answers"] if each["means"] == wanted)
        assert typed(command, env).code == 0
    assert not questions
    shown = inside("review", "show", run_id, env=env).out
    assert "hotel: it may stay." in shown
    assert "mail: it did not take effect." in shown
    assert "banner: it is undone." in shown
    resume = next(each for each in found["decisions"] if " resume " in each["command"])
    ran = typed(resume["command"], env)
    assert (ran.code, ran.out) == (0, "queued\n")


@pytest.mark.contract("E11")
@pytest.mark.parametrize(
    ("how", "state"), [("retry", "cleaning"), ("resume", "queued"), ("resolve", "resolved")]
)
def test_a_decision_prints_the_state_and_is_audited(
    env: dict[str, str], world: World, how: str, state: str
) -> None:
    """With the version that was looked at; the same page a second time is a conflict."""
    run_id = in_review(world, BANNER)
    version = str(inside("review", "show", run_id, "--json", env=env).json["version"])
    ran = inside("review", how, run_id, *WHY, "--expected-version", version, "--json", env=env)
    assert (ran.code, ran.json) == (0, {"run_id": run_id, "state": state, "version": int(version) + 1})
    again = inside("review", how, run_id, *WHY, "--expected-version", version, env=env)
    assert again.code == Exit.CONFLICT
    assert "look at it again" in again.sentence
    (entry,) = inside("runs", "audit", run_id, "--json", env=env).json
    assert [entry[name] for name in ("action", "actor", "reason")] == [how, "ada", "checked with the hotel"]
    assert "checked with the hotel" in inside("runs", "audit", run_id, env=env).out


def test_a_mark_prints_what_the_call_became(env: dict[str, str], world: World) -> None:
    """In a word, or as an object."""
    run_id = in_review(world, HOTEL, MAIL)
    assert inside("review", "mark", run_id, HOTEL.call_key, "undone", *WHY, env=env).out == "undone\n"
    marked = inside("review", "mark", run_id, MAIL.call_key, "done", *WHY, "--json", env=env).json
    assert (marked["became"], marked["call_key"]) == ("succeeded", MAIL.call_key)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        ("review show {ended}", Exit.CONFLICT, "has no review"),
        ("review show {nobody}", Exit.NOT_FOUND, "There is no run"),
        ("review retry {ended} --reason r", Exit.CONFLICT, "is failed, not in review"),
        ("review resume {waits} --reason r", Exit.CONFLICT, "mark the call done or undone"),
        ("review retry {waits}", Exit.USAGE, "Missing option '--reason'"),
        ("review retry {waits} --reason ' '", Exit.USAGE, "reason is mandatory"),
        ("review mark {waits} nothing done --reason r", Exit.NOT_FOUND, "has no call nothing"),
        ("review mark {waits} nothing gone --reason r", Exit.USAGE, "'gone' is not one of"),
        ("runs audit {nobody}", Exit.NOT_FOUND, "There is no run"),
        ("runs cleanup", Exit.USAGE, "name the runs, or pick them"),
        ("runs cleanup {ended}", Exit.USAGE, "Missing option '--reason'"),
        ("runs cleanup {ended} --state failed --reason r", Exit.USAGE, "not both"),
        ("runs cleanup --state failed --reason r", Exit.USAGE, "look with --dry-run first, then give --yes"),
        ("runs cleanup --older soon --dry-run", Exit.USAGE, "write it as 90s, 30m, 1h or 14d"),
        ("runs cleanup --state broken --dry-run", Exit.USAGE, "There is no state"),
    ],
)
def test_what_is_not_possible_is_one_sentence_and_its_exit_code(
    env: dict[str, str], world: World, words: str, code: int, sentence: str
) -> None:
    """And changes nothing."""
    ids = {
        "ended": ended(world, HOTEL),
        "waits": in_review(world, MAIL),
        "nobody": keys.new_run_id(SHARD),
    }
    before = {run_id: world.dump_of(run_id) for run_id in ids.values()}
    ran = inside(*shlex.split(words.format(**ids)), env=env)
    assert (ran.code, ran.out) == (code, "")
    assert sentence in ran.sentence
    assert {run_id: world.dump_of(run_id) for run_id in ids.values()} == before


# --- runs cleanup -----------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11")
def test_a_cleanup_is_looked_at_first_and_then_asked_for(env: dict[str, str], world: World) -> None:
    """The dry run names what will be undone and what is unknown; the request says "requested", not "done"."""
    held = worked(world, [FLIGHT, Made("hotel"), MAIL])
    run_id = held.run_id
    world.put_in_state(run_id, State.FAILED)
    foreseen = inside("runs", "cleanup", run_id, "--dry-run", env=env)
    assert foreseen.code == 0
    assert "would_request  hotel, flight  mail" in foreseen.out
    assert world.state(run_id) == State.FAILED
    ran = inside("runs", "cleanup", run_id, *WHY, "--json", env=env)
    assert (ran.code, ran.json[0]["result"]) == (0, "requested")
    assert world.state(run_id) == State.CLEANING
    assert inside("runs", "audit", run_id, "--json", env=env).json[0]["action"] == "cleanup"
    assert inside("runs", "cleanup", run_id, *WHY, env=env).code == 0


@pytest.mark.contract("E11")
def test_some_of_several_is_partly_done(env: dict[str, str], world: World) -> None:
    """Each run has its line; the exit code says that not all went well."""
    dirty, done, nobody = (
        ended(world, HOTEL),
        ended(world, HOTEL, state=State.SUCCEEDED),
        keys.new_run_id(SHARD),
    )
    ran = inside("runs", "cleanup", dirty, done, nobody, *WHY, "--json", env=env)
    assert ran.code == Exit.PARTLY_DONE
    assert [each["result"] for each in ran.json] == ["requested", "refused", "not_found"]
    assert inside("runs", "cleanup", nobody, *WHY, env=env).code == Exit.NOT_FOUND
    refused = inside("runs", "cleanup", done, *WHY, env=env)
    assert refused.code == Exit.CONFLICT
    assert "--undo-succeeded" in refused.out
    assert inside("runs", "cleanup", done, *WHY, "--undo-succeeded", env=env).code == 0


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([], Exit.FINE),
        (["requested", "nothing_to_do", "already_cleaning", "would_request"], Exit.FINE),
        (["requested", "failed"], Exit.PARTLY_DONE),
        (["not_found", "not_found"], Exit.NOT_FOUND),
        (["refused"], Exit.CONFLICT),
        (["failed"], Exit.FAILED),
        (["refused", "not_found"], Exit.FAILED),
    ],
)
def test_the_exit_code_of_several_runs(results: list[str], code: int) -> None:
    """Fine, partly done, or what was wrong with all of them."""
    assert exit_code([{"result": each} for each in results]) == code


def test_a_filter_cleans_up_without_asking_only_with_yes(env: dict[str, str], world: World) -> None:
    """By state, agent and age."""
    ids = {ended(world, HOTEL), ended(world, HOTEL, state=State.CANCELLED)}
    filtered = ("runs", "cleanup", "--agent", AGENT, "--limit", "10")
    assert inside(*filtered, "--older", "1h", "--dry-run", env=env).err == "There are no such runs.\n"
    seen = inside(*filtered, "--older", "0s", "--dry-run", "--json", env=env).json
    assert {each["run_id"] for each in seen} == ids
    ran = inside(*filtered, *WHY, "--yes", "--json", env=env)
    assert {each["run_id"]: each["result"] for each in ran.json} == dict.fromkeys(ids, "requested")


@pytest.mark.parametrize(("answer", "state"), [("y\n", State.CLEANING), ("n\n", State.FAILED)])
def test_a_person_at_a_terminal_is_asked(
    env: dict[str, str], world: World, answer: str, state: State
) -> None:
    """With what will be undone; a no changes nothing."""
    run_id = ended(world, HOTEL)
    keyboard, terminal = pty.openpty()
    words = [sys.executable, "-m", "makegood", "runs", "cleanup", "--state", "failed", *WHY]
    process = subprocess.Popen(
        words, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, env=env, text=True
    )
    os.close(terminal)
    shown = b""
    while b"Clean up 1 runs?" not in shown:
        shown += os.read(keyboard, 1000)
    os.write(keyboard, answer.encode())
    out, _ = process.communicate(timeout=60)
    os.close(keyboard)
    assert b"undo: hotel" in shown
    assert world.state(run_id) == state
    assert (process.returncode, "requested" in out) == (
        (0, True) if state is State.CLEANING else (130, False)
    )


def test_the_audit_log_of_a_run_nobody_touched_is_empty(env: dict[str, str], world: World) -> None:
    """An empty array, or one sentence."""
    run_id = ended(world, HOTEL)
    assert inside("runs", "audit", run_id, "--json", env=env).json == []
    assert inside("runs", "audit", run_id, env=env).err == "Nobody has asked for anything about the run.\n"


def test_a_cancelled_run_stands_in_the_same_log(env: dict[str, str], world: World) -> None:
    """Cancel and cleanup, oldest first."""
    run_id = world.enqueue()
    inside("runs", "cancel", run_id, *WHY, env=env)
    entries: list[dict[str, Any]] = inside("runs", "audit", run_id, "--json", env=env).json
    assert [(each["action"], each["detail"]) for each in entries] == [("cancel", None)]


def test_whoever_waits_for_a_run_in_review_is_told_where_to_look(env: dict[str, str], world: World) -> None:
    """A cancel is a conflict there; `enqueue --wait` ends with 7, since the run did not succeed."""
    run_id = in_review(world, HOTEL)
    refused = inside("runs", "cancel", run_id, env=env)
    assert (refused.code, f"makegood review show {run_id}" in refused.sentence) == (Exit.CONFLICT, True)
    result = Result.from_dict(inside("runs", "show", run_id, "--json", env=env).json)
    assert f"makegood review show {run_id}" in ended_badly(result)

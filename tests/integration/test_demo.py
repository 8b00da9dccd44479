"""`makegood demo` shows what it promises, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from makegood.cli.demo import show, show_numbers
from makegood.cli.demo_play import Scene
from support.cli import below, environment, gone, heard, started

FOREIGN = {
    "MAKEGOOD_REDIS_URL": "redis://127.0.0.1:1/0",
    "MAKEGOOD_LEESE_S": "1",
    "HTTP_PROXY": "http://127.0.0.1:1",
}
"""What an environment may hold that has nothing to do with the demo."""


@pytest.fixture(scope="module")
def played() -> dict[str, Any]:
    """One demo: its JSON, its exit code, the processes below it while it ran that were still there afterwards."""
    with started("demo", "--json", env=environment() | FOREIGN) as demo:
        heard(demo, "The worker is ready")
        processes = below(demo)
        assert {"valkey-server"} < {each.name() for each in processes}
        out, err = demo.communicate(timeout=200)
    return {**json.loads(out), "code": demo.returncode, "err": err, "gone": gone(processes)}


def scene(played: dict[str, Any], title: str) -> dict[str, Any]:
    """The scene with this title."""
    (found,) = [each for each in played["scenes"] if each["title"].startswith(title)]
    return dict(found)


def test_every_claim_holds(played: dict[str, Any]) -> None:
    """Exit code 0, eight scenes, no claim that does not hold; settings and proxies of the user change nothing."""
    claims = [claim for each in played["scenes"] for claim in each["claims"]]
    assert [claim["text"] for claim in claims if not claim["holds"]] == []
    assert (played["code"], played["ok"], played["err"]) == (0, True, "")
    assert len(played["scenes"]) == 8
    assert len(claims) >= 44


@pytest.mark.contract("D6")
def test_a_lost_answer_does_not_double_its_effect(played: dict[str, Any]) -> None:
    """One ticket, two requests, one key (C8, D6)."""
    lost = scene(played, "An answer is lost")
    assert len(lost["tickets"]) == 1
    assert len(lost["idempotency_keys"]) == 2
    assert len(set(lost["idempotency_keys"])) == 1


@pytest.mark.contract("D7")
def test_a_killed_worker_is_continued_and_doubles_nothing(played: dict[str, Any]) -> None:
    """One crash, one attempt, two processes, one key, one order; continued within a second (bound: ten)."""
    killed = scene(played, "A worker is killed")
    (run,) = killed["runs"]
    assert (run["state"], run["attempts"], run["crashes"], run["steps"]) == ("succeeded", 1, 1, 3)
    assert len(set(killed["workers"])) == len(killed["workers"]) == 2
    assert len(killed["orders"]) == len(set(killed["idempotency_keys"])) == 1
    assert len(killed["idempotency_keys"]) == 2
    assert killed["model_requests"] == 3
    assert 0 <= killed["continued_after_s"] <= killed["repeated_after_s"] + 0.01 < 10


@pytest.mark.contract("C9")
def test_an_open_breaker_keeps_calls_off_the_network(played: dict[str, Any]) -> None:
    """The shop counts as many requests after the rejected call as before it (C9)."""
    opened = scene(played, "A breaker opens")
    assert opened["breaker"]["state"] == "open"
    assert opened["stock_requests"]["before"] == opened["stock_requests"]["after"] == 4


@pytest.mark.contract("C7")
def test_a_retry_that_does_not_fit_is_skipped(played: dict[str, Any]) -> None:
    """Both numbers of the event, and the level that is too short (C7)."""
    skipped = scene(played, "A retry is skipped")
    assert 0 < skipped["left_s"] < skipped["needed_s"]
    assert skipped["level"] == "run"


@pytest.mark.contract("E3")
@pytest.mark.contract("E9")
def test_a_run_that_timed_out_is_undone(played: dict[str, Any]) -> None:
    """Two bookings, two cancellations, the newest first, each under a key of its own; the shop holds none (E3, E9)."""
    undone = scene(played, "A run times out")
    (run,) = undone["runs"]
    assert (run["state"], run["error"]["code"], run["attempts"]) == ("timed_out", "RUN_TIMEOUT", 1)
    assert run["effects"] == {"not_started": 0, "committed": 0, "compensated": 2, "unknown": 0}
    assert (undone["booked"], undone["held"]) == (2, [])
    assert [path.partition("-")[0] for path in undone["cancelled"]] == ["/hotels/H", "/flights/F"]
    assert len(set(undone["undo_keys"])) == 2
    assert all(key.endswith(":undo") for key in undone["undo_keys"])


@pytest.mark.contract("E8")
@pytest.mark.contract("E11")
def test_an_undo_that_fails_goes_to_a_person_whose_retry_finishes_it(played: dict[str, Any]) -> None:
    """Three tries with waits between, no fourth; after the repair one more, and the run ends as it would have (E8, E11)."""
    failed = scene(played, "An undo fails")
    waits, ended = failed["runs"]
    assert (waits["state"], ended["state"]) == ("requires_manual_review", "failed")
    assert (waits["effects"]["compensated"], ended["effects"]["compensated"]) == (1, 2)
    assert failed["hotel_requests"] == {"before": 3, "after": 1}
    first_s, second_s = failed["gaps_s"]
    assert 0.98 < first_s < 10
    assert 1.98 < second_s < 20
    (entry,) = failed["audit"]
    assert (entry["action"], entry["actor"]) == ("retry", "demo")


def test_the_numbers_add_up(played: dict[str, Any]) -> None:
    """What the store counts is what the shop and the model saw."""
    numbers = played["numbers"]
    assert numbers["runs"] == {"succeeded": 4, "failed": 4, "timed_out": 1}
    assert numbers["effects"]["committed"] == numbers["tickets"] + numbers["orders"] == 3
    assert (numbers["effects"]["compensated"], numbers["effects"]["unknown"]) == (4, 0)
    assert (numbers["cleaned"], numbers["reviewed"]) == (2, 1)
    assert numbers["seconds"] < 300


@pytest.mark.contract("I1")
def test_the_table_of_stats_says_what_the_scenes_did(played: dict[str, Any]) -> None:
    """Per agent and for all; the numbers are those of `makegood stats --json`."""
    stats = scene(played, "The numbers")["stats"]
    assert [each["agent"] for each in stats["agents"]] == [
        "buyer",
        "clerk",
        "holidays",
        "stock",
        "support",
        "trips",
    ]
    assert sum(each["runs_finished"] for each in stats["agents"]) == stats["all"]["runs_finished"] == 9
    assert stats["all"]["steps_per_run"]["numerator"] == played["numbers"]["steps"]
    assert stats["all"]["tool_calls_per_run"]["numerator"] == played["numbers"]["calls"]
    assert stats["all"]["model_requests_per_run"]["numerator"] == played["numbers"]["model_requests"]
    assert stats["cleanups"] == {"clean": 2, "partial": 0, "failed": 1}
    assert 0 < stats["recovery_seconds"]["value"] < 60


def test_nothing_is_left_behind(played: dict[str, Any]) -> None:
    """No worker, no server."""
    assert played["gone"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM clean up and are quiet; after SIGKILL the rest follows by itself."""
    with started("demo", env=environment()) as demo:
        heard(demo, "Starting ")
        until_s = time.monotonic() + 60
        while len(processes := below(demo)) < 3:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        demo.send_signal(number)
        out, err = demo.communicate(timeout=60)
        assert demo.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        assert (out, err) == ("", "")
        assert gone(processes)


def test_a_claim_that_does_not_hold_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """A person sees which one; the scene as a whole does not hold."""
    shown = Scene("A scene", "What it is about.", lines=["what happened \x1b[31m"])
    shown.claim("this holds", True)
    shown.claim("this does not", False)
    show(3, shown)
    assert capsys.readouterr().out.splitlines() == [
        "",
        "3. A scene",
        "   What it is about.",
        "",
        r"   what happened \x1b[31m",
        "   ok  this holds",
        "   NOT this does not",
    ]
    assert not shown.holds


def test_a_person_reads_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per kind."""
    effects = {"not_started": 0, "committed": 2, "compensated": 0, "unknown": 0}
    numbers = {"runs": {"failed": 1, "succeeded": 2}, "steps": 5, "calls": 4, "effects": effects}
    numbers |= {"cleaned": 2, "reviewed": 1}
    show_numbers(
        numbers | {"model_requests": 5, "shop_requests": 6, "seconds": 9.9, "ready_s": 5.1}, claims=7
    )
    out = capsys.readouterr().out
    assert "runs      3: 1 failed, 2 succeeded" in out
    assert "effects   0 not started, 2 committed, 0 compensated, 0 unknown" in out
    assert "cleanup   2 runs cleaned up, 1 of them with a person's help" in out

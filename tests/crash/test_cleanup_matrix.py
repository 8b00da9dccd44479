"""The crash matrix of cleanups: wherever one is struck, its run is made good, and nothing is undone or done twice.

In every cell two runs are cleaned up: one that timed out with bookings, a changed file, a lock and two calls of which nobody
heard the end; and one that failed after a mail, which a person has to decide about.
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

from crash import test_matrix
from makegood.store import faults
from makegood.store.scripts import load_script
from makegood.tasks.client import Run
from support.crash import Field, MakeField, Worker
from support.engine import eventually
from support.made_good import CLEANUP_AGENTS, MEND, assert_made_good
from support.proxy import lossy
from support.servers import ServerFactory, kill

POINTS = (
    "before_cleanup_claim",
    "after_cleanup_claim",
    "before_verify",
    "before_verdict",
    "after_verdict",
    "before_probe",
    "before_repeat",
    "before_settled",
    "after_settled",
    "before_rollback",
    "before_rolled_back",
    "after_rolled_back",
    "before_undo",
    "after_undo_intent",
    "mid_compensation",
    "before_undo_outcome",
    "after_undo_outcome",
    "before_release",
    "after_release",
    "before_cleanup_release",
    "before_cleanup_end",
    "after_cleanup_end",
)

SOME_POINTS = (
    "after_cleanup_claim",
    "before_verdict",
    "before_repeat",
    "before_rolled_back",
    "mid_compensation",
    "before_undo_outcome",
    "before_cleanup_end",
)
"""One of each part."""

MAY_REPEAT = {"mid_compensation", "before_undo_outcome"}
"""Between an effect and its record: killed there, an undo is sent again under its key."""

LEFT = ["flight", "hotel", "note", "clutch", "found", "again"]

SCRIPTS = (
    "claim_cleanup",
    "note_cleanup",
    "judge_timeout",
    "settle_call",
    "settle_resource",
    "start_undo",
    "end_undo",
    "free_lock",
    "unregister_lock",
    "release_cleanup",
    "end_cleanup",
    "open_review",
)
"""What a cleanup writes."""


def enqueue_late(field: Field, *more: str) -> Run:
    """The run that times out, with further calls."""
    (field.plan.folder / "late.0.2.txt").write_text("before")
    return field.enqueue([*LEFT, *more], name="late", agent=MEND)


def enqueue_mailed(field: Field) -> Run:
    """The run that a person has to decide about."""
    return field.enqueue(["flight", "mail"], ["give_up"], name="mailed", agent=MEND)


def struck(field: Field, point: str) -> Run:
    """The run that times out, once its cleanup is struck at the point."""
    more = (
        ("missed",) if point == "before_cleanup_release" else ()
    )  # what may still land lets its cleanup wait
    late = enqueue_late(field, *more)
    field.plan.wait_fired(point)
    return late


def assert_both(field: Field, late: Run, mailed: Run, *, undo_repeats: int = 0) -> None:
    """Both are where they belong, each effect was undone once, and the counters say so."""
    found = assert_made_good(field)
    result = late.result()
    assert (result.state, result.error and result.error.code) == ("timed_out", "STEP_TIMEOUT")
    effects = result.effects
    assert (effects.committed, effects.compensated, effects.unknown) == (0, 5, 0)
    undos = [row["compensation"] for run in (late, mailed) for row in run.journal() if row["compensation"]]
    assert [undo["tries"] for undo in undos] == [1] * 6  # a lost worker is not a try (invariant 9)
    assert mailed.status() == "requires_manual_review"
    assert (mailed.result().effects.committed, mailed.result().effects.compensated) == (1, 1)
    assert [item["kind"] for item in field.client.review(mailed.id)["items"]] == ["irreversible"]
    assert (field.shop.flights, field.shop.hotels, field.shop.tickets) == ([], [], [])
    assert [order["item"] for order in field.shop.orders] == ["mailed.0.1"]
    undone = Counter(field.shop.keys("DELETE", "/"))
    assert len(undone) == 5
    assert undone.total() <= 5 + undo_repeats
    want = {
        f"timed_out_runs_total|{MEND}|yes": 1,
        f"timeout_verdicts_total|{MEND}|true_kill": 1,
        f"cleanups_total|{MEND}|timeout|clean": 1,
        f"cleanups_total|{MEND}|failure|failed": 1,
        f"reviews_total|{MEND}|IRREVERSIBLE": 1,
        "compensations_total|flight|succeeded": 2,
        "compensations_total|hotel|succeeded": 1,
        "unknown_outcomes_total|found|happened": 1,
        "unknown_outcomes_total|again|happened": 1,
    }
    assert {name: found.want[name] for name in want} == want


def start(field: Field, runs: int = 1, cleaners: int = 1, **settings: Any) -> Worker:
    """A worker for runs and cleanups."""
    return field.worker(runs, cleaners=cleaners, agents=CLEANUP_AGENTS, **settings)


def test_every_fault_point_is_struck_here_or_in_the_matrix_of_runs() -> None:
    """A new point needs a cell."""
    assert {*POINTS, *test_matrix.POINTS} == faults.POINTS


@pytest.mark.contract("E3", "E9")
@pytest.mark.parametrize("point", POINTS)
def test_a_cleanup_whose_process_is_killed_is_finished_by_the_other_process(
    ground: Field, point: str
) -> None:
    """SIGKILL of the process that passes the point."""
    ground.plan.set(point, "kill")
    start(ground, cleaners=2).ready()
    late = struck(ground, point)
    assert_both(ground, late, enqueue_mailed(ground), undo_repeats=int(point in MAY_REPEAT))


@pytest.mark.contract("E8", "E9")
@pytest.mark.parametrize(
    "point", ["mid_compensation", "before_undo_outcome", "before_cleanup_end", "after_cleanup_end"]
)
def test_a_cleanup_that_ends_with_a_person_is_killed_and_gets_there(ground: Field, point: str) -> None:
    """One review, counted once; the other run comes after it."""
    ground.plan.set(point, "kill")
    start(ground, cleaners=2).ready()
    mailed = enqueue_mailed(ground)
    ground.plan.wait_fired(point)
    late = enqueue_late(ground)
    assert_both(ground, late, mailed, undo_repeats=int(point in MAY_REPEAT))


@pytest.mark.contract("E9")
@pytest.mark.parametrize("point", SOME_POINTS)
def test_a_cleanup_whose_worker_is_told_to_stop_is_finished_by_the_next_worker(
    ground: Field, point: str
) -> None:
    """SIGTERM of the whole worker while its cleanup is at the point."""
    ground.plan.set(point, "hold")
    first = start(ground).ready()
    late = struck(ground, point)
    second = start(ground)
    first.signal(signal.SIGTERM)
    ground.plan.release(point)
    second.ready()
    assert first.wait() == 0
    assert_both(ground, late, enqueue_mailed(ground))


@pytest.mark.contract("E9")
@pytest.mark.parametrize("point", SOME_POINTS)
def test_a_cleanup_goes_on_when_its_server_is_killed_and_comes_back(
    make_field: MakeField, fresh_server: ServerFactory, point: str
) -> None:
    """SIGKILL of store and broker, which are one server here, while the cleanup is at the point; the data is on disk."""
    server = fresh_server()
    field = make_field(server.url)
    field.plan.set(point, "hold")
    start(field).ready()
    late = struck(field, point)
    kill(server)
    field.plan.release(point)
    server.start()
    assert_both(field, late, enqueue_mailed(field))


@pytest.mark.contract("E9")
def test_a_cleanup_does_nothing_twice_though_it_never_hears_the_first_answer_of_any_script(
    ground: Field,
) -> None:
    """The server has executed, the connection is cut, the operation is sent again: for each script of a cleanup once."""
    with lossy(ground.url) as proxy:
        for name in SCRIPTS:
            proxy.cut(load_script(name).sha.encode())
        start(ground, redis_url=proxy.url).ready()
        runs = enqueue_late(ground, "missed"), enqueue_mailed(ground)
        assert_both(ground, *runs)
        assert [cut.when for cut in proxy.cuts] == []
        assert proxy.lost == len(SCRIPTS)


@pytest.mark.contract("E8")
def test_when_the_host_of_a_cleanup_is_gone_another_takes_over_after_the_lease(ground: Field) -> None:
    """One worker for runs, two for cleanups; the one that compensates is killed with everything below it."""
    ground.plan.set("mid_compensation", "hold")
    ground.worker(1, agents=CLEANUP_AGENTS).ready()
    first = start(ground, runs=0, lease_s=2).ready()
    late, mailed = struck(ground, "mid_compensation"), enqueue_mailed(ground)
    second = start(ground, runs=0, lease_s=2).ready()
    first.kill()
    eventually(lambda: first.code is not None, "it is gone")
    assert_both(ground, late, mailed, undo_repeats=2)
    assert second.code is None
    assert late.result().crashes == 1

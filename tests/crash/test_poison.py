"""Poison ends alone (invariant 10), and no run is continued for ever."""

from __future__ import annotations

import pytest

from makegood.store.keys import prefix_of
from makegood.store.ops.leases import lose_worker
from support.crash import PATIENCE_S, Field
from support.engine import eventually
from support.made_good import assert_made_good


@pytest.mark.contract("D8")
@pytest.mark.parametrize("tool", ["poison", "poison_sync"])
def test_a_run_that_kills_its_process_ends_alone_and_no_other_run_fails(ground: Field, tool: str) -> None:
    """Two deaths make it a suspect; after three more, alone in quarantine, a person has it. The runs beside it all succeed."""
    worker = ground.worker(concurrency=10, cleaners=1).ready()
    others = [ground.enqueue(["ticket", "wait_for_file"], ["ticket"], name=f"other{n}") for n in range(4)]
    eventually(lambda: ground.plan.count("waiting") >= 4, "the others are in a call", PATIENCE_S)
    bad = ground.enqueue([tool], name="bad")
    eventually(lambda: ground.plan.count("poison") >= 2, "two processes have died of it", PATIENCE_S)
    for other in others:
        (ground.plan.folder / f"{ground.tasks[other.id]['name']}.0.1.open").touch()
    result = bad.wait(PATIENCE_S)
    assert (result.state, result.error and result.error.code) == ("requires_manual_review", "CRASHED")
    assert {item["kind"] for item in ground.client.review(bad.id)["items"]} == {"unknown", "poison"}
    assert result.crashes == 5
    assert ground.plan.count("poison") == 5, "cleanup does not send it again"
    assert "quarantine" in worker.log
    assert_made_good(ground)
    assert [other.result().state for other in others] == ["succeeded"] * 4


def test_a_suspect_that_proves_itself_goes_back_among_the_others(ground: Field) -> None:
    """A run that was only beside the poison has its call recorded in quarantine and goes on in an ordinary process."""
    ground.worker(concurrency=10).ready()
    innocent = ground.enqueue(["wait_for_file"], ["ticket"], name="innocent")
    eventually(lambda: ground.plan.count("waiting") >= 1, "it is in a call", PATIENCE_S)
    for number in range(1, 3):
        (ground.plan.folder / "innocent.0.0.open").unlink(missing_ok=True)
        waiting = ground.plan.count("waiting")
        ground.plan.set("mid_tool", "kill")
        ground.enqueue(["ticket"], name=f"killer{number}")
        ground.plan.wait_fired("mid_tool")
        eventually(lambda n=waiting: ground.plan.count("waiting") > n, "it is in its call again", PATIENCE_S)
    (ground.plan.folder / "innocent.0.0.open").touch()
    ground.assert_clean()
    kinds = [event["type"] for event in innocent.events()]
    assert innocent.result().crashes == 2
    assert kinds.count("run.handed_over") == 1


def test_a_suspect_that_another_host_reported_finds_a_quarantine_process(ground: Field) -> None:
    """Its own supervisor is gone: every supervisor looks for suspects."""
    worker = ground.worker(constants={"workers.supervisor.SUSPECTS_S": 0.5}).ready()
    run = ground.enqueue(["wait_for_file"], name="alone")
    for number in range(1, 3):
        eventually(lambda n=number: ground.plan.count("waiting") >= n, "it is in its call", PATIENCE_S)
        name = str(run.info()["worker"])
        ground.client.store.do(lose_worker(prefix_of(run.id), name, only_expired=False, death=True))
        ground.client.publisher.wake(run.id)
    eventually(lambda: ground.plan.count("waiting") == 3, "it is in its call, alone", PATIENCE_S)
    (ground.plan.folder / "alone.0.0.open").touch()
    ground.assert_clean()
    assert len(worker.children()) == 2


@pytest.mark.contract("C11")
def test_a_run_that_loses_its_worker_more_than_ten_times_in_one_attempt_begins_a_new_one(
    ground: Field,
) -> None:
    """At most ten continuations per attempt, whoever was at fault."""
    ground.worker().ready()
    run = ground.enqueue(["wait_for_file"], name="lost")
    for number in range(1, 12):
        eventually(lambda n=number: ground.plan.count("waiting") >= n, "it is in its call", PATIENCE_S)
        worker = str(run.info()["worker"])
        ground.client.store.do(lose_worker(prefix_of(run.id), worker, only_expired=False, death=False))
        ground.client.publisher.wake(run.id)
    eventually(lambda: ground.plan.count("waiting") == 12, "it is in its call in a new attempt", PATIENCE_S)
    (ground.plan.folder / "lost.0.0.open").touch()
    result = run.wait(PATIENCE_S)
    assert (result.state, result.attempts, result.crashes) == ("succeeded", 2, 11)
    ground.assert_clean()

"""A cleanup that takes its processes down ends alone, with a person (invariant 10)."""

from __future__ import annotations

import pytest

from support.crash import PATIENCE_S, Field
from support.engine import eventually
from support.made_good import CLEANUP_AGENTS, MEND, assert_made_good

SOON = {"workers.supervisor.SUSPECTS_S": 0.5}


@pytest.mark.contract("D8")
@pytest.mark.parametrize("apart", [False, True], ids=["one worker", "runs and cleanups apart"])
def test_a_compensation_that_kills_its_process_reaches_a_person_and_no_other_run_does(
    ground: Field, apart: bool
) -> None:
    """Two deaths make it a suspect, three more alone are enough; what was undone beside it is undone."""
    runs = ground.worker(1, cleaners=0 if apart else 1, agents=CLEANUP_AGENTS, constants=SOON).ready()
    if apart:
        ground.worker(0, cleaners=1, agents=CLEANUP_AGENTS).ready()
    others = [
        ground.enqueue(["guarded", "flight"], ["give_up"], name=f"other{n}", agent=MEND) for n in range(3)
    ]
    eventually(lambda: ground.plan.count("guarded") >= 3, "the others are compensated", PATIENCE_S)
    bad = ground.enqueue(["flight", "bomb"], ["give_up"], name="bad", agent=MEND)
    eventually(lambda: ground.plan.count("bomb") >= 2, "two processes have died of it", PATIENCE_S)
    for other in others:
        (ground.plan.folder / f"{ground.tasks[other.id]['name']}.0.0.open").touch()
    result = bad.wait(PATIENCE_S)
    assert result.state == "requires_manual_review"
    assert ground.client.review(bad.id)["items"][0]["kind"] == "poison"
    assert (result.crashes, ground.plan.count("bomb")) == (5, 5)
    assert "quarantine" in runs.log
    assert_made_good(ground)
    assert [other.result().state for other in others] == ["failed"] * 3
    assert all(other.result().effects.compensated == 2 for other in others)
    assert sorted(flight["to"] for flight in ground.shop.flights) == ["bad.0.0", "bad.0.1"]

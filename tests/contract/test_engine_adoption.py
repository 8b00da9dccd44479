"""A run whose end the store refuses for good is not taken up again for ever, nor forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from makegood.monitoring import sentry
from makegood.store.ops import leases, runs
from makegood.store.scripts import Op
from makegood.testing import Reply
from makegood.workers.adoptions import MAX_ADOPTIONS
from support.engine import LONG_S, MakeProvider, Workers, eventually, make_agent


def refused(**_: Any) -> Op[Any]:
    """An operation at which the server always fails."""
    return Op(None, (), ("HGET", "too", "many", "words"), lambda reply: reply)


def test_a_run_that_cannot_be_ended_goes_to_a_person(
    worker: Workers, model: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process takes up each claim three times, reports it once and gives the run up; the bound on losses ends that.

    The model is asked once: its answer was durable.
    """
    reports: list[str] = []
    monkeypatch.setattr(sentry, "report_bug", lambda error, tags: reports.append(str(error)))
    monkeypatch.setattr(runs, "end_run", refused)
    monkeypatch.setattr(leases, "MAX_CONTINUATIONS", 1)
    agent = make_agent(provider := model([Reply("done")]), max_attempts=1)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)

    def beaten() -> bool:
        runtime.heartbeat.soon()  # a lease is not waited for
        return run.status() == "requires_manual_review"

    eventually(beaten, "a person has it", LONG_S)
    said = f"Run {run.id} was taken up {MAX_ADOPTIONS} times by worker {runtime.worker}, which could not end it; it gives it up."
    # A first claim, one continuation, and the claim that was to end it.
    assert [text for text in reports if "it gives it up" in text] == [said] * 3
    assert sum("refused" in text for text in reports) == 3 * (1 + MAX_ADOPTIONS)
    assert len(provider.requests) == 1
    assert run.info()["error"]["code"] == "CRASHED"
    assert not runtime.attempts

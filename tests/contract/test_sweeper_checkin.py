"""Sentry hears that runs are swept, and that they are not: the cron monitor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from makegood.store.async_store import AsyncStore
from makegood.store.ops.turns import take_turn
from makegood.workers.duties import checkin
from support.engine import MakeProvider, Workers, eventually, make_agent
from support.sentry import Kept, kept

__all__ = ["kept"]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check-ins come all the time. What has not worked for a minute has failed, as ever, so that a stall is no failure."""
    monkeypatch.setattr(checkin, "EVERY_S", 0.1)
    monkeypatch.setattr(checkin, "TURN_MS", 50)


def test_a_worker_that_sweeps_checks_in(
    worker: Workers, model: MakeProvider, kept: Kept, often: None
) -> None:
    """And again, when the next one is due."""
    worker.start(make_agent(model()))
    eventually(lambda: len(kept.check_ins) >= 2, "two check-ins")
    assert {each["status"] for each in kept.check_ins} == {"ok"}
    assert {each["monitor_slug"] for each in kept.check_ins} == {"makegood-sweeper"}


def test_a_worker_whose_sweeping_fails_says_so(
    worker: Workers, model: MakeProvider, kept: Kept, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One duty that never works is enough; how long the others take is of no account."""

    async def fails(*_: Any) -> None:
        raise RuntimeError("no round of it works")

    monkeypatch.setattr("makegood.workers.duties.parked.run_once", fails)
    monkeypatch.setattr(checkin, "FAILED_S", 0.5)
    worker.start(make_agent(model()))
    eventually(lambda: any(each["status"] == "error" for each in kept.check_ins), "a check-in with an error")
    assert {each["status"] for each in kept.check_ins} == {"error"}


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[AsyncStore]:
    """An empty one."""
    opened = AsyncStore(store_url)
    yield opened
    await opened.aclose()


async def test_of_many_processes_one_checks_in_a_minute(store: AsyncStore, kept: Kept) -> None:
    """A failure is told by each, since the store may be what is away; without Sentry nothing is asked of the store."""
    for worker in ("w1", "w2", "w3"):
        await checkin.run_once(store, worker, swept=True)
    assert [each["status"] for each in kept.check_ins] == ["ok"]
    for worker in ("w1", "w2"):
        await checkin.run_once(store, worker, swept=False)
    assert [each["status"] for each in kept.check_ins] == ["ok", "error", "error"]


async def test_a_turn_that_is_asked_for_twice_is_answered_alike(store: AsyncStore) -> None:
    """A lost reply loses no check-in."""
    asking = take_turn("t", "w1/1", 30_000)
    assert [await store.do(asking), await store.do(asking)] == [True, True]
    assert await store.do(take_turn("t", "w2/1", 30_000)) is False

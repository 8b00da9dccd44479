"""A worker's lease as its child processes see it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from makegood.settings import Settings
from makegood.spawn import Ending, spawn
from makegood.store.ops.leases import Beat
from makegood.store.ops.numbers import WorkerFacts
from makegood.tasks.body import Cut, supervise
from makegood.tasks.cancel import Cancel
from makegood.tasks.lease_page import LeasePage, lease_seen
from makegood.tasks.rules.deadline import Deadline
from makegood.workers.heartbeat import Heartbeat, Round
from makegood.workers.runtime import Runtime


@pytest.fixture(params=["memfd", "unlinked"])
def make_page(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], LeasePage]:
    """Both kinds of memory."""
    if request.param == "unlinked":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    return LeasePage


def test_what_a_worker_renews_is_what_its_child_sees(make_page: Callable[[float], LeasePage]) -> None:
    """Valid, over, and valid again, without a word between the two."""
    now_s = time.monotonic()
    page = make_page(now_s + 60)
    seen = lease_seen(os.dup(page.fd))
    answers = []
    for until_s in (now_s + 60, now_s, now_s + 60):
        page.renew(until_s)
        answers.append((page.valid(), seen()))
    assert answers == [(True, True), (False, False), (True, True)]


def test_a_child_keeps_no_descriptor_that_its_own_children_would_get(
    make_page: Callable[[float], LeasePage],
) -> None:
    """Neither side leaves one open for longer than it is used."""
    page = make_page(0)
    mine, handed_on = page.fd, os.dup(page.fd)
    seen = lease_seen(handed_on)
    del page
    for fd in (mine, handed_on):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    assert not seen()


async def test_a_body_whose_run_is_lost_is_told_to_stop_before_the_lease_is_valid_again() -> None:
    """After a freeze: the round that renews the lease is the one that says what was lost meanwhile."""
    runtime = Runtime(Settings(), {})
    runtime._loop.close()
    runtime._loop = asyncio.get_running_loop()
    runtime.heartbeat = Heartbeat(
        "redis://127.0.0.1:1",
        "w",
        10,
        5,
        held=dict,
        loop_answered_s=lambda: 0.0,
        on_beat=lambda _: None,
        facts=lambda: WorkerFacts("w", "runs", 1, 0.0, 0),
    )
    lease, cancel, ending = runtime.heartbeat.lease, Cancel(), Ending()
    lease.renew(0)
    seen: list[bool] = []

    def stop() -> None:
        seen.append(lease.valid())
        ending.set((False, asyncio.CancelledError()))

    lost: Any = SimpleNamespace(claim=SimpleNamespace(fence="1:a"), cancel=cancel)
    runtime.attempts["run"] = lost
    body: Any = SimpleNamespace(ending=ending, stop=stop)
    deadline = Deadline(time.monotonic() + 60, "call")
    supervised = supervise(body, deadline=deadline, cancel=cancel, abandon=Cancel(), on_hang=never)
    task = spawn(supervised, name="body")
    await asyncio.sleep(0)
    runtime._heard(Round({"run": "1:a"}, [Beat(("run",), ())], time.monotonic() + 10))
    assert await task == Cut(None, "disposed")
    assert seen == [False]
    assert lease.valid()


async def never(hung_s: float) -> None:
    """It does not hang."""
    raise AssertionError(hung_s)

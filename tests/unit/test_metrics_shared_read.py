"""One read for all who ask at the same time, and a limit for each of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from makegood.errors import StoreUnreachable
from makegood.monitoring.shared_read import SharedRead
from support.engine import eventually

LONG_S = 60.0


class Source:
    """What is read: counts how often, and answers when it may."""

    def __init__(self) -> None:
        self.reads, self.may_answer, self.error = 0, threading.Event(), None  # type: int, threading.Event, Exception | None
        self.asked = threading.Event()

    def read(self) -> int:
        self.reads += 1
        self.asked.set()
        self.may_answer.wait(LONG_S)
        if self.error is not None:
            raise self.error
        return self.reads


@pytest.fixture
def source() -> Source:
    """One that does not answer yet."""
    return Source()


def test_those_who_ask_at_the_same_time_share_one_read(source: Source) -> None:
    """Ten scrapes are one look at the store; the next one is a new look."""
    shared = SharedRead("The store", source.read, limit_s=LONG_S)
    begun = threading.Barrier(11)

    def ask() -> int | None:
        shared.begin()
        begun.wait(LONG_S)
        return shared.result()

    with ThreadPoolExecutor(10) as pool:
        waiting = [pool.submit(ask) for _ in range(10)]
        begun.wait(LONG_S)
        source.may_answer.set()
        got = [each.result(LONG_S) for each in waiting]
    assert got == [1] * 10
    assert shared.get() == source.reads == 2


def test_nobody_waits_longer_than_the_limit_for_a_read_that_hangs(source: Source) -> None:
    """And as long as it hangs, no second thread is given to it; when it comes back, so do the values."""
    shared = SharedRead("The store", source.read, limit_s=0.05)
    assert [shared.get() for _ in range(20)] == [None] * 20
    assert source.reads == 1
    assert shared.why == "The store has not answered within 0.05 s; is it running?"
    source.may_answer.set()
    eventually(shared.get, "a value")
    assert shared.why == ""


def test_a_failure_is_no_value_and_one_sentence(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    """Errors of makegood speak for themselves; the log tells when it begins and when it is over, not each time."""
    source.may_answer.set()
    shared = SharedRead("The store", source.read, limit_s=LONG_S)
    source.error = StoreUnreachable("It is away; start it.")
    assert shared.get() is None
    assert shared.why == "It is away; start it."
    source.error = ValueError("first\nsecond")
    assert shared.get() is None
    assert shared.why == "The store could not be read (ValueError: first)."
    source.error = None
    assert shared.get() == 3
    assert [record.message for record in caplog.records] == [
        "It is away; start it.",
        "The store answers again",
    ]


def test_a_fresh_value_is_not_read_again_and_an_old_one_is_handed_out_meanwhile(source: Source) -> None:
    """Until it is older than what may be kept."""
    source.may_answer.set()
    fresh = SharedRead("Limits", source.read, limit_s=LONG_S, fresh_s=LONG_S, keep_s=LONG_S)
    assert [fresh.get() for _ in range(3)] == [1, 1, 1]
    stale = SharedRead("Limits", source.read, limit_s=LONG_S, fresh_s=0.0, keep_s=LONG_S)
    assert stale.get() == 2
    source.may_answer.clear()
    source.asked.clear()
    assert stale.get() == 2
    assert source.asked.wait(LONG_S)
    source.may_answer.set()
    eventually(lambda: stale.get() != 2, "the new value")

"""The supervisor's decisions that need no process: what counts as a death, who gets a quarantine process, what it survives."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from makegood.settings import Settings
from makegood.tasks.wakeup import CLEANUP_QUEUE, QUARANTINE_QUEUE, RUNS_QUEUE
from makegood.workers import supervisor as module
from makegood.workers.children import Child, Slot, start_child
from makegood.workers.exits import GAVE_UP
from makegood.workers.obituary import Obituary
from makegood.workers.supervisor import Supervisor


class Ended(Child):
    """A process that is over."""

    def bury(self) -> bool:
        return True


def ended(code: int, queue: str = RUNS_QUEUE) -> Ended:
    """A process that was ready and ended with this code; it has no pipe any more."""
    return Ended(Slot(queue, 1), 0, "boot", -1, ready=True, code=code, agents={"support"})


def supervisor(*queues: str) -> Supervisor:
    """One that serves these queues and has started nothing."""
    return Supervisor([Slot(queue, 1) for queue in queues], Settings(), env={}, announce="ready")


def open_files() -> int:
    """How many files this process has open."""
    return sum(1 for _ in Path("/dev/fd").iterdir())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """For which agents' suspects the store was asked; there is always one."""
    found: list[tuple[str, ...]] = []

    def waiting(settings: Settings, agents: Sequence[str]) -> int:
        found.append(tuple(agents))
        return 1

    monkeypatch.setattr(module, "waiting_suspects", waiting)
    return found


@pytest.mark.contract("D8")
@pytest.mark.parametrize(("code", "death"), [(0, False), (GAVE_UP, False), (1, True), (-9, True)])
def test_a_process_that_gave_up_by_itself_is_no_death_of_its_runs(code: int, death: bool) -> None:
    """A stuck loop and a drain without end are nobody's poison."""
    made = supervisor(RUNS_QUEUE)
    made._children.append(ended(code))
    made._reap()
    assert [report.death for _, report in made._reports] == [death]


def test_a_worker_that_serves_no_runs_starts_no_quarantine_process(asked: list[tuple[str, ...]]) -> None:
    """`--queues cleanup`: it has no agents loaded."""
    made = supervisor(CLEANUP_QUEUE)
    made._children.append(ended(0, CLEANUP_QUEUE))
    made._look_for_suspects()
    made._want_quarantine()
    assert (asked, made._due) == ([], [])


def test_a_worker_looks_for_suspects_of_the_agents_that_its_processes_named(
    asked: list[tuple[str, ...]],
) -> None:
    """As soon as one has named them."""
    made = supervisor(RUNS_QUEUE)
    made._look_for_suspects()
    assert asked == []
    made._suspects_at_s = 0
    made._children.append(ended(0))
    made._look_for_suspects()
    assert asked == [("support",)]
    assert [slot.queue for _, slot in made._due] == [QUARANTINE_QUEUE]


def test_a_process_says_what_it_serves_in_pieces_as_they_come() -> None:
    """A pipe may cut a word anywhere, and put heartbeats before and after it."""
    child = ended(0)
    child.agents.clear()
    child.ready = False
    states = []
    for piece in (b".\n.\nser", b"ves a\nserves ", b"b\nread", b"y\n.\n"):
        child.hear(piece)
        states.append(child.ready)
    assert states == [False, False, False, True]
    assert child.agents == {"a", "b"}


def test_a_fork_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No memory for a process: the others go on, no pipe is left open."""

    def no_room() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    made = supervisor(RUNS_QUEUE)
    monkeypatch.setattr(os, "fork", no_room)
    before = open_files()
    made._start(Slot(RUNS_QUEUE, 1))
    assert open_files() == before
    assert [slot.queue for _, slot in made._due] == [RUNS_QUEUE]
    assert (
        "could not be started (Resource temporarily unavailable); it is tried again."
        in capsys.readouterr().err
    )
    with pytest.raises(OSError, match="unavailable"):
        start_child(Slot(RUNS_QUEUE, 1), {}, [])


def test_a_report_that_fails_in_any_way_is_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a broker's library raises, the supervisor and its other processes go on."""

    def broken(*_: object) -> tuple[int, int]:
        raise KeyError("surprise")

    monkeypatch.setattr(module, "report", broken)
    made = supervisor(RUNS_QUEUE)
    made._reports.append((0.0, Obituary("worker", False)))
    made._send_reports()
    assert len(made._reports) == 1
    assert "could not be reported: KeyError: 'surprise'" in capsys.readouterr().err

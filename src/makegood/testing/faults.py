"""Faults at named points of a worker process, planned from a test.

    plan = FaultPlan(tmp_path)                     # in the test
    plan.set("after_intent", "kill")               # the next process that passes the point dies there by SIGKILL
    ...
    plan.wait_fired("after_intent")                # the pid it had
    plan.count("after_intent")                     # how often the point was passed, by all processes

    arm(os.environ["FAULTS"])                      # in the worker, for example where its agents are declared

A plan is a folder, so that it is the same for all processes and outlives them. The points of makegood itself are
`makegood.store.faults.POINTS`; a tool may pass points of its own with `pass_point`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Literal

from makegood.store import faults

Action = Literal["kill", "stop", "hold"]
"""The process dies by SIGKILL, stops by SIGSTOP (SIGCONT lets it go on), or waits until `release`."""

POLL_S = 0.005


class FaultPlan:
    """What is to happen where. The folder must exist."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    # --- in the test ----------------------------------------------------------------------------------------------

    def set(self, point: str, action: Action, *, nth: int = 1) -> None:
        """Plan an action for the nth passing from now on; it happens once, in whichever process comes there."""
        self._at(point, "fired").unlink(missing_ok=True)
        self._at(point, "go").unlink(missing_ok=True)
        draft = self._at(point, "draft")
        draft.write_text(json.dumps({"action": action, "at": self.count(point) + nth}))
        draft.rename(self._at(point, "trap"))

    def count(self, point: str) -> int:
        """How often the point was passed."""
        path = self._at(point, "count")
        return path.stat().st_size if path.exists() else 0

    def fired(self, point: str) -> int | None:
        """The pid of the process in which the action happened; None when it has not."""
        path = self._at(point, "fired")
        return int(path.read_text()) if path.exists() else None

    def wait_fired(self, point: str, within_s: float = 60.0) -> int:
        """Wait for the action. Raises TimeoutError."""
        until_s = time.monotonic() + within_s
        while (pid := self.fired(point)) is None:
            if time.monotonic() > until_s:
                raise TimeoutError(
                    f"nothing came to {point} within {within_s:g} s ({self.count(point)} passings)"
                )
            time.sleep(POLL_S)
        return pid

    def fired_at(self, point: str) -> float:
        """Wall clock at which the action happened."""
        return self._at(point, "fired").stat().st_mtime

    def release(self, point: str) -> None:
        """Let a process that holds go on."""
        self._at(point, "go").touch()

    # --- in the worker --------------------------------------------------------------------------------------------

    def passing(self, point: str) -> Action | None:
        """Count one passing; the action that is due here, already marked as done."""
        number = self._count_one(point)
        trap = self._at(point, "trap")
        try:
            planned = json.loads(trap.read_text())
            if number < planned["at"]:
                return None
            mine = self._at(point, f"taken-{os.getpid()}-{number}")
            trap.rename(mine)
        except FileNotFoundError:
            return None
        mine.write_text(str(os.getpid()))
        mine.rename(self._at(point, "fired"))
        action: Action = planned["action"]
        return action

    def released(self, point: str) -> bool:
        """Whether a process that holds here may go on."""
        return self._at(point, "go").exists()

    def _count_one(self, point: str) -> int:
        fd = os.open(self._at(point, "count"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, b".")
            return os.lseek(fd, 0, os.SEEK_CUR)
        finally:
            os.close(fd)

    def _at(self, point: str, what: str) -> Path:
        return self.folder / f"{point}.{what}"


def arm(folder: Path | str) -> FaultPlan:
    """Let this process follow a plan at all of makegood's points."""
    plan = FaultPlan(folder)

    def hook(point: str) -> None:
        if strike(plan.passing(point)):
            while not plan.released(point):
                time.sleep(POLL_S)

    faults.arm(hook)
    return plan


async def pass_point(plan: FaultPlan, point: str) -> None:
    """Pass a point of a tool's own; to hold does not block the loop."""
    if strike(plan.passing(point)):
        while not plan.released(point):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)  # another process lets it go


def strike(action: Action | None) -> bool:
    """Perform an action; True when the caller is to hold."""
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    return action == "hold"

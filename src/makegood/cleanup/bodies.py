"""How a probe, a compensation or a roll-back runs: like a tool, with the case's limits, cancel and connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from makegood.cleanup.case import Case
from makegood.store.ops.cleanup import note_cleanup
from makegood.tasks.body import BodyResult, Cut, OnHang, Raised, supervise
from makegood.tasks.http import CallFacts
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.failures import ToolFailure, classify_tool_error
from makegood.tasks.runners import TaskBody, TaskRunning, ThreadBody

HANG_S = 15.0
"""Work that does not end so long after it was told to gets its process replaced, since nothing else can end it."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A function of the user or of a built-in kind that takes the context alone."""

    name: str
    fn: Callable[..., Any]
    is_async: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where it stands in the run, under which key it acts, and what is shown while it runs."""

    call_key: str
    attempt: int
    step: int
    key: str
    activity: str


async def run_helper(
    case: Case, helper: Helper, place: Place, limit_s: float | None, on_give_up: OnHang | None = None
) -> BodyResult:
    """Run it within its limit and what is left of the pass. `on_give_up` is told when its process is about to be replaced."""
    deadline = case.deadline.child(limit_s, time.monotonic(), "call")
    if not helper.is_async:
        waited = await _bounded(case, TaskRunning(case.env.threads.reserve(), "slot"), deadline, place, None)
        if isinstance(waited, Cut):
            return waited
    facts = CallFacts(case.run_id, place.key, deadline, case.env.may_act)
    where = {
        "run_id": case.run_id,
        "attempt": place.attempt,
        "step": place.step,
        "call_key": place.call_key,
    }
    if helper.is_async:
        body: TaskBody | ThreadBody = TaskBody(helper, facts, where, case.http, {})
    else:
        body = ThreadBody(helper, facts, where, case.http, {}, case.env.threads)
    return await _bounded(case, body, deadline, place, on_give_up)


async def pause(case: Case, wait_s: float) -> None:
    """Wait between two tries; ends at once when the case stops."""
    place = Place("", 0, 0, "", "waiting")
    await _bounded(case, TaskRunning(asyncio.sleep(wait_s), "pause"), case.deadline, place, None)


async def _bounded(
    case: Case, running: Any, deadline: Deadline, place: Place, on_give_up: OnHang | None
) -> BodyResult:
    return await supervise(
        running,
        deadline=deadline,
        cancel=case.cancel,
        abandon=case.env.abandon,
        on_hang=hang_reporter(case, place, on_give_up),
    )


def hang_reporter(case: Case, place: Place, on_give_up: OnHang | None = None) -> OnHang:
    """Shows that the cleanup hangs, and in what; past `HANG_S` the process is replaced (CONTRACT F8)."""

    async def report(hung_s: float) -> None:
        activity = {"activity": "hanging", "call": place.activity, "call_key": place.call_key}
        shown = orjson.dumps({**activity, "for_s": round(hung_s, 1)})
        await case.env.store.do(note_cleanup(**case.fresh(), activity=shown))
        case.on_stopping.set()
        if hung_s > HANG_S:
            if on_give_up is not None:
                await on_give_up(hung_s)
            case.env.recycle(f"{place.activity} of run {case.run_id} does not end")

    return report


def failure_of(result: Cut | Raised, name: str, limit_s: float | None) -> ToolFailure:
    """What a result that is no value means."""
    if isinstance(result, Raised):
        return classify_tool_error(result.error, repeat=True)
    if result.cause is not None:
        return ToolFailure("infrastructure", "ABORTED", f"{name} was stopped while it was running.")
    shown = "the pass" if limit_s is None else f"{limit_s:g} s"
    return ToolFailure("infrastructure", "TIMEOUT", f"{name} did not end within its limit ({shown}).")

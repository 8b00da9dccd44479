"""How a probe, a compensation or a roll-back runs: like a tool, with the case's limits, cancel and connections."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from makegood.cleanup.case import Case, Item
from makegood.errors import MakegoodError
from makegood.store.ops.cleanup import note_cleanup
from makegood.tasks.body import BodyResult, Cut, OnHang, Raised, Returned, supervise
from makegood.tasks.http import CallFacts
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.failures import ToolFailure, classify_tool_error
from makegood.tasks.runners import TaskBody, TaskRunning, ThreadBody

LEASE_POLL_S = 0.05

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


async def reserve(case: Case, helper: Helper, place: Place) -> bool:
    """A thread for a sync function, before anything says that it runs; False when the case stops first."""
    if not helper.is_async:
        waiting = TaskRunning(case.env.threads.reserve(), "slot")
        if not isinstance(await _bounded(case, waiting, case.deadline, place, None), Returned):
            case.out_of_time = True
            return False
    return True


async def run_helper(
    case: Case, helper: Helper, place: Place, limit_s: float | None, on_give_up: OnHang | None = None
) -> BodyResult:
    """Run it within its limit and what is left of the pass, a sync one in the thread that was reserved.

    `on_give_up` is told when its process is about to be replaced.
    """
    lost = await wait_for_lease(case)
    if lost is not None:
        if not helper.is_async:
            case.env.threads.release()
        return lost
    deadline = case.deadline.child(limit_s, time.monotonic(), "call")
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


async def wait_for_lease(case: Case) -> Cut | None:
    """A worker that was frozen or cut off begins nothing before its lease is renewed (invariant 3); the cut when it stops first."""
    while not case.stops:
        if case.env.may_act():
            await asyncio.sleep(0)  # whoever renewed it tells in this turn that the case is lost
            if not case.cancel.asked:
                return None
        await pause(case, LEASE_POLL_S)
    return Cut(None if case.cancel.asked else "run", case.cancel.cause)


@contextlib.asynccontextmanager
async def guarded(case: Case, item: Item) -> AsyncIterator[None]:
    """What breaks about one call or resource is a question for a person, and does not stop the others (CONTRACT E8)."""
    try:
        yield
    except MakegoodError:
        raise
    except Exception as error:
        report_bug(case, error, item.tool)
        about = item.tool or (item.resource or {}).get("kind", "something")
        message = f"The cleanup of {about} broke: {type(error).__name__}: {error}"[:500]
        case.ask(replace(item, message=message))


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
        if not case.on_stopping.is_set():
            case.on_stopping.set()
            tags = {"agent": case.agent.name, "run_id": case.run_id, "code": "CLEANUP_HANGS"}
            case.env.alert("stuck", f"{place.activity} does not stop", {**tags, "tool": place.activity})
        if hung_s > HANG_S:
            if on_give_up is not None:
                await on_give_up(hung_s)
            case.uses_pass = True  # the process drains now, and that alone would cost nothing
            case.env.recycle(f"{place.activity} of run {case.run_id} does not end")

    return report


def report_bug(case: Case, error: BaseException, tool: str = "") -> None:
    """What a function of the user raised that is a bug of it, or what broke about one call."""
    tags = {"agent": case.agent.name, "tool": tool or None, "run_id": case.run_id, "code": "BUG"}
    case.env.report_bug(error, tags)


def failure_of(result: Cut | Raised, name: str, limit_s: float | None) -> ToolFailure:
    """What a result that is no value means."""
    if isinstance(result, Raised):
        return classify_tool_error(result.error, repeat=True)
    if result.cause is not None:
        return ToolFailure("infrastructure", "ABORTED", f"{name} was stopped while it was running.")
    shown = "the pass" if limit_s is None else f"{limit_s:g} s"
    return ToolFailure("infrastructure", "TIMEOUT", f"{name} did not end within its limit ({shown}).")

"""A cleanup from its claim to its verdict: verify, settle, roll back, compensate, release, decide (CONTRACT E3, E8)."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Literal

import orjson

from makegood.cleanup.case import Case, Item, pass_deadline
from makegood.cleanup.compensate import compensate
from makegood.cleanup.release import release
from makegood.cleanup.rollback import roll_back
from makegood.cleanup.settle import settle
from makegood.cleanup.verify import verify
from makegood.errors import MakegoodError, StaleFence, StoreUnreachable
from makegood.store import faults
from makegood.store.codes import Unsettled
from makegood.store.ops.args import NewEvent
from makegood.store.ops.blobs import spill
from makegood.store.ops.cleanup import end_cleanup, open_review, release_cleanup
from makegood.store.ops.locks import read_locks
from makegood.store.ops.runs import Claim
from makegood.store.states import State
from makegood.tasks.engine.env import Env
from makegood.tasks.flows import run_async
from makegood.tasks.journal import load_journal, row_id
from makegood.tasks.latencies import sample
from makegood.tasks.rollbacks import load_resources
from makegood.tasks.rules import counting
from makegood.tasks.rules.cleaning import PASSES, decide_pass

log = logging.getLogger("makegood.cleanup")


async def open_case(env: Env, claim: Claim) -> Case:
    """The case that a claim stands for, with the run's journal."""
    agent = env.agents[claim.record["agent"]]
    case = Case(env, agent, claim, pass_deadline(agent.timeouts.cleanup))
    case.entries = {entry.row_id: entry for entry in await run_async(env.store, load_journal(case.run_id))}
    return case


async def refuse(env: Env, claim: Claim, message: str) -> None:
    """A case that cannot be opened: its locks are freed, and a person has to look. Raises StaleFence and the like."""
    case = Case(env, env.agents[claim.record["agent"]], claim, pass_deadline(None))
    case.locks = await env.store.do(read_locks(case.run_id))
    await release(case)
    await _open_review(case, "BUG", message, [Item("poison", "BUG", message)])


async def clean(case: Case) -> None:
    """One pass. Never raises for what probes and compensations do."""
    try:
        await _work(case)
        await case.http.aclose()
        await _conclude(case)
    except StaleFence as error:
        log.warning("%s", error)
    except StoreUnreachable as error:
        log.error("run %s: its cleanup could not be recorded: %s", case.run_id, error)
    except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        case.env.report_bug(error, {"agent": case.agent.name, "run_id": case.run_id})
        await _give_up_pass(case, error)
    finally:
        await case.http.aclose()


async def _work(case: Case) -> None:
    if case.poison:
        message = (
            "Its cleanup took down, or lost, every process that executed it; nothing of it was run again."
        )
        case.ask(Item("poison", "POISON", message))
        return
    if case.passes_used >= PASSES:  # the last one did not end by itself
        case.out_of_time = True
        return
    await verify(case)  # before a repeat could finish what had not finished
    await settle(case)
    if case.waits_until_ms is not None or case.out_of_time or case.stops:
        return  # nothing is undone while something may still land
    await _load_residue(case)
    await roll_back(case)
    await compensate(case)
    if not case.stops:
        await release(case)


async def _load_residue(case: Case) -> None:
    """Not before everything is settled: a repeat may declare resources and leave locks like any call."""
    case.resources = await run_async(case.env.store, load_resources(case.run_id))
    case.locks = await case.env.store.do(read_locks(case.run_id))


async def _conclude(case: Case) -> None:
    if case.cancel.asked:  # the worker shuts down, or another one has the case
        await _release(case, 0, used_pass=case.uses_pass)
        return
    verdict = decide_pass(
        unresolved=len(case.items),
        waits_until_ms=case.waits_until_ms,
        out_of_time=case.out_of_time,
        passes_used=case.passes_used,
        for_person=case.run_was_poison,
    )
    if verdict.kind == "wait":
        await _release(case, max(0, verdict.at_ms - case.now_ms()), used_pass=case.uses_pass)
    elif verdict.kind == "again":
        await _release(case, 0, used_pass=True)
    elif verdict.kind == "review":
        await _load_residue(case)
        await release(case)
        await _review(case)
    else:
        await _end(case)


async def _release(case: Case, due_in_ms: int, *, used_pass: bool, target: State | None = None) -> None:
    shown = (
        b"" if due_in_ms == 0 else orjson.dumps({"activity": "settling", "for_s": round(due_in_ms / 1000, 1)})
    )
    op = release_cleanup(
        **case.fresh(), due_in_ms=due_in_ms, used_pass=used_pass, target=target, activity=shown
    )
    faults.point("before_cleanup_release")
    await case.env.store.do(op)
    if due_in_ms == 0:
        await case.env.publish_cleanup(case.run_id)


async def _end(case: Case) -> None:
    target = case.target
    if target == State.QUEUED and not _attempt_may_begin(case):
        # The end of the run undoes more than the way to another attempt: somebody looks again.
        await _release(case, 0, used_pass=False, target=State(case.claim.record["cl_end"]))
        return
    taken_s = time.monotonic() - case.began_s
    # A person has accepted that something stays.
    result: Literal["clean", "partial"] = (
        "partial" if any(row.undo == "kept" for row in case.rows) else "clean"
    )
    op = end_cleanup(
        **case.fresh(),
        target=target,
        result=result,
        latencies=[sample(f"cleanup:{case.agent.name}", taken_s)],
        new_events=[NewEvent("cleanup.ended", {"state": str(target), "result": result})],
    )
    faults.point("before_cleanup_end")
    try:
        state = await case.env.store.do(op)
    except Unsettled:  # a cancel came, which undoes more; it costs a pass, so that this has an end
        await _release(case, 0, used_pass=True)
        return
    faults.point("after_cleanup_end")
    log.info("run %s of agent %s is made good: %s", case.run_id, case.agent.name, state)
    if state == State.QUEUED:
        await case.env.publish(case.run_id)


def _attempt_may_begin(case: Case) -> bool:
    """`total` decides whether another attempt may start; it never cuts a cleanup."""
    record = case.claim.record
    began_ms = int(record.get("resumed_at") or record["started_at"])
    return case.now_ms() - began_ms < case.env.limits.total_s(case.agent) * 1000


async def _review(case: Case) -> None:
    items = list(case.items)
    if case.run_was_poison:
        record = case.claim.record
        items.append(Item("poison", record.get("cl_code", ""), record.get("cl_message", "")))
    if case.out_of_time:
        message = f"The cleanup did not end within {PASSES} passes."
        items.append(Item("timeout", "CLEANUP_TIMEOUT", message))
    first = items[0]
    message = first.message if len(items) == 1 else f"{first.message} ({len(items) - 1} more)"
    await _open_review(case, first.code, message, items)


async def _open_review(case: Case, code: str, message: str, items: list[Item]) -> None:
    body, digests, ahead = spill(case.run_id, orjson.dumps([item.to_dict() for item in items]))
    if ahead:
        await case.env.store.do_all(ahead)
    tools = sorted({item.tool for item in items if item.tool})
    told = case.claim.record.get("rv_told", "").split()
    doubts = {row_id(item.call_key, item.generation): item.tool for item in items if item.kind == "unknown"}
    opened = {"code": code, "items": len(items), "tools": tools[:20]}
    events = [
        NewEvent("cleanup.ended", {"state": str(State.REVIEW), "result": "failed"}),
        NewEvent("review.opened", opened, counts=counting.handed_over(doubts, told)),
    ]
    op = open_review(
        **case.fresh(),
        code=code,
        message=message,
        items=body,
        told=sorted({*told, *doubts}),
        blob_digests=digests,
        new_events=events,
    )
    faults.point("before_cleanup_end")
    times = await case.env.store.do(op)
    faults.point("after_cleanup_end")
    log.error("run %s of agent %s waits for a person: %s", case.run_id, case.agent.name, message)
    if times == 1:  # one alert a run, however often it comes back
        tags = {
            "agent": case.agent.name,
            "run_id": case.run_id,
            "code": code,
            "tool": tools[0] if tools else None,
        }
        case.env.alert("review", message, tags)


async def _give_up_pass(case: Case, error: BaseException) -> None:
    """A defect of ours or of the record uses up the pass; the last one goes to a person."""
    try:
        if case.passes_used + 1 < PASSES:
            await _release(case, 1000, used_pass=True)
        else:
            message = f"The cleanup failed: {type(error).__name__}: {error}"[:500]
            await _load_residue(case)
            await release(case)
            await _open_review(case, "BUG", message, [Item("poison", "BUG", message)])
    except MakegoodError as unheard:
        log.error("run %s: its cleanup could not be recorded: %s", case.run_id, unheard)

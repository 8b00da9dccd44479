"""What a lossy failover has taken from the store is put back by the worker that still knows it (invariant 3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from makegood.errors import MakegoodError, RunNotFound
from makegood.store.ops.args import NewEvent
from makegood.store.ops.restore import KnownRow, read_missing, restore_rows
from makegood.store.states import State
from makegood.tasks.engine.attempt import Attempt
from makegood.tasks.journal import Entry, intent_json, outcome_json
from makegood.tasks.rules.rows import RowError

log = logging.getLogger("makegood.run")


async def salvage(attempt: Attempt) -> None:
    """Put back the calls of this claim whose acknowledged rows the store has lost. Never raises.

    To be asked whenever the run may be someone else's. After a takeover nothing is missing, and one read says so.
    """
    if not attempt.written:
        return
    try:
        missing = await attempt.env.store.do(read_missing(attempt.run_id, list(attempt.written)))
        if missing:
            await _restore(attempt, missing)
    except RunNotFound:
        _report_vanished(attempt)
    except MakegoodError as error:
        log.error("run %s: what the store has lost could not be put back: %s", attempt.run_id, error)
    except Exception as error:
        attempt.env.report_bug(error, {"agent": attempt.agent.name, "run_id": attempt.run_id})


async def _restore(attempt: Attempt, missing: Sequence[str]) -> None:
    rows, digests = [], []
    for row_id in missing:
        row, more = await _known(attempt, row_id)
        rows.append(row)
        digests += more
    op = restore_rows(
        run_id=attempt.run_id, op=attempt.op(), attempt=attempt.number, rows=rows, blob_digests=digests
    )
    restored = await attempt.env.store.do(op)
    if restored.rows:
        text = "run %s: the store has lost acknowledged writes; calls put back: %d; the run is %s"
        log.error(text, attempt.run_id, restored.rows, restored.state)
    if restored.rows and restored.state == State.CLEANING:
        await attempt.env.publish_cleanup(attempt.run_id)


async def _known(attempt: Attempt, row_id: str) -> tuple[KnownRow, list[str]]:
    """A call as it stands in this process; one that is still under way has no known outcome."""
    entry = _closed(attempt.entries[row_id])
    row = entry.row
    intent, digests = await attempt.spilled(intent_json(row))
    outcome, more = await attempt.spilled(outcome_json(entry))
    data = {"tool": row.tool, "status": row.status, "code": None if row.error is None else row.error.code}
    event = NewEvent("tool.ended", {**data, "tries": row.tries, "restored": True}, row.step, row.call_key)
    known = KnownRow(
        row_id,
        intent,
        row.status,
        outcome,
        attempt.written[row_id],
        row.tries,
        row.effect != "read",
        event,
    )
    return known, digests + more


def _closed(entry: Entry) -> Entry:
    row = entry.row
    if row.status not in ("planned", "started"):
        return entry
    message = "The store lost the record of the call while it was under way; its outcome is not known."
    error = RowError("TOOL_OUTCOME_UNKNOWN", message)
    closed = replace(row, status="failed" if row.effect == "read" else "unknown", error=error)
    return replace(entry, row=replace(closed, tries=row.tries + 1))


def _report_vanished(attempt: Attempt) -> None:
    """The enqueue itself was lost: there is no record that could say what was done, so a person is told."""
    made = sorted({attempt.entries[row_id].row.tool for row_id in attempt.written})
    message = f"The store has lost run {attempt.run_id}, which had called {', '.join(made)}; look downstream."
    log.error("%s", message)
    tags = {"agent": attempt.agent.name, "run_id": attempt.run_id, "code": "CRASHED", "tool": made[0]}
    attempt.env.alert("review", message, tags)

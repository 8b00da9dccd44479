"""Runs with a real journal in the places that operators see: ended, in cleaning, in review."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from makegood.store import keys
from makegood.store.ops import cleanup, runs, steps
from makegood.store.states import State
from makegood.tasks.journal import Entry, intent_json, outcome_json, row_id
from makegood.tasks.rules.callkeys import digest, idempotency_key
from makegood.tasks.rules.rows import Effect, Row, RowError, Status
from support.store import AGENT, PREFIX, World
from support.store_ops import Held

FAILED = ("BUG", "It broke.")


@dataclass(frozen=True, slots=True)
class Made:
    """A call of a run: its tool's name, how it ended, how its compensation ended if one was tried."""

    tool: str
    status: Status = "succeeded"
    effect: Effect = "write"
    undo: Literal["", "failed", "unknown", "succeeded"] = ""
    args: dict[str, Any] = field(default_factory=lambda: {"customer": "c1"})

    @property
    def call_key(self) -> str:
        """One call of each tool, so the ordinal is 1."""
        return f"{self.tool}:{digest(self.args)}:1"

    @property
    def row_id(self) -> str:
        """The name of its row."""
        return row_id(self.call_key, 1)

    def row(self, run_id: str, index: int) -> Row:
        """Its journal row as it ends."""
        known = digest(self.args)
        error = None if self.status == "succeeded" else RowError("TOOL_TIMEOUT", "It took too long.")
        return Row(
            call_key=self.call_key, tool=self.tool, attempt=1, step=1, index=index, status=self.status, effect=self.effect,
            identity_digest=known, request_digest=known, args=self.args, error=error,
            response={"id": self.tool} if self.status == "succeeded" else None,
            idempotency_key=idempotency_key(run_id, self.call_key, 1),
        )  # fmt: skip


def worked(world: World, calls: Sequence[Made]) -> Held:
    """A running run that has made these calls in its first step."""
    held = world.running()
    rows = [(each, each.row(held.run_id, index)) for index, each in enumerate(calls)]
    waits = {"planned", "aborted_before_dispatch"}
    intents = [
        steps.RowIntent(
            each.row_id,
            intent_json(row),
            "planned" if each.status in waits else "started",
            each.effect != "read",
        )
        for each, row in rows
    ]
    named = {"run_id": held.run_id, "fence": held.fence}
    world.do(
        steps.write_intent(
            **named,
            step=1,
            base=0,
            op=world.op(),
            counts=True,
            decision=b"{}",
            rows=intents,
        )
    )
    outcomes = [
        steps.RowOutcome(each.row_id, each.status, outcome_json(Entry(row)), 1, each.effect != "read")
        for each, row in rows
        if each.status not in ("started", "planned")
    ]
    if outcomes:
        world.do(steps.record_outcomes(**named, op=world.op(), outcomes=outcomes))
    return held


def ended(world: World, *calls: Made, state: State = State.FAILED, cause: str = "", **over: Any) -> str:
    """A run that ended so; with a `cause` it went to cleaning."""
    held = worked(world, calls)
    how = runs.Cleaning(cause, over.pop("target", state), "policy") if cause else None  # type: ignore[arg-type]
    code, message = FAILED if state is not State.SUCCEEDED else (None, "")
    world.do(
        runs.end_run(
            run_id=held.run_id, fence=held.fence, op=world.op(), state=state, code=code, message=message,
            cleaning=how, **{"output": b'"the report"', **over},
        )
    )  # fmt: skip
    return held.run_id


def claim_cleanup(world: World) -> Held:
    """Claim the cleanup that is due; there must be one."""
    claim = world.do(
        cleanup.claim_cleanup(shard_prefix=PREFIX, nonce=f"n-{world.op()}", worker="cleaner", agents=[AGENT])
    )
    assert claim is not None
    return Held(claim.run_id, claim.fence)


def undo(
    world: World, held: Held, call: Made, status: Literal["failed", "unknown", "succeeded"]
) -> int | None:
    """One try of a compensation; gives its number, None when none is left."""
    named: dict[str, Any] = {"run_id": held.run_id, "fence": held.fence, "row_id": call.row_id}
    begun = world.do(
        cleanup.start_undo(
            **named, op=world.op(), round_=world.number(held.run_id, "cl_round"), tries=3, activity=b"{}"
        )
    )
    if begun.number is None:
        return None
    detail = {
        "error": None if status == "succeeded" else {"code": "TOOL_ERROR", "message": "The hotel is closed."}
    }
    world.do(
        cleanup.end_undo(**named, op=world.op(), tool=call.tool, status=status, detail=orjson.dumps(detail))
    )
    return begun.number


def item_kind(call: Made) -> str | None:
    """What a person is asked about the call whether or not its undo failed."""
    if call.status in ("unknown", "started"):
        return "unknown"
    return "irreversible" if call.effect == "irreversible" else None


def item(call: Made) -> dict[str, Any]:
    """What cleanup writes down about a call that it could not settle."""
    named = {
        "kind": item_kind(call) or "compensation",
        "call_key": call.call_key,
        "generation": 1,
        "tool": call.tool,
    }
    return {**named, "code": "TOOL_ERROR", "message": "The hotel is closed.", "resource": None}


def in_review(
    world: World,
    *calls: Made,
    items: Sequence[dict[str, Any]] | None = None,
    code: str = "COMPENSATION_FAILED",
    state: State = State.FAILED,
    **over: Any,
) -> str:
    """A run whose cleanup gave up, with one question for each call that is unknown, irreversible, or whose undo failed."""
    run_id = ended(world, *calls, state=state, cause="failure", **over)
    held = claim_cleanup(world)
    assert held.run_id == run_id
    for call in calls:
        if call.undo:
            undo(world, held, call, call.undo)
    asked = [item(each) for each in calls if each.undo in ("failed", "unknown") or item_kind(each)]
    world.do(
        cleanup.open_review(
            run_id=run_id, fence=held.fence, op=world.op(), code=code, message="Its cleanup needs a person.",
            items=orjson.dumps(asked if items is None else list(items)),
        )
    )  # fmt: skip
    assert world.state(run_id) == State.REVIEW
    return run_id


def effects(world: World, run_id: str) -> dict[str, int]:
    """The counts of effects in the record."""
    return {
        name: world.number(run_id, f"fx_{name}") for name in ("open", "unknown", "committed", "compensated")
    }


def line(world: World, run_id: str, call: Made, part: str) -> list[str]:
    """The parts of a row's status line: `s` of the call, `u` of its undo."""
    stored = world.raw.hget(keys.journal_key(run_id), f"{call.row_id}.{part}")
    return [] if stored is None else stored.decode().split("|")

"""What clients ask of the store, as flows: enqueue and the reads behind status, info, journal and lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from makegood.errors import InvalidInput, PayloadTooLarge, RunNotFound, UnknownAgent
from makegood.store import keys
from makegood.store.ops import catalog, reads, runs
from makegood.store.ops.blobs import spill
from makegood.store.states import TERMINAL, State
from makegood.tasks.flows import Flow, resolved
from makegood.tasks.journal import closed, load_journal, record
from makegood.tasks.records import Result
from makegood.tasks.rules.callkeys import digest
from makegood.tasks.rules.names import AGENT_NAME

MAX_INPUT_BYTES = 1024 * 1024
"""Largest input."""

MAX_KEY_CHARS = 512
"""Longest key; it is kept with the run."""


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request: what `enqueue` was asked for, input as JSON."""

    agent: str
    body: bytes
    value: Any
    key: str | None
    expires_in_ms: int | None


def checked_request(agent: Any, value: Any, key: Any, expires_in: Any) -> Request:
    """The request, or one sentence about what is wrong with it. Raises InvalidInput, PayloadTooLarge."""
    if not isinstance(agent, str):
        raise InvalidInput(f"The agent must be given by its name, a text, not {type(agent).__name__}.")
    if AGENT_NAME.fullmatch(agent) is None:
        raise InvalidInput(
            f"Agent name {agent[:80]!r} is not usable; names are 1 to 64 of a-z A-Z 0-9 _ . -."
        )
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", by_alias=True)
    if not isinstance(value, (str, dict)):
        raise InvalidInput(
            f"The input of agent {agent!r} is of type {type(value).__name__}; give a text or a JSON object."
        )
    try:
        body = orjson.dumps(value)
        if b"null" in body:  # orjson writes null where a number is none
            json.dumps(value, allow_nan=False, default=str)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"The input of agent {agent!r} is no JSON ({str(error)[:120]}); give texts, numbers, lists and objects."
        ) from None
    if len(body) > MAX_INPUT_BYTES:
        raise PayloadTooLarge(
            f"The input of agent {agent!r} has {len(body) / MAX_INPUT_BYTES:.1f} MiB, more than 1 MiB; "
            "store it elsewhere and pass a reference."
        )
    if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS):
        raise InvalidInput(f"key must be a text of 1 to {MAX_KEY_CHARS} characters, or None.")
    if expires_in is not None:
        wrong = isinstance(expires_in, bool) or not isinstance(expires_in, (int, float))
        if wrong or not 0 < expires_in < 1e9:
            raise InvalidInput("expires_in must be a number of seconds above 0, or None for no limit.")
    return Request(agent, body, value, key, None if expires_in is None else max(1, round(expires_in * 1000)))


def enqueue(request: Request, known: Mapping[str, Any] = MappingProxyType({})) -> Flow[runs.Enqueued]:
    """Record a request, checked against what workers published (`known` spares the read when it has the agent)."""
    if request.agent not in known:
        (known,) = yield [catalog.read_catalog()]
    check_declared(request, known)
    shard = None if request.key is None else keys.shard_for(request.key)
    run_id = keys.new_run_id(shard)
    stored, digests, ahead = spill(run_id, request.body)
    if ahead:
        yield ahead
    (made,) = yield [
        runs.enqueue_run(
            run_id=run_id,
            agent=request.agent,
            session=None,
            key=request.key,
            body=stored,
            input_digest=digest(request.value),
            expires_in_ms=request.expires_in_ms,
            blob_digests=digests,
        )
    ]
    result: runs.Enqueued = made
    return result


def check_declared(request: Request, known: Mapping[str, Any]) -> None:
    """Refuse an unknown agent or an input its schema refuses; if no worker ever published, everything is accepted."""
    if not known:
        return
    declared = known.get(request.agent)
    if declared is None:
        names = ", ".join(sorted(known)[:20])
        raise UnknownAgent(
            f"No worker serves an agent named {request.agent!r}; known are: {names}. Correct the name, or start a "
            "worker that declares it."
        )
    schema = declared.get("input_schema")
    if schema is None:
        return
    from jsonschema import Draft202012Validator

    problem = next(iter(Draft202012Validator(schema).iter_errors(request.value)), None)
    if problem is not None:
        where = ".".join(str(part) for part in problem.absolute_path) or "input"
        raise InvalidInput(
            f"The input of agent {request.agent!r} is not valid: {where}: {problem.message[:300]}; correct it and "
            "enqueue again."
        )


def load_record(run_id: str) -> Flow[dict[str, str]]:
    """The record's fields as text, large bodies resolved. Raises RunNotFound."""
    check_run_id(run_id)
    (fields,) = yield [reads.read_record(run_id)]
    if not fields:
        raise RunNotFound(f"There is no run {run_id} in this store; check the id and the store's URL.")
    whole = yield from resolved(run_id, fields)
    return {name: value.decode() for name, value in whole.items()}


def load_state(run_id: str) -> Flow[State]:
    """The run's state. Raises RunNotFound."""
    check_run_id(run_id)
    (state,) = yield [reads.read_state(run_id)]
    if state is None:
        raise RunNotFound(f"There is no run {run_id} in this store; check the id and the store's URL.")
    return State(state)


def load_rows(run_id: str) -> Flow[list[dict[str, Any]]]:
    """The journal as clients see it, oldest first. Raises RunNotFound."""
    state = yield from load_state(run_id)
    entries = yield from load_journal(run_id)
    return [record(closed(entry) if state in TERMINAL else entry) for entry in entries]


def check_run_id(run_id: object) -> None:
    """Refuse what is no run id before it becomes part of a key."""
    if not isinstance(run_id, str) or not keys.is_run_id(run_id):
        raise RunNotFound(
            f"{str(run_id)[:80]!r} is no run id; they look like 07-01k9… and are printed by enqueue."
        )


def result_of(record: Mapping[str, str]) -> Result:
    """The Result from a stored record."""

    def number(name: str) -> int:
        return int(record.get(name) or 0)

    code = record.get("error_code") or None
    cost = record.get("cost_usd") or None
    return Result.from_dict(
        {
            "run_id": record["id"],
            "agent": record["agent"],
            "state": record["state"],
            "output": orjson.loads(record["output"]) if record.get("output") else None,
            "error": {"code": code, "message": record.get("error_message", "")} if code else None,
            "attempts": number("attempt"),
            "crashes": number("crashes"),
            "steps": number("steps"),
            "calls": number("calls"),
            "usage": {
                "prompt_tokens": number("prompt_tokens"),
                "completion_tokens": number("completion_tokens"),
                "cost_usd": None if cost is None else float(cost),
                "estimated": record.get("estimated") == "1",
            },
            "effects": {
                "not_started": number("fx_not_started"),
                "committed": number("fx_committed"),
                "compensated": number("fx_compensated"),
                "unknown": number("fx_unknown") + number("fx_open"),
            },
            "enqueued_at": reads.iso(number("enqueued_at")),
            "started_at": reads.iso(number("started_at") or None),
            "ended_at": reads.iso(number("ended_at") or None),
        }
    )


def load_info(run_id: str) -> Flow[dict[str, Any]]:
    """Everything a person wants to know of a run; `calling` names the calls that are under way. Raises RunNotFound."""
    info = info_of((yield from load_record(run_id)))
    entries = [] if info["state"] in TERMINAL else (yield from load_journal(run_id))
    return {**info, "calling": [entry.row.call_key for entry in entries if entry.row.status == "started"]}


def info_of(record: Mapping[str, str]) -> dict[str, Any]:
    """A stored record as its Result and where the run stands."""
    activity = orjson.loads(record.get("activity") or "{}")
    return {
        **result_of(record).to_dict(),
        "input": orjson.loads(record["input"]),
        "key": record.get("key") or None,
        "session": record.get("session") or None,
        "step": int(record.get("step") or 0),
        "activity": activity.pop("activity", None),
        "activity_detail": activity or None,
        "cancel_requested": bool(record.get("cancel")),
        "worker": record.get("worker") or None,
        "due_at": reads.iso(int(record["due_at"])) if record.get("due_at") else None,
        "expires_at": reads.iso(int(record["expires_at"])) if record.get("expires_at") else None,
        "version": int(record.get("version") or 0),
        "cleanup": cleanup_of(record),
        "timeout_verdict": timeout_verdict_of(record),
    }


def timeout_verdict_of(record: Mapping[str, str]) -> dict[str, Any] | None:
    """Whether the run that timed out had in fact finished, who says so and since when; None when nobody does."""
    if not record.get("to_verdict"):
        return None
    return {
        "verdict": record["to_verdict"],
        "by": record.get("to_by", ""),
        "at": reads.iso(int(record["to_at"])),
    }


def cleanup_of(record: Mapping[str, str]) -> dict[str, Any] | None:
    """Why a run is in cleaning or review, what follows when it is made good, and how often that was tried; else None."""
    if not record.get("cl_cause"):
        return None
    return {
        "cause": record["cl_cause"],
        "then": what_follows(record),
        "passes": int(record.get("cl_passes") or 0),
        "since": reads.iso(int(record["cl_at"])),
    }


def what_follows(record: Mapping[str, str]) -> str | None:
    """The state that a run in cleaning or review gets when it is made good (`queued`: another attempt); else None."""
    target = record.get("cl_target")
    return record.get("cl_end") if target == State.REVIEW else target


def list_runs(state: str | None, agent: str | None, limit: int) -> Flow[list[Result]]:
    """The newest runs, newest first. The cost grows with agents and states, not with finished runs."""
    records = yield from newest_records(states_of(state), agent, limit, without=("input",))
    return [result_of(each) for each in records]


def states_of(state: str | None) -> list[State]:
    """The state of this name, or all of them. Raises InvalidInput."""
    if state is not None and state not in set(State):
        raise InvalidInput(f"There is no state {state!r}; the states are: {', '.join(State)}.")
    return [State(state)] if state else list(State)


def newest_records(
    states: Sequence[State],
    agent: str | None,
    limit: int,
    *,
    without: Sequence[str] = (),
    until_ms: int | None = None,
) -> Flow[list[dict[str, str]]]:
    """Records of the newest runs in these states, newest first, the bodies of some fields left out.

    `until_ms`: of those that were enqueued no later.
    """
    prefixes = keys.all_prefixes()
    if agent is None:
        names = yield [reads.read_agents_seen(prefix) for prefix in prefixes]
        wanted = [(prefix, name) for prefix, found in zip(prefixes, names, strict=True) for name in found]
    else:
        wanted = [(prefix, agent) for prefix in prefixes]
    pages = yield [
        reads.newest_runs(prefix, name, each, limit, until_ms) for prefix, name in wanted for each in states
    ]
    newest = sorted((entry for page in pages for entry in page), key=lambda entry: -entry[1])[:limit]
    records = yield [reads.read_record(run_id) for run_id, _ in newest]
    found = []
    for (run_id, _), fields in zip(newest, records, strict=True):
        if fields:
            whole = yield from resolved(run_id, {**fields, **dict.fromkeys(without, b'""')})
            found.append({name: value.decode() for name, value in whole.items()})
    return found

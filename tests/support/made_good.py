"""Is everything made good? The question at the end of every test in which cleanups are struck.

What runs did is recounted from their journals and events, and compared with the shop, the files, the locks, the
records and the counters.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import redis

from makegood import Client
from makegood.store import keys
from makegood.store.states import SETTLED, TERMINAL, State
from makegood.tasks.client import Run
from makegood.testing.shop import Shop
from support.crash import FINAL, PATIENCE_S, Field, glob
from support.engine import assert_balanced
from support.recount import assert_counts, event_counters, series_counters

MEND, ANEW, CALM = "mend", "anew", "calm"
"""Agents of `cleanup_agents`: hasty with one attempt, hasty with two, and one that waits for everything."""

CLEANUP_AGENTS = "crash_agents,cleanup_agents"
TIMEOUTS = {"STEP_TIMEOUT", "RUN_TIMEOUT", "TOTAL_TIMEOUT"}
NAMED_BY = {"tickets": "title", "orders": "item", "flights": "to", "hotels": "city"}
CLOCK_MS = 50
"""The server's clock and the test's are one; a step of that clock by NTP is not."""


@dataclass
class Found:
    """What was found out about all runs.

    Attributes:
        states: state of each run.
        want, series: counters as they should be: the hash of all, and those of tools, agents, models and queues.
        standing, doubted, gone: names of calls whose effect stands, may stand, does not stand.
        undone_ms: undo key → wall clock at which its success was recorded.
        crashes: how many losses a run had seen when it first came to a person, where it went on after that.
    """

    crashes: Mapping[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    want: Counter[str] = field(default_factory=Counter)
    series: Counter[str] = field(default_factory=Counter)
    standing: Counter[str] = field(default_factory=Counter)
    doubted: Counter[str] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)
    undone_ms: dict[str, float] = field(default_factory=dict)


def assert_made_good(ground: Field, *, crashes: Mapping[str, int] | None = None) -> Found:
    """Every run has ended or waits for a person; nothing is lost, doubled or left over, and all counts are right."""
    for run_id in ground.tasks:
        result = ground.client.get(run_id).wait(PATIENCE_S)
        assert result.state in SETTLED, result
    raw = redis.Redis.from_url(ground.client.url, decode_responses=True)
    try:
        found = Found(crashes or {})
        for prefix in keys.all_prefixes():
            ids = [name.split(":run:")[1] for name in raw.scan_iter(f"{glob(prefix)}run:*", count=1000)]
            for run_id in ids:
                look_at(ground.client, raw, run_id, found)
            assert_indexes(raw, prefix, found.states)
        assert set(ground.tasks) <= set(found.states), "runs are lost"
        assert_counts(raw, found.want, found.series)
        assert_locks(raw)
    finally:
        raw.close()
    assert_shop(ground.shop, found)
    for request in ground.model.requests:
        assert_balanced(request.messages)
    return found


# --- one run ----------------------------------------------------------------------------------------------------------


def look_at(client: Client, raw: Any, run_id: str, found: Found) -> None:
    """Check one record against its journal, and add what it stands for."""
    record = raw.hgetall(keys.run_key(run_id))
    run = client.get(run_id)
    rows = run.journal()
    state = found.states[run_id] = str(record["state"])
    assert state in SETTLED, f"{run_id} is {state}"
    poison = record.get("rv_code") == "POISON" and state == State.REVIEW
    for row in rows:
        undo = row["compensation"]
        assert undo is None or undo["status"] != "started" or poison, f"{run_id}: an undo is open: {row}"
        look_at_row(raw, run_id, state, row, found)
    assert_effects(run, record, rows)
    assert_resources(raw, run_id, record, untouched=poison)
    events = list(run.events())
    count_events(events, record, found)
    found.want.update(event_counters(events, rows, record["agent"]))
    journal = raw.hgetall(keys.journal_key(run_id))
    tool_of = {row["call_key"]: row["tool"] for row in rows}
    for row_id in record.get("rv_told", "").split():
        tool = tool_of[row_id.rpartition("#")[0]]
        found.want[f"unknown_outcomes_total|{tool}|requires_manual_review"] += 1
    found.series.update(series_counters(events, record, record["agent"], tool_of, journal))
    for entry in raw.xrange(keys.audit_key(run_id)):
        action = entry[1]["action"]
        if action == "timeout_verdict":
            verdict = orjson.loads(entry[1]["detail"])["verdict"]
            found.want[f"timeout_verdicts_total|{record['agent']}|{verdict}"] += 1
        if entry[1]["actor"] != "verify":  # which is no operator
            found.want[f"operator_actions_total|{action}|done"] += 1


def look_at_row(raw: Any, run_id: str, state: str, row: dict[str, Any], found: Found) -> None:
    """Whether the effect of a call stands, and when its undo was recorded."""
    undo = row["compensation"]
    undone = undo is not None and undo["status"] == "succeeded"
    gave_up = {"started", "planned"} if state in ("cancelled", State.REVIEW) else set()
    assert row["status"] in FINAL | gave_up, f"{run_id} is {state} with {row}"
    if row["effect"] == "read":
        return
    name = row["args"]["name"]
    if undone:
        found.gone.add(name)
        line = raw.hget(keys.journal_key(run_id), f"{row['call_key']}#{row['generation']}.u")
        found.undone_ms[f"{row['idempotency_key']}:undo"] = float(line.split("|")[2])
        found.want[f"compensations_total|{row['tool']}|succeeded"] += 1
        if row["status"] != "succeeded":
            found.want[f"unknown_outcomes_total|{row['tool']}|compensated"] += 1
    elif row["status"] == "succeeded":
        found.standing[name] += 1
    elif row["status"] in ("unknown", "started"):
        assert state == State.REVIEW, f"{run_id} is {state}, and nobody settles {row}"
        found.doubted[name] += 1
    else:
        found.gone.add(name)


def assert_effects(run: Run, record: Mapping[str, str], rows: Iterable[dict[str, Any]]) -> None:
    """The effects in the result are those of the journal."""
    count: Counter[str] = Counter()
    open_calls = 0
    for row in rows:
        open_calls += row["status"] == "started"
        if row["effect"] == "read":
            continue
        undo = row["compensation"]
        count["undone" if undo and undo["status"] == "succeeded" else row["status"]] += 1
    effects = run.result().effects
    assert (effects.not_started, effects.committed, effects.compensated, effects.unknown) == (
        count["aborted_before_dispatch"],
        count["succeeded"],
        count["undone"],
        count["unknown"] + count["started"],
    ), f"{run.id}: {effects} against rows {count}"
    assert int(record.get("open_calls") or 0) == open_calls, f"{run.id}: {open_calls} calls are open"


def assert_resources(raw: Any, run_id: str, record: Mapping[str, str], *, untouched: bool) -> None:
    """What was declared is back, unless the run succeeded (or nothing of its cleanup could be run)."""
    state = record["state"]
    stored = raw.hgetall(keys.resources_key(run_id))
    names = [name for name in stored if not name.endswith((".s", ".v"))]
    left = 0
    for name in names:
        status = stored[f"{name}.s"].partition("|")[0]
        declared = orjson.loads(stored[name])
        path = Path(declared["id"])
        if status != "rolled_back":
            assert state == "succeeded" or untouched, f"{run_id} is {state}, and {path} is {status}"
            left += 1
            continue
        before = declared["prior"]["type"]
        assert path.exists() == (before != "absent"), f"{run_id}: {path} was {before}"
        assert before == "absent" or path.read_text() == "before", f"{run_id}: {path} is not as it was"
    assert int(record.get("resources") or 0) == left
    assert int(record.get("locks") or 0) == 0, f"{run_id} has locks"


def count_events(events: list[dict[str, Any]], record: Mapping[str, str], found: Found) -> None:
    """What the events of a run stand for in the counters."""
    agent, state, want = record["agent"], record["state"], found.want
    kinds = Counter(event["type"] for event in events)
    ends = 1 if state in TERMINAL else 0
    assert kinds["run.ended"] == ends, f"{record['id']} is {state} and ended {kinds['run.ended']} times"
    want[f"runs_enqueued_total|{agent}"] += 1
    if ends:
        want[f"runs_finished_total|{agent}|{state}"] += 1
    cause, code, crashed, verdict = "", "", False, False
    for event in events:
        kind, data = event["type"], event["data"]
        if kind == "attempt.ended":
            code, crashed = data.get("code") or "", data.get("code") == "CRASHED"
        elif kind == "attempt.started":
            want["recoveries_total|restarted"] += crashed
            crashed = False
        elif kind == "cleanup.started":
            cause = data["cause"]
        name = counter_of(kind, data, agent, cause)
        if name:
            want[name] += 1
        if kind in ("run.ended", "review.opened") and not verdict:
            verdict = True
            count_verdict(event, code, record, found)


def counter_of(kind: str, data: Mapping[str, Any], agent: str, cause: str) -> str | None:
    """The counter that is counted with an event."""
    match kind:
        case "run.continued":
            return "recoveries_total|continued" if data.get("after") == "lost" else None
        case "cleanup.ended":
            return f"cleanups_total|{agent}|{cause}|{data['result']}"
        case "cleanup.settled":
            kept = data["outcome"] == "kept"
            return None if kept else f"unknown_outcomes_total|{data['tool']}|{data['outcome']}"
        case "cleanup.failed":
            undo = data["what"] == "compensation"
            return f"compensations_total|{data['tool']}|failed" if undo else None
        case "review.opened":
            return f"reviews_total|{agent}|{data['code']}"
        case "review.resolved":
            return f"reviews_resolved_total|{agent}|{data['action']}"
    return None


def count_verdict(event: dict[str, Any], code: str, record: Mapping[str, str], found: Found) -> None:
    """Once per run, when it first ends or comes to a person."""
    agent, reviewed = record["agent"], event["type"] == "review.opened"
    outcome = str(State.REVIEW) if reviewed else event["data"]["state"]
    crashes = found.crashes.get(record["id"], int(record.get("crashes") or 0))
    if int(event["attempt"] or 0) > 1 or crashes > 0:
        found.want[f"retried_runs_total|{agent}|{outcome}"] += 1
    if outcome == "timed_out" or (reviewed and code in TIMEOUTS):
        found.want[f"timed_out_runs_total|{agent}|{'no' if reviewed else 'yes'}"] += 1


# --- all of them ------------------------------------------------------------------------------------------------------


def assert_indexes(raw: Any, prefix: str, states: Mapping[str, str]) -> None:
    """Each run stands in the gauge of its state and nowhere else; nothing waits, is held or has a time to come."""
    total = 0
    for name in raw.scan_iter(f"{glob(prefix)}*", count=1000):
        rest = name[len(prefix) :]
        if rest.startswith("st:"):
            there = raw.zrange(name, 0, -1)
            wrong = [each for each in there if states.get(each) != rest.rpartition(":")[2]]
            assert not wrong, f"{name} holds {wrong}"
            total += len(there)
        elif rest.startswith(("queued:", "suspects:", "cleaning:", "cleaning_alone:")) or rest in (
            "due",
            "expires",
        ):
            assert not raw.zrange(name, 0, -1), f"{name} is not empty"
        elif rest.startswith(("held:", "l:")):
            assert not raw.smembers(name), f"{name} is not empty"
        elif rest == "cancels":
            assert not raw.hgetall(name), f"{name} is not empty"
    mine = sum(1 for run_id in states if keys.prefix_of(run_id) == prefix)
    assert total == mine, f"{prefix}: {total} places in gauges for {mine} runs"


def assert_locks(raw: Any) -> None:
    """No lock has an owner."""
    held = [name for name in raw.scan_iter("mg:{lock:*}:held", count=1000) if raw.hexists(name, "owner")]
    assert not held, f"locks are left: {held}"


def assert_shop(shop: Shop, found: Found) -> None:
    """What stands at the shop is what stands in the journals, once; no undo was asked for after it was recorded."""
    there: Counter[str] = Counter()
    for collection, title in NAMED_BY.items():
        there.update(member[title] for member in getattr(shop, collection))
    doubled = [name for name, n in there.items() if n > 1]
    assert not doubled, f"doubled effects: {doubled[:5]}"
    booked = set(found.standing)
    made = {request.body[title] for name, title in NAMED_BY.items() for request in made_at(shop, name)}
    lost = [name for name in booked & made if there[name] != found.standing[name]]
    assert not lost, f"effects that stand in a journal and not at the shop, or twice: {lost[:5]}"
    left = [name for name in found.gone - booked - set(found.doubted) if there[name]]
    assert not left, f"effects that were undone, or never made, and are there: {left[:5]}"
    unknown = set(there) - booked - set(found.doubted)
    assert not unknown, f"effects that stand in no journal: {sorted(unknown)[:5]}"
    assert_undone_once(shop, found)


def made_at(shop: Shop, collection: str) -> list[Any]:
    """Requests that create; one whose sender died in the middle of it has no body, and had no effect."""
    return [request for request in shop.seen("POST", f"/{collection}") if request.body is not None]


def assert_undone_once(shop: Shop, found: Found) -> None:
    """A deletion can succeed once; that it is not asked for again after its success was recorded is seen by the clock."""
    ahead_s = time.time() - time.monotonic()
    asked: dict[str, list[float]] = defaultdict(list)
    for request in shop.seen("DELETE", "/"):
        asked[request.key].append((request.at_s + ahead_s) * 1000)
    for key, times in asked.items():
        assert key.endswith(":undo"), f"a deletion under {key}"
        recorded_ms = found.undone_ms.get(key)
        late = [] if recorded_ms is None else [at for at in times if at > recorded_ms + CLOCK_MS]
        assert not late, f"{key} was sent again at {late}, after its success was recorded at {recorded_ms}"

"""The counters once more, from records, journals and events: what the store counted must be that (CONTRACT I2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from makegood.store import keys
from makegood.store.states import TERMINAL
from makegood.tasks.rules.counting import cause_of

LEVELS = {"STEP_TIMEOUT": "step", "RUN_TIMEOUT": "run", "TOTAL_TIMEOUT": "total"}

NOT_RECOUNTED = ("runs_deduplicated_total|", "redeliveries_total|done", "redeliveries_total|fenced")
"""Messages and requests that came in vain leave nothing in any run."""

Event = Mapping[str, Any]


def event_counters(events: Sequence[Event], rows: Sequence[Mapping[str, Any]], agent: str) -> Counter[str]:
    """What the events of a run stand for in the hash of all counters."""
    want: Counter[str] = Counter()
    code = ""
    for event in events:
        kind, data = event["type"], event["data"]
        if kind == "attempt.ended":
            code = data["code"]
            if code in LEVELS:
                want[f"timeouts_total|{agent}|{LEVELS[code]}"] += 1
            want[f"retries_total|attempt|{code}"] += data["then"] == "queued"
        elif kind == "cleanup.ended" and data["state"] == "queued":
            want[f"retries_total|attempt|{code}"] += 1
        elif kind in ("llm.retry", "tool.retry"):
            what, cause = (
                ("model", data["cause"]) if kind == "llm.retry" else ("tool", cause_of(data["cause"]))
            )
            want[f"retries_total|{what}|{cause}"] += 1
        elif kind in ("llm.retry_skipped", "tool.retry_skipped"):
            want[f"retries_skipped_total|{data['reason']}"] += 1
        elif kind == "run.continued":
            want["redeliveries_total|resumed"] += 1
        elif kind == "breaker.rejected":
            want[f"breaker_rejected_total|{data['name']}"] += 1
        elif kind == "tool.replayed":
            effects = {row["call_key"]: row["effect"] for row in rows}
            want[f"effects_deduplicated_total|{data['tool']}"] += effects[event["call_key"]] != "read"
        if (
            kind in ("tool.retry", "tool.ended")
            and data.get("result") == "timeout"
            and data["level"] == "call"
        ):
            want[f"timeouts_total|{agent}|call"] += 1
    return +want


def series_counters(
    events: Sequence[Event],
    record: Mapping[str, str],
    agent: str,
    tool_of: Mapping[str, str],
    journal: Mapping[str, str],
) -> Counter[str]:
    """What they stand for in the hashes of tools, agents, models and queues: `series field` without the bucket."""
    want = tool_counters(events, tool_of, journal)
    for field, line in journal.items():  # whoever was lost has not told how these ended
        under_way = field.endswith(".s") and line.startswith("started|") and f"{field[:-2]}.w" not in journal
        if under_way and record["state"] in TERMINAL:
            want[f"tool:{tool_of[field.rpartition('#')[0]]} aborted"] += 1
    ended = next((event for event in events if event["type"] == "run.ended"), None)
    if ended is not None:
        want[f"agent:{agent} run_steps"] += 1
        for name, field in (
            ("run_steps", "steps"),
            ("run_calls|tool", "calls"),
            ("run_calls|model", "requests"),
        ):
            want[f"agent:{agent} {name}|sum"] += int(record.get(field) or 0)
        if record.get("started_at"):
            want[f"agent:{agent} run_duration_seconds|{ended['data']['state']}"] += 1
    want[f"agent:{agent} step_duration_seconds"] += sum(event["type"] == "step.ended" for event in events)
    requests = sum(event["type"] == "llm.attempt" for event in events)
    assert int(record.get("requests") or 0) == requests, f"{record['id']}: {requests} requests in its events"
    want["queue:runs run_queue_wait_seconds"] += bool(record.get("started_at"))
    for direction in ("prompt", "completion"):
        want[f"model tokens_total|{direction}"] += int(record.get(f"{direction}_tokens") or 0)
    return +want


def tool_counters(
    events: Sequence[Event], tool_of: Mapping[str, str], journal: Mapping[str, str]
) -> Counter[str]:
    """Tries and answers of each tool."""
    want: Counter[str] = Counter()
    started, ended = Counter[str](), Counter[str]()
    for event in events:
        kind, data, key = event["type"], event["data"], event["call_key"]
        if kind in ("tool.retry", "tool.ended") and data.get("result") not in (None, "none", "breaker_open"):
            want[f"tool:{data['tool']} {data['result']}"] += 1
        if kind == "tool.started":
            started[key] += 1
        elif kind == "tool.ended" and key:
            ended[key] += 1
        elif kind == "tool.replayed":
            want[f"tool:{data['tool']} replayed"] += 1
        elif kind == "breaker.rejected" and key:
            want[f"tool:{tool_of[key]} breaker_open"] += 1
        elif kind in ("cleanup.settled", "cleanup.compensated") and started[key] > ended[key]:
            waited = any(field.startswith(f"{key}#") and field.endswith(".w") for field in journal)
            want[f"tool:{tool_of[key]} aborted"] += not waited  # under way when its worker was lost
            ended[key] += 1
    return want


def stored_series(raw: Any) -> Counter[str]:
    """The same from the store; sums of durations and cleanups are left out, since no event has them to the ms."""
    have: Counter[str] = Counter()
    for prefix in keys.all_prefixes():
        for series in raw.smembers(f"{prefix}series"):
            kind = series.partition(":")[0]
            for field, value in raw.hgetall(f"{prefix}c:{series}").items():
                name = _name_of(kind, series, field)
                if name:
                    have[name] += int(value)
    return +have


def _name_of(kind: str, series: str, field: str) -> str | None:
    name, _, last = field.rpartition("|")
    if kind == "tool":
        label = field.split("|")[1]
        return None if last == "sum" else f"{series} {label}"
    if kind == "model":
        return f"model {field}" if field.startswith("tokens_total") else None
    if kind == "queue":
        return f"{series} {name}" if series == "queue:runs" and last != "sum" else None
    if kind != "agent" or name == "cleanup_duration_seconds":
        return None
    if last == "sum":
        return f"{series} {field}" if name.startswith("run_") and "seconds" not in name else None
    return None if name.startswith("run_calls") else f"{series} {name}"


def hour_sums(raw: Any) -> dict[str, int]:
    """What the histograms say that the hours add up, too: steps, calls and recoveries (`makegood stats` divides them)."""
    want = Counter[str]()
    for prefix in keys.all_prefixes():
        want["recovery_seconds|sum_ms"] += int(raw.hget(f"{prefix}c:all:", "recovery_seconds|sum") or 0)
        for series in raw.smembers(f"{prefix}series"):
            kind, _, name = series.partition(":")
            if kind == "agent":
                fields = raw.hgetall(f"{prefix}c:{series}")
                for field in ("run_steps", "run_calls|tool", "run_calls|model"):
                    metric, _, label = field.partition("|")
                    hour = "|".join(part for part in (metric, name, label, "sum") if part)
                    want[hour] += int(fields.get(f"{field}|sum", 0))
    return dict(+want)


def assert_counts(raw: Any, want: Counter[str], series: Counter[str]) -> None:
    """What the store counted, for ever and by the hour, is what was recounted."""
    have, hourly = Counter[str](), Counter[str]()
    for prefix in keys.all_prefixes():
        have.update({name: int(value) for name, value in raw.hgetall(f"{prefix}counters").items()})
        for hour in raw.scan_iter(f"{prefix.replace('[', chr(92) + '[')}h:*", count=1000):
            hourly.update({name: int(value) for name, value in raw.hgetall(hour).items()})
    assert have == Counter({name: hourly[name] for name in have}), "the hours do not add up"
    sums = {name: n for name, n in hourly.items() if name not in have}
    assert sums == hour_sums(raw), "the sums of the hours are not those of the histograms"
    have = Counter({name: n for name, n in have.items() if not name.startswith(NOT_RECOUNTED)})
    assert +have == +want, f"counters: stored {dict(have - want)} too much, {dict(want - have)} too little"
    stored = stored_series(raw)
    assert stored == +series, (
        f"series: stored {dict(stored - series)} too much, {dict(series - stored)} too little"
    )
    recovered = sum(n for name, n in have.items() if name.startswith("recoveries_total|"))
    fields = [raw.hgetall(f"{prefix}c:all:") for prefix in keys.all_prefixes()]
    timed = sum(int(n) for each in fields for name, n in each.items() if not name.endswith("|sum"))
    assert timed == recovered, f"{timed} recoveries have a duration, of {recovered}"

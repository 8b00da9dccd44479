"""Records: frozen, readable by attribute and by key, and the same after a round trip through JSON."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta, timezone

import pytest

from makegood.tasks.records import (
    ALL,
    NOT_DONE,
    UNKNOWN,
    Effects,
    RecordedCall,
    Result,
    RunError,
    Sentinel,
    Usage,
    iso_utc,
)

ENDED = Result(
    run_id="07-abc",
    agent="support",
    state="failed",
    output=None,
    error=RunError(code="STEP_LIMIT", message="20 steps were used."),
    attempts=2,
    crashes=1,
    steps=21,
    calls=30,
    usage=Usage(prompt_tokens=100, completion_tokens=20, cost_usd=0.01, estimated=True),
    effects=Effects(not_started=1, committed=2, compensated=3, unknown=4),
    enqueued_at=datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    started_at=datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC),
    ended_at=datetime(2026, 1, 2, 3, 4, 7, 123456, tzinfo=UTC),
)


def test_result_json_has_the_names_of_the_interface() -> None:
    """Names, nesting and the form of times are the documented ones."""
    assert ENDED.to_dict() == {
        "run_id": "07-abc",
        "agent": "support",
        "state": "failed",
        "output": None,
        "error": {"code": "STEP_LIMIT", "message": "20 steps were used."},
        "attempts": 2,
        "crashes": 1,
        "steps": 21,
        "calls": 30,
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "cost_usd": 0.01, "estimated": True},
        "effects": {"not_started": 1, "committed": 2, "compensated": 3, "unknown": 4},
        "enqueued_at": "2026-01-02T03:04:05.678Z",
        "started_at": "2026-01-02T03:04:06.000Z",
        "ended_at": "2026-01-02T03:04:07.123456Z",
    }


def test_result_survives_json() -> None:
    """from_dict reads what to_dict wrote, through real JSON."""
    assert Result.from_dict(json.loads(json.dumps(ENDED.to_dict()))) == ENDED
    waiting = Result(run_id="1", agent="a", state="queued")
    assert Result.from_dict(json.loads(json.dumps(waiting.to_dict()))) == waiting


def test_result_ignores_what_it_does_not_know() -> None:
    """An old client reads a record of a newer worker."""
    record = ENDED.to_dict() | {"mood": "good"}
    record["usage"]["thoughts"] = 7
    assert Result.from_dict(record) == ENDED


@pytest.mark.parametrize("missing", ["run_id", "agent", "state"])
def test_result_needs_what_identifies_it(missing: str) -> None:
    """A record without its id is no result."""
    record = ENDED.to_dict()
    del record[missing]
    with pytest.raises(KeyError, match=missing):
        Result.from_dict(record)


def test_attributes_and_keys_are_the_same() -> None:
    """`result.error.code` and `result["error"]["code"]` both read; nothing but a field is a key."""
    for each in fields(ENDED):
        assert ENDED[each.name] is getattr(ENDED, each.name)
    assert ENDED["error"]["code"] == "STEP_LIMIT"
    assert ENDED["effects"]["unknown"] == 4
    for stranger in ("to_dict", "nope", "__class__"):
        with pytest.raises(KeyError):
            ENDED[stranger]


def test_records_are_frozen() -> None:
    """Nothing can be changed afterwards."""
    with pytest.raises(FrozenInstanceError):
        ENDED.state = "succeeded"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        ENDED.usage.estimated = False  # type: ignore[misc]


def test_times_are_written_in_utc() -> None:
    """Another zone is converted, a naive time is taken as UTC."""
    assert iso_utc(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-01T00:00:00.000Z"
    assert iso_utc(datetime(2026, 1, 1)) == "2026-01-01T00:00:00.000Z"  # noqa: DTZ001
    read = Result.from_dict(
        {"run_id": "1", "agent": "a", "state": "queued", "enqueued_at": "2026-01-01T00:00:00"}
    )
    assert read.enqueued_at == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("word", [ALL, NOT_DONE, UNKNOWN])
def test_sentinels_are_singletons(word: Sentinel) -> None:
    """Copied or pickled, a sentinel is still itself, and prints as its name."""
    assert pickle.loads(pickle.dumps(word)) is word
    assert copy.deepcopy(word) is word
    assert repr(word) == word.name
    with pytest.raises(TypeError):
        json.dumps(word)


def test_sentinels_differ() -> None:
    """Three words, three meanings."""
    assert len({ALL, NOT_DONE, UNKNOWN}) == 3


def test_a_recorded_call_has_the_names_of_the_interface() -> None:
    """What probes and compensations read."""
    names = ["tool", "args", "response", "outcome", "idempotency_key", "call_key", "attempt", "step"]
    assert [each.name for each in fields(RecordedCall)] == names
    call = RecordedCall("pay", {"to": "x"}, None, "unknown", "r:k:1", "k", 1, 2)
    assert call["outcome"] == call.outcome == "unknown"

"""What the client hands out: frozen records as dashboards and tests know them, and the three sentinels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, Self


class Sentinel(Enum):
    """Three words that are no data: singletons, also after pickling and copying."""

    ALL = "ALL"
    NOT_DONE = "NOT_DONE"
    UNKNOWN = "UNKNOWN"

    def __repr__(self) -> str:
        return self.name


ALL: Final = Sentinel.ALL
"""`tool(identity=ALL)`: every argument identifies the effect."""
NOT_DONE: Final = Sentinel.NOT_DONE
"""A probe's answer: the effect did not take place."""
UNKNOWN: Final = Sentinel.UNKNOWN
"""A probe's answer: it cannot tell."""


class _Keyed:
    """Read access by key, as in the JSON of the record."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        if key not in {each.name for each in fields(self)}:  # type: ignore[arg-type]  # every subclass is a dataclass
            raise KeyError(key)
        return getattr(self, key)


@dataclass(frozen=True, slots=True)
class RunError(_Keyed):
    """Why a run did not succeed: a code of the closed set and one sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Usage(_Keyed):
    """Tokens and US dollars of a run over all attempts; `cost_usd` is None when the model has no known price.

    `estimated` says that a provider sent no usage for at least one request (B12).
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Effects(_Keyed):
    """What became of the run's calls with effects: how many never started, stayed, were undone, are unknown."""

    not_started: int = 0
    committed: int = 0
    compensated: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Result(_Keyed):
    """A run as it stands or ended; `result.state` and `result["state"]` are the same.

    Attributes:
        run_id, agent, state: which run, of which agent, in which state.
        output: JSON value: the last assistant text, or what the agent's code or output model gave; else None.
        error: None, or `.code` and `.message`.
        attempts, crashes: how many executions from a clean context, how many worker losses (a process that died, was
            killed by its supervisor, or whose host is gone; not an orderly hand-over).
        steps, calls: over all attempts, replays excluded.
        usage, effects: see Usage and Effects.
        enqueued_at, started_at, ended_at: aware datetimes in UTC, or None.
    """

    run_id: str
    agent: str
    state: str
    output: Any = None
    error: RunError | None = None
    attempts: int = 0
    crashes: int = 0
    steps: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    effects: Effects = field(default_factory=Effects)
    enqueued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON: plain dicts, times in ISO-8601 UTC (`2026-01-02T03:04:05.678Z`)."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """The Result of a record made by `to_dict`; unknown keys are ignored, so that old clients read new records.

        Raises:
            KeyError: `run_id`, `agent` or `state` is missing.
            ValueError: a time is not ISO-8601.
        """
        error = record.get("error")
        return cls(
            run_id=record["run_id"],
            agent=record["agent"],
            state=record["state"],
            output=record.get("output"),
            error=None if error is None else RunError(code=error["code"], message=error["message"]),
            attempts=record.get("attempts", 0),
            crashes=record.get("crashes", 0),
            steps=record.get("steps", 0),
            calls=record.get("calls", 0),
            usage=Usage(**_known(Usage, record.get("usage"))),
            effects=Effects(**_known(Effects, record.get("effects"))),
            enqueued_at=_time(record.get("enqueued_at")),
            started_at=_time(record.get("started_at")),
            ended_at=_time(record.get("ended_at")),
        )


@dataclass(frozen=True, slots=True)
class RecordedCall(_Keyed):
    """A journaled call as its probe or compensation sees it.

    Attributes:
        tool, args, response: the tool's name, the recorded arguments and response (None when unknown).
        outcome: "succeeded" or "unknown".
        idempotency_key: the ORIGINAL key of the call; the probe's or compensation's own one is the context's.
        call_key, attempt, step: where the call stands in the journal.
    """

    tool: str
    args: Mapping[str, Any]
    response: Any
    outcome: Literal["succeeded", "unknown"]
    idempotency_key: str
    call_key: str
    attempt: int
    step: int


def iso_utc(at: datetime) -> str:
    """`2026-01-02T03:04:05.678Z`; microseconds only when there are any. A naive time is taken as UTC."""
    utc = (at.replace(tzinfo=UTC) if at.tzinfo is None else at).astimezone(UTC)
    digits = "microseconds" if utc.microsecond % 1000 else "milliseconds"
    return utc.isoformat(timespec=digits).replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso_utc(value)
    if isinstance(value, RunError | Usage | Effects):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return value


def _known(kind: type[Usage] | type[Effects], record: Mapping[str, Any] | None) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {key: value for key, value in (record or {}).items() if key in names}


def _time(value: str | datetime | None) -> datetime | None:
    if value is None:
        return None
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).astimezone(UTC)

"""Breakers: one packed line each, in one hash that every worker reads once a second and writes only after failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from makegood.store import keys
from makegood.store.codes import text
from makegood.store.ops.args import new_op
from makegood.store.ops.reads import pairs
from makegood.store.scripts import Op

STATES = f"{keys.BREAKERS}states"
AUDIT = f"{keys.BREAKERS}audit"
COUNTERS = f"{keys.BREAKERS}counters"
FIELDS = ("state", "failures_ms", "opened_at_ms", "open_until_ms", "probe_owner", "probe_until_ms", "held")


@dataclass(frozen=True, slots=True)
class Admission:
    """`admitted`, as a `probe`; else rejected until `until_ms` (None: held open by an operator)."""

    admitted: bool
    probe: bool
    until_ms: int | None
    fields: dict[str, str]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Reported:
    """State of the breaker before and after a report, as flat fields."""

    before: dict[str, str]
    after: dict[str, str]
    now_ms: int


def unpack(packed: str) -> dict[str, str]:
    """The packed line as the fields that tasks/rules/breaker.py reads; an empty line is a new breaker."""
    return dict(zip(FIELDS, packed.split("|"), strict=True)) if packed else {}


def admit(name: str, owner: str, lease_ms: int, now_ms: int | None = None) -> Op[Admission]:
    """Ask whether a try may run while the breaker is not plainly closed."""

    def parse(reply: list[Any]) -> Admission:
        answer, until = int(reply[0]), int(reply[1])
        return Admission(answer < 2, answer == 1, until or None, unpack(text(reply[2])), int(reply[3]))

    args = (name, owner, lease_ms, "" if now_ms is None else now_ms)
    return Op("breaker_admit", (STATES, COUNTERS), args, parse)


def report(
    name: str,
    owner: str,
    outcome: Literal["failure", "success", "neutral"],
    *,
    failures: int,
    window_ms: int,
    open_for_ms: int,
    now_ms: int | None = None,
) -> Op[Reported]:
    """Say how a try ended."""

    def parse(reply: list[Any]) -> Reported:
        return Reported(unpack(text(reply[0])), unpack(text(reply[1])), int(reply[2]))

    args = (name, owner, outcome, failures, window_ms, open_for_ms, "" if now_ms is None else now_ms)
    return Op("breaker_report", (STATES, f"{keys.BREAKERS}told:{owner}", COUNTERS), args, parse)


def set_breaker(name: str, action: Literal["open", "close"], actor: str, reason: str) -> Op[dict[str, str]]:
    """Open or close a breaker by hand."""
    told = f"{keys.BREAKERS}told:{new_op()}"
    args = (name, action, actor, reason)
    return Op("breaker_set", (STATES, AUDIT, told, COUNTERS), args, lambda reply: unpack(text(reply)))


def read_breakers() -> Op[dict[str, dict[str, str]]]:
    """All breakers that ever saw a failure: name → flat fields."""

    def parse(reply: Any) -> dict[str, dict[str, str]]:
        return {name: unpack(text(value)) for name, value in pairs(reply).items()}

    return Op(None, (), ("HGETALL", STATES), parse)


def server_time() -> Op[int]:
    """The server's clock in ms."""
    return Op(None, (), ("TIME",), lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)

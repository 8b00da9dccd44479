"""How lists travel in ARGV: a count, then the items. Shared by the stubs."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from makegood.store.scripts import Arg


@dataclass(frozen=True, slots=True)
class Spent:
    """What a model's reply has cost: tokens, and US dollars (None when the model has no price)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False
    model: str = ""

    def line(self) -> str:
        """As `spend` in the prelude reads it."""
        priced = self.cost_usd is not None and math.isfinite(self.cost_usd)
        cost = repr(self.cost_usd) if priced else "-"
        return f"{self.prompt_tokens} {self.completion_tokens} {int(self.estimated)} {cost} {self.model}"


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to append: the store adds id, time and attempt.

    `counts` are the counters that it stands for: they grow in the script that appends it (CONTRACT I2). Each is
    `name|label|…`, or `@series>field` for one that belongs to a tool. `spent`: the reply of which the event tells; the same
    script adds it to the run's record and to its model's counters.
    """

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None
    call_key: str | None = None
    counts: tuple[str, ...] = ()
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured duration: series (`tool:<name>`, `step:<agent>`, `run:<agent>`, `model:<name>`), bucket, ms.

    `result` is how a try of a tool ended: ok, error, timeout or aborted; empty for other series.
    """

    series: str
    bucket: int
    ms: int
    result: str = ""


def new_op() -> str:
    """An id for an operation that nobody names: the client's repetition of it carries the same."""
    return secrets.token_hex(8)


def counted(rows: Sequence[Sequence[Arg]]) -> list[Arg]:
    """A list argument: its length, then the items flattened."""
    flat: list[Arg] = [len(rows)]
    for row in rows:
        flat += row
    return flat


def events(items: Sequence[NewEvent]) -> list[Arg]:
    """Events as `emit_all` in the prelude reads them."""
    return counted(
        [
            (
                e.type,
                "" if e.step is None else e.step,
                e.call_key or "",
                orjson.dumps(dict(e.data)),
                "\n".join(e.counts),
                "" if e.spent is None else e.spent.line(),
            )
            for e in items
        ]
    )


def samples(items: Sequence[Sample]) -> list[Arg]:
    """Durations as `count_latencies` in the prelude reads them."""
    return counted([(s.series, s.bucket, s.ms, s.result) for s in items])


def blobs(digests: Sequence[str]) -> list[Arg]:
    """Digests of bodies that were written ahead."""
    return counted([(digest,) for digest in digests])

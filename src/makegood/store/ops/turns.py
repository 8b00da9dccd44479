"""What one process does for all, once in a while."""

from __future__ import annotations

from typing import Any

from makegood.store.codes import text
from makegood.store.scripts import Op

TURN = "mg:{workers}:turn:"
"""Prefix: whose turn it is, for as long as the turn lasts."""


def take_turn(name: str, who: str, lasts_ms: int) -> Op[bool]:
    """Whether nobody else has the turn. `who` is unique to the asking, so that a repeat is answered as the first time."""

    def parse(reply: Any) -> bool:
        return reply is None or text(reply) == who

    return Op(None, (), ("SET", f"{TURN}{name}", who, "NX", "PX", lasts_ms, "GET"), parse)

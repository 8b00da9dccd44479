"""What workers serve, and messages that were set aside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from makegood.store import keys
from makegood.store.codes import text
from makegood.store.ops.reads import pairs
from makegood.store.scripts import Op


def publish_agents(declarations: Mapping[str, Mapping[str, Any]]) -> Op[None]:
    """Publish all declarations of a worker in one atomic write."""
    fields = [part for name, body in declarations.items() for part in (name, orjson.dumps(dict(body)))]
    return Op(None, (), ("HSET", keys.CATALOG, *fields), lambda reply: None)


def read_catalog() -> Op[dict[str, dict[str, Any]]]:
    """All published declarations by agent name; empty when no worker ever published."""
    return Op(
        None, (), ("HGETALL", keys.CATALOG), lambda r: {name: orjson.loads(v) for name, v in pairs(r).items()}
    )


def set_aside(reason: str, raw: bytes) -> Op[None]:
    """Keep a message that does not validate, with the reason; at most about 10,000 are kept."""
    args = ("XADD", keys.ASIDE, "MAXLEN", "~", 10_000, "*", "reason", reason, "raw", raw)
    return Op(None, (), args, lambda reply: None)


def read_aside(limit: int) -> Op[list[dict[str, str]]]:
    """Messages set aside, newest first: `id`, `reason`, `raw` (text, undecodable bytes escaped)."""

    def parse(reply: Any) -> list[dict[str, str]]:
        rows = [(text(entry[0]), pairs(entry[1])) for entry in reply]
        return [
            {
                "id": entry_id,
                "reason": text(fields["reason"]),
                "raw": fields["raw"].decode(errors="backslashreplace"),
            }
            for entry_id, fields in rows
        ]

    return Op(None, (), ("XREVRANGE", keys.ASIDE, "+", "-", "COUNT", limit), parse)

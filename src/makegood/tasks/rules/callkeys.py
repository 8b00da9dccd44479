"""Names of calls: digests, call keys, ordinals, idempotency keys (CONTRACT D3, J29)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import orjson

# 64 bits: two different calls of one run meet by chance once in 10**9 runs of 100,000 calls.
_DIGEST_HEX = 16


def canonical_json(obj: Any) -> bytes:
    """Returns the one JSON text of a value: keys sorted, no blanks. Raises TypeError for what is not JSON.

    What a model may send but orjson refuses (integers over 64 bits, lone surrogates, deep nesting) is written
    by the standard library in the same order, so that every parsed argument has a digest.
    """
    try:
        return orjson.dumps(obj, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(obj: Any) -> str:
    """Returns the first 16 hex digits of the SHA-256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(obj)).hexdigest()[:_DIGEST_HEX]


def call_key_of(tool: str, identity_digest: str, ordinal: int) -> str:
    """Returns `tool:digest:ordinal`; the digest is that of the arguments that identify the effect (CONTRACT D3)."""
    return f"{tool}:{identity_digest}:{ordinal}"


def ordinal_of(key: str) -> int:
    """Returns the ordinal of a call key, 0 for a text that is none."""
    tail = key.rpartition(":")[2]
    return int(tail) if tail.isascii() and tail.isdigit() else 0


def idempotency_key(run_id: str, key: str, generation: int) -> str:
    """Returns `run_id:call_key:generation`: the same in every attempt and try until the call was undone."""
    return f"{run_id}:{key}:{generation}"

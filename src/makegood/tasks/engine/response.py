"""A tool's return value as it is kept: JSON, masked, at most 256 KiB."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from makegood.tasks.masking import mask_named
from makegood.tasks.rules.callkeys import digest

MAX_BYTES = 256 * 1024
"""Longest response that is kept whole."""

HEAD_CHARS = 60_000
"""Of a longer one so much is kept; at four bytes a character still under the limit."""


class Unusable(ValueError):
    """The value cannot be written as JSON."""


def usable(value: Any, secret_fields: Sequence[str]) -> tuple[Any, str]:
    """The value as the model, the agent's code and the journal see it, and the digest of the whole.

    Masked and cut before anybody sees it, so that a first run and a replay are equal. Raises Unusable.
    """
    try:
        plain = mask_named(to_jsonable_python(value, fallback=str), secret_fields)
        whole = digest(plain)
        return _cut(plain), whole
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        raise Unusable(f"the tool returned what is no JSON ({str(error)[:200]})") from error


def _cut(plain: Any) -> Any:
    try:
        raw = orjson.dumps(plain)
    except TypeError:  # integers beyond 64 bits and the like
        plain = json.dumps(plain, default=str)
        raw = plain.encode("utf-8", "replace")
    if len(raw) <= MAX_BYTES:
        return plain
    if isinstance(plain, str):
        return f"{plain[:HEAD_CHARS]}… [cut: {len(raw)} bytes in all]"
    return {"cut": True, "bytes": len(raw), "head": raw[:HEAD_CHARS].decode("utf-8", "ignore")}

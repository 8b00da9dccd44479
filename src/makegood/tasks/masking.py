"""JSON values on their way into the journal: secrets masked, sets in a fixed order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel, SecretBytes, SecretStr

MASK: Final = "**********"


def mask_named(value: Any, secret_fields: Iterable[str]) -> Any:
    """The JSON value with every member of one of these names masked, at any depth, whatever its case."""
    names = frozenset(each.casefold() for each in secret_fields)
    return _masked(value, names) if names else value


def holds_mask(value: Any) -> bool:
    """Whether a recorded JSON value, or anything in it, is a mask."""
    if isinstance(value, dict):
        return any(holds_mask(each) for each in value.values())
    if isinstance(value, list):
        return any(holds_mask(each) for each in value)
    return bool(value == MASK)


def revealed(value: Any) -> Any:
    """The value with its secrets in clear."""
    if isinstance(value, SecretStr | SecretBytes):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: revealed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [revealed(each) for each in value]
    return value


def ordered(value: Any, dumped: Any) -> Any:
    """Sets have no order of their own, and two processes give them different ones; digests need one."""
    if isinstance(value, set | frozenset) and isinstance(dumped, list):
        return sorted(dumped, key=lambda each: json.dumps(each, sort_keys=True))
    if isinstance(value, list | tuple) and isinstance(dumped, list) and len(value) == len(dumped):
        return [ordered(one, other) for one, other in zip(value, dumped, strict=True)]
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, dict) and isinstance(dumped, dict) and len(value) == len(dumped):
        pairs = zip(value.values(), dumped.items(), strict=True)
        return {key: ordered(one, other) for one, (key, other) in pairs}
    return dumped


def _masked(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {k: MASK if k.casefold() in names else _masked(v, names) for k, v in value.items()}
    if isinstance(value, list):
        return [_masked(each, names) for each in value]
    return value

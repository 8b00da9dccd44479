"""Text of tools, users and models shown as data: in quotes that it cannot leave (CONTRACT E5)."""

from __future__ import annotations

import json
from typing import Any

from makegood.tasks.rules.callkeys import canonical_json

_CUT = "…"


def quoted(value: Any, chars: int) -> str:
    """Returns a value as JSON in one line of at most `chars` characters (at least 3), cut where it is longer.

    A short object or list stands as it is; what has to be cut becomes one JSON string that ends in "…". Every
    character that does not print (line ends of all kinds, direction marks) is escaped.
    """
    text = value if isinstance(value, str) else canonical_json(value).decode()
    if not isinstance(value, str) and len(text) <= chars:
        whole = _escaped(text)
        if len(whole) <= chars:
            return whole
    kept = text[: max(0, chars)]
    shown = _string(kept, cut=len(kept) < len(text))
    while len(shown) > chars and kept:
        kept = kept[: min(len(kept) - 1, len(kept) * chars // len(shown))]
        shown = _string(kept, cut=True)
    return shown


def shortened(value: Any, chars: int) -> Any:
    """Returns a value that `quoted` shows alike for up to `chars` characters, without the rest of a large one."""
    if isinstance(value, str):
        return value[: chars + 1]
    text = canonical_json(value).decode()
    return value if len(text) <= chars else text[: chars + 1]


def word(text: str, chars: int = 64) -> str:
    """Returns a name (of a tool, a code) as a bare word: what is no letter, digit or one of `_-./:` becomes `?`."""
    kept = text[:chars]
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-./:") else "?" for c in kept) or "?"


def _string(text: str, *, cut: bool) -> str:
    return _escaped(json.dumps(text + _CUT if cut else text, ensure_ascii=False))


def _escaped(text: str) -> str:
    # JSON's own escapes are ASCII already; what is left unprintable stands inside a string and may be escaped.
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)

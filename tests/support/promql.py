"""Which metrics a PromQL expression reads, with the labels that it picks and groups them by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<range>\[[^\]]*\])
  | (?P<variable>\$\w+|\$\{\w+\})
  | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
  | (?P<number>[0-9.]+(?:[eE][+-]?[0-9]+)?[smhdwy]?)
  | (?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^=<>(){},])
    """,
    re.VERBOSE,
)
OPERATORS = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan", "atan2"})
LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
"""Words before a list of labels in brackets."""

CLOSES = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class Matcher:
    """`label operator "value"` in braces."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Use:
    """A metric that an expression reads.

    Attributes:
        grouped: every label by which something around it is grouped (`sum by (…) (…)`).
    """

    metric: str
    matchers: tuple[Matcher, ...]
    grouped: frozenset[str]


Tokens = list[tuple[str, str]]


def tokens_of(expr: str) -> Tokens:
    """Kind and text of each token, without spaces; what is none is an error."""
    found: Tokens = []
    at = 0
    while at < len(expr):
        match = TOKEN.match(expr, at)
        if match is None:
            raise ValueError(f"no PromQL at {expr[at:]!r}")
        at = match.end()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
    return found


def uses_of(expr: str) -> list[Use]:
    """Every metric in an expression, in its order."""
    return list(_read(tokens_of(expr), frozenset()))


def lists_of(expr: str) -> dict[str, set[str]]:
    """Labels in lists: `by`, `on`, … → names."""
    tokens, found = tokens_of(expr), dict[str, set[str]]()
    for at, (kind, text) in enumerate(tokens):
        if kind == "name" and text in LISTS and tokens[at + 1 : at + 2] == [("sign", "(")]:
            found.setdefault(text, set()).update(_names(_inside(tokens, at + 1)))
    return found


def _read(tokens: Tokens, grouped: frozenset[str]) -> Iterator[Use]:
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        follows = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if text == "(":
            inner = _inside(tokens, at - 1)
            yield from _read(inner, grouped)
            at += len(inner) + 1
        elif kind == "name" and text in LISTS:
            labels = _inside(tokens, at)
            at += len(labels) + 2
            if text == "by":
                # The list stands before what is grouped: `sum by (a) (x)`, never `sum(x) by (a)`.
                inner = _inside(tokens, at)
                yield from _read(inner, grouped | _names(labels))
                at += len(inner) + 2
        elif kind == "name" and text.lower() not in OPERATORS and follows not in ("(", *LISTS):
            matchers = _inside(tokens, at) if follows == "{" else []
            at += len(matchers) + 2 if follows == "{" else 0
            yield Use(text, tuple(_matchers(matchers)), grouped)


def _inside(tokens: Tokens, at: int) -> Tokens:
    """What stands between the bracket at a place and the one that closes it."""
    opens = tokens[at][1] if at < len(tokens) else ""
    if opens not in CLOSES:
        raise ValueError(f"a bracket is missing after {' '.join(text for _, text in tokens[:at])!r}")
    depth = 0
    for end in range(at, len(tokens)):
        depth += {opens: 1, CLOSES[opens]: -1}.get(tokens[end][1], 0)
        if depth == 0:
            return tokens[at + 1 : end]
    raise ValueError(f"{opens} is not closed")


def _names(tokens: Tokens) -> set[str]:
    return {text for kind, text in tokens if kind == "name"}


def _matchers(tokens: Tokens) -> Iterator[Matcher]:
    while tokens:
        (_, label), (_, operator), (kind, value), *tokens = tokens
        if kind != "string":
            raise ValueError(f"{label}{operator}{value} compares with no text")
        tokens = tokens[1:]
        yield Matcher(label, operator, value[1:-1])

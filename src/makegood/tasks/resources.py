"""`@resource(kind)`: how to roll back what an agent or tool declared it would create or change (E2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

from makegood.errors import DeclarationError
from makegood.tasks.checks import check_signature, is_async, is_name

BUILT_IN: Final = frozenset({"redis_key", "path", "callback"})
_KIND: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_registered: dict[str, Resource] = {}

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Resource:
    """How one kind is rolled back: `fn(ctx, id, prior)`, safe to run twice; `prior` is the state before, or None."""

    kind: str
    fn: Callable[..., Any]
    is_async: bool


def resource(kind: str) -> Callable[[F], F]:
    """Register `fn(ctx, id, prior)` as the roll-back of a kind; the function is returned unchanged.

    One kind has one function in a process; importing the same module again replaces it.

    Raises:
        DeclarationError: the kind is no name, is built in (`redis_key`, `path`, `callback`), or has another function already.
    """
    if not is_name(kind, _KIND):
        raise DeclarationError(
            'resource needs the name of a kind, as @resource("temp_table"); use a-z A-Z 0-9 _ . -.'
        )
    if kind in BUILT_IN:
        raise DeclarationError(f"Resource kind {kind!r} is built in; choose another name.")

    def register(fn: F) -> F:
        check_signature(f"resource {kind!r}", fn, ("ctx", "id", "prior"))
        known = _registered.get(kind)
        if known is not None and _place(known.fn) != _place(fn):
            raise DeclarationError(
                f"Resource kind {kind!r} is declared twice, by {_place(known.fn)} and {_place(fn)}; rename one."
            )
        _registered[kind] = Resource(kind, fn, is_async(fn))
        return fn

    return register


def registered_resources() -> Mapping[str, Resource]:
    """The kinds registered in this process, by name; a read-only view."""
    return MappingProxyType(_registered)


def _place(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', repr(fn))}"

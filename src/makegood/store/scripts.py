"""The Lua operations: one file each, loaded once and called by hash, so that old and new workers coexist."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Generic, TypeVar

from makegood.store.buckets import lua_buckets
from makegood.store.states import lua_table

T = TypeVar("T")
Arg = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Op(Generic[T]):
    """One store operation as a value: what to send and how to read the reply.

    `script` names a file in lua/; None means `args` is a plain read command. Operations are repeated by the
    client when a reply is lost, so each is idempotent by its natural key (invariant 6).
    """

    script: str | None
    keys: tuple[str, ...]
    args: tuple[Arg, ...]
    parse: Callable[[Any], T]


@dataclass(frozen=True, slots=True)
class Script:
    """Source and SHA1 of one script."""

    name: str
    source: bytes
    sha: str


def _folder() -> Any:
    return resources.files("makegood.store").joinpath("lua")


@cache
def load_script(name: str) -> Script:
    """Script by name; those that touch a run get the table of transitions and the shared prelude in front."""
    body = _folder().joinpath(f"{name}.lua").read_text()
    if "-- STANDALONE" not in body:
        body = lua_table() + lua_buckets() + _folder().joinpath("_prelude.lua").read_text() + body
    source = body.encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def script_names() -> list[str]:
    """Names of all scripts, sorted."""
    found = (entry.name for entry in _folder().iterdir())
    return sorted(name[:-4] for name in found if name.endswith(".lua") and not name.startswith("_"))


def load_all() -> None:
    """Read every script now: what is installed while this process runs belongs to other arguments."""
    for name in script_names():
        load_script(name)


def command(op: Op[Any]) -> tuple[Arg, ...]:
    """The command of an operation; its texts may still be without a UTF-8 form (`escaped`)."""
    if op.script is None:
        return op.args
    return ("EVALSHA", load_script(op.script).sha, len(op.keys), *op.keys, *op.args)


def escaped(parts: Sequence[Any]) -> tuple[Any, ...]:
    """A command whose texts are bytes.

    Text that has no UTF-8 form (a lone surrogate in a message of the system) is escaped: it must not make the whole
    pipeline, which carries the operations of other runs, impossible to send.
    """
    return tuple(
        [part.encode(errors="backslashreplace") if isinstance(part, str) else part for part in parts]
    )


def wire(op: Op[Any]) -> tuple[Arg, ...]:
    """The command of an operation as redis-py's execute_command takes it."""
    if op.script is None:
        return escaped(op.args)
    return ("EVALSHA", load_script(op.script).sha, len(op.keys), *op.keys, *escaped(op.args))

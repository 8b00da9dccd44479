"""The checks behind `@tool`, `@agent` and `@resource`; each refusal is one sentence that says what to change."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from makegood.errors import DeclarationError
from makegood.tasks.records import ALL, Sentinel
from makegood.tasks.rules.rows import Effect

if TYPE_CHECKING:  # it loads pydantic, which a client does without
    from makegood.tasks.schema import Arguments

Identity = tuple[str, ...] | Literal[Sentinel.ALL]

NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what every provider accepts as the name of a function
BREAKER_NAME: Final = re.compile(r"[a-zA-Z0-9_./:-]{1,128}")


def is_name(value: object, pattern: re.Pattern[str]) -> bool:
    """Whether the value is a text that matches the pattern as a whole."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: also behind a plain wrapper that names what it wraps (functools.wraps)."""
    return any(map(inspect.iscoroutinefunction, (fn, inspect.unwrap(fn), type(fn).__call__)))


def check_signature(owner: str, fn: object, wanted: tuple[str, ...]) -> None:
    """Refuse a tool, and what cannot be called with these positional arguments."""
    shown = ", ".join(wanted)
    if not callable(fn) or hasattr(fn, "effect"):
        raise DeclarationError(f"{owner} needs a function taking ({shown}).")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DeclarationError(f"{owner} needs a function that returns, not one that yields.")
    try:
        inspect.signature(fn).bind(*wanted)
    except TypeError:
        raise DeclarationError(f"{owner} must take ({shown}) and no more.") from None
    except ValueError:
        raise DeclarationError(
            f"{owner} has no signature to check; wrap it in a def taking ({shown})."
        ) from None


def function_name(fn: object) -> str:
    """The name of the function as a tool's name, refused where a model provider would refuse it."""
    if not inspect.isfunction(fn):
        raise DeclarationError(f"@tool needs a function written with def, not {type(fn).__name__}.")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DeclarationError(f"Tool {fn.__name__!r} yields; a tool returns one value.")
    if not is_name(fn.__name__, NAME):
        raise DeclarationError(
            f"Tool name {fn.__name__[:80]!r} is not accepted by model providers; use 1 to 64 of a-z A-Z 0-9 _ -."
        )
    return fn.__name__


def check_choice(owner: str, option: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse any other value, and one that is only equal (1 is not True)."""
    if not any(type(value) is type(each) and value == each for each in choices):
        listed = ", ".join(repr(each) for each in choices)
        raise DeclarationError(f"{owner}: {option} is {str(value)[:60]!r}; give one of {listed}.")


def check_breaker_name(owner: str, given: str) -> str:
    """The name of a shared breaker; it becomes part of a key."""
    if is_name(given, BREAKER_NAME):
        return given
    raise DeclarationError(f"{owner}: breaker must be a name of 1 to 128 of a-z A-Z 0-9 _ . / : -.")


def check_identity(tool: str, effect: Effect, given: object, arguments: Arguments) -> Identity | None:
    """The arguments that identify the effect, as declared: existing names, ALL, or None for a read (D3)."""
    if given is ALL:
        return ALL
    if given is None:
        if effect == "read":
            return None
        raise DeclarationError(
            f"Tool {tool!r} has effects but no identity: name the arguments that identify the effect, "
            'as identity=("customer",), or say identity=ALL.'
        )
    names = tuple(given) if isinstance(given, list | tuple) else ()
    if not names or not all(isinstance(each, str) for each in names) or len(set(names)) < len(names):
        raise DeclarationError(
            f"Tool {tool!r}: identity must be a tuple of different parameter names, or ALL."
        )
    strangers = [each for each in names if each not in arguments.names]
    if strangers:
        known = ", ".join(arguments.names) or "none"
        raise DeclarationError(
            f"Tool {tool!r}: identity names {strangers[0]!r}, which is no parameter (its parameters: {known})."
        )
    secret = sorted(arguments.secret & set(names))
    if secret:
        raise DeclarationError(
            f"Tool {tool!r}: identity names the secret {secret[0]!r}, of which only a mask is kept; "
            "name an argument that is no secret."
        )
    return names


def check_importable(fn: Callable[..., Any]) -> None:
    """Refuse a function that a child process could not import (`isolation="process"`)."""
    if is_async(fn):
        raise DeclarationError(
            f'Tool {fn.__name__!r} is async, and isolation="process" is for sync tools; write it with def.'
        )
    module, path = fn.__module__, fn.__qualname__
    if module == "__main__" or "<" in path:
        raise DeclarationError(
            f'Tool {fn.__name__!r} cannot have isolation="process": a child process must be able to import '
            f"{module}:{path}; define it at the top of a module of its own."
        )

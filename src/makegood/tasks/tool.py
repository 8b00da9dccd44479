"""`@tool(...)`: a function becomes a tool, checked when it is declared (D3, D5)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, Literal, Protocol, get_args, overload

from typing_extensions import ParamSpec, TypeVar

from makegood.errors import DeclarationError
from makegood.tasks.checks import (
    Identity,
    check_breaker_name,
    check_choice,
    check_identity,
    check_importable,
    check_signature,
    function_name,
    is_async,
)
from makegood.tasks.masking import holds_mask
from makegood.tasks.policies import (
    OnFailure,
    RetryPolicy,
    check_on_failure,
    check_seconds,
    refuse_unbuilt,
)
from makegood.tasks.records import ALL, Sentinel
from makegood.tasks.rules.rows import Effect
from makegood.tasks.schema import Arguments, caller, scope_of

Isolation = Literal["thread", "process"]
UndoEffect = Literal["idempotent", "write"]

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)
F = TypeVar("F", bound=Callable[..., Any])
Q = ParamSpec("Q")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Compensation:
    """How a call is undone: `fn(ctx, call)`. `handles_unknown`: also for a call whose outcome is unknown.
    `effect="write"`: not safe to repeat, so an undo of unknown outcome goes to review (E9).
    """

    fn: Callable[..., Any]
    handles_unknown: bool
    effect: UndoEffect
    is_async: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """How to find out whether a call happened: `fn(ctx, call)` gives the response, NOT_DONE or UNKNOWN."""

    fn: Callable[..., Any]
    is_async: bool


class Tool(Generic[P, R]):
    """A declared tool; calling it calls its function. Made by `@tool(...)`, used as part of an `Agent`.

    Attributes:
        name, fn, is_async: the function and its name.
        effect: "read", "idempotent", "write" or "irreversible" (D5).
        identity: the arguments that identify the effect, ALL, or None for a read without one.
        timeout: L1 in seconds, or None for the agent's call limit.
        slow: it may take long now and then; `timeouts suggest` never proposes less than its longest try (A7).
        settle_after: seconds after which an unknown call may be settled, or None for its L1; 0 = at once.
        key_ttl: seconds the downstream remembers an idempotency key; None = for ever.
        breaker: name of its circuit breaker, its own name unless shared.
        retry, on_failure: its own policy, or None for the agent's.
        reuse: a read whose recorded response a later attempt may take.
        isolation: "thread", or "process" (a child that can be killed).
        compensation, probe_with: see `compensate` and `probe`; None while there is none.
        schema: {"type": "function", "function": {"name", "description", "parameters"}}, as sent to the model.
    """

    def __init__(self, fn: Callable[Concatenate[Any, P], R], effect: Effect, arguments: Arguments) -> None:
        """Not for users: `@tool(...)` checks the options and sets the attributes."""
        functools.update_wrapper(self, fn)
        self.name: str = fn.__name__
        self.fn = fn
        self.is_async = is_async(fn)
        self.effect: Effect = effect
        self.arguments = arguments
        self.identity: Identity | None = None
        self.timeout: float | None = None
        self.slow = False
        self.settle_after: float | None = None
        self.key_ttl: float | None = 86_400
        self.breaker: str = self.name
        self.retry: RetryPolicy | None = None
        self.on_failure: OnFailure | None = None
        self.reuse = False
        self.isolation: Isolation = "thread"
        self.compensation: Compensation | None = None
        self.probe_with: Probe | None = None
        described = {
            "name": self.name,
            "description": inspect.getdoc(fn) or "",
            "parameters": arguments.json_schema,
        }
        self.schema: dict[str, Any] = {"type": "function", "function": described}

    def __call__(self, ctx: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name} effect={self.effect}>"

    @overload
    def compensate(self, fn: F, /) -> F: ...
    @overload
    def compensate(
        self, *, handles_unknown: bool = False, effect: UndoEffect = "idempotent"
    ) -> Callable[[F], F]: ...
    def compensate(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        handles_unknown: bool = False,
        effect: UndoEffect = "idempotent",
    ) -> Any:
        """Declare how a call is undone: `@t.compensate` or `@t.compensate(handles_unknown=…, effect=…)` on
        `fn(ctx, call: RecordedCall)`, which is returned unchanged.

        Raises:
            DeclarationError: a read, a second compensation, a wrong signature, or a secret among the arguments
                (the journal keeps only a mask of it, so the compensation could not use it).
        """
        if fn is None:
            return functools.partial(self._compensate_with, handles_unknown, effect)
        return self._compensate_with(handles_unknown, effect, fn)

    @overload
    def probe(self, fn: F, /) -> F: ...
    @overload
    def probe(self) -> Callable[[F], F]: ...
    def probe(self, fn: Callable[..., Any] | None = None) -> Any:
        """Declare how to find out whether a call happened: `@t.probe` on `fn(ctx, call: RecordedCall)`, returned
        unchanged. It gives the response, NOT_DONE or UNKNOWN; raising counts as UNKNOWN.

        Raises:
            DeclarationError: a read, a second probe, or a wrong signature.
        """
        if fn is None:
            return self.probe
        self._check_helper("probe", fn, self.probe_with)
        self.probe_with = Probe(fn, is_async(fn))
        return fn

    def parse(self, raw_json: str | None) -> dict[str, Any]:
        """The keyword arguments of the function from the raw text of a model (B3); empty text means none.

        Raises:
            ArgumentsInvalid: one short sentence for the model.
        """
        return self.arguments.parse(raw_json)

    def bind(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments of the function from Python values (`ctx.call`). Raises ArgumentsInvalid."""
        return self.arguments.bind(kwargs)

    def encode_args(self, kwargs: Mapping[str, Any], secret_fields: Iterable[str] = ()) -> dict[str, Any]:
        """What the journal keeps of checked arguments: JSON, with secrets masked. `bind` reads it back.

        Raises:
            ArgumentsInvalid: a value is no JSON.
        """
        return self.arguments.encode(kwargs, secret_fields)

    def identity_of(self, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """Of encoded arguments those that identify the effect (D3): all under ALL and for a read without any."""
        if self.identity is None or self.identity is ALL:
            return dict(encoded)
        return {name: encoded[name] for name in self.identity if name in encoded}

    def bind_recorded(self, recorded: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a repeat: the recorded ones, but where these are masked those of the new call.

        Raises:
            ArgumentsInvalid: the tool's signature changed since they were recorded.
        """
        fresh = {
            name: kwargs[name] for name, value in recorded.items() if name in kwargs and holds_mask(value)
        }
        return self.bind({**recorded, **fresh})

    def wire_args(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Checked arguments as JSON with the secrets IN CLEAR, only for the pipe to a child process; `bind` reads
        them back. Raises ArgumentsInvalid when a value is no JSON.
        """
        return self.arguments.encode(kwargs, reveal=True)

    def check_masking(self, secret_fields: Iterable[str]) -> None:
        """Raises DeclarationError when MAKEGOOD_SECRET_FIELDS hides what the compensation needs (a worker asks)."""
        if self.compensation is not None:
            self._refuse_masked(self.arguments.masked_names(secret_fields))

    def _compensate_with(self, handles_unknown: bool, effect: UndoEffect, fn: F) -> F:
        self._check_helper("compensate", fn, self.compensation)
        check_choice(f"{self.name}.compensate", "handles_unknown", handles_unknown, (False, True))
        check_choice(f"{self.name}.compensate", "effect", effect, get_args(UndoEffect))
        self._refuse_masked(self.arguments.secret)
        self.compensation = Compensation(fn, handles_unknown, effect, is_async(fn))
        return fn

    def _refuse_masked(self, masked: Iterable[str]) -> None:
        names = ", ".join(sorted(masked))
        if names:
            raise DeclarationError(
                f"Tool {self.name!r} has a compensation and the secret argument {names}, of which the journal keeps "
                "only a mask; let the tool fetch the secret itself, or leave the compensation out."
            )

    def _check_helper(self, kind: str, fn: Callable[..., Any], known: object) -> None:
        if self.effect == "read":
            raise DeclarationError(f"Tool {self.name!r} is a read: there is nothing to {kind}; remove it.")
        if known is not None:
            raise DeclarationError(f"Tool {self.name!r} has two functions for {kind}; keep one.")
        check_signature(f"{self.name}.{kind}", fn, ("ctx", "call"))


class Declare(Protocol):
    """What `tool(...)` gives: a decorator for a function whose first parameter is the context."""

    def __call__(self, fn: Callable[Concatenate[Any, Q], S], /) -> Tool[Q, S]: ...


def tool(
    *misplaced: object,
    effect: Effect = "write",
    timeout: float | None = None,
    identity: Iterable[str] | Literal[Sentinel.ALL] | None = None,
    breaker: str | None = None,
    approval: bool = False,
    reuse: bool = False,
    on_failure: str | None = None,
    isolation: Isolation = "thread",
    retry: RetryPolicy | None = None,
    settle_after: float | None = None,
    key_ttl: float | None = 86_400,
    slow: bool = False,
    rate: str | None = None,
    max_running: int | None = None,
) -> Declare:
    """Declare a function `fn(ctx, …)`, async or not, as a tool; every parameter has a type hint.

    Times are seconds. The options are the attributes of `Tool`. `identity` is mandatory unless the tool only
    reads: the names of the arguments that identify the effect, or ALL (D3).

    Raises:
        DeclarationError: an option or the signature is not usable; the sentence says what to change.
        NotBuilt: approval, rate or max_running is given.
    """
    if misplaced:
        raise DeclarationError(
            'tool takes no positional arguments; write @tool(effect="read") above the function.'
        )

    def declare(fn: Callable[Concatenate[Any, Q], S], /) -> Tool[Q, S]:
        name = function_name(fn)
        owner = f"tool {name!r}"
        check_choice(owner, "effect", effect, get_args(Effect))
        check_choice(owner, "isolation", isolation, get_args(Isolation))
        check_seconds(f"{owner}: timeout", timeout, none="the agent's call limit")
        check_seconds(f"{owner}: settle_after", settle_after, none="its timeout", zero="none")
        check_seconds(f"{owner}: key_ttl", key_ttl, none="no limit")
        check_choice(owner, "reuse", reuse, (False, True))
        check_choice(owner, "slow", slow, (False, True))
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise DeclarationError(f"{owner}: retry must be a RetryPolicy(…) or None.")
        unbuilt = {"approval": (approval, False), "rate": (rate, None)}
        for option, (value, default) in (unbuilt | {"max_running": (max_running, None)}).items():
            refuse_unbuilt(f"tool({option}={value!r})", value, default)
        made = Tool(fn, effect, Arguments(name, fn, scope_of(caller(1), fn)))
        made.identity = check_identity(made.name, effect, identity, made.arguments)
        made.timeout, made.settle_after, made.key_ttl = timeout, settle_after, key_ttl
        made.breaker = name if breaker is None else check_breaker_name(owner, breaker)
        made.retry, made.reuse, made.slow = retry, reuse, slow
        made.on_failure = None if on_failure is None else check_on_failure(f"{owner}: on_failure", on_failure)
        if isolation == "process":
            check_importable(fn)
        made.isolation = isolation
        return made

    return declare

"""The limits and policies an agent declares: frozen values, checked when they are made.

`None` means no limit where it is allowed. Every refusal is one sentence that names the field. All times are
seconds. Nothing here decides anything: the rules read these values (A1, C2, C6, C7, C9, G1-G6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final, Literal, cast

from makegood.errors import DeclarationError, NotBuilt

OnFailure = Literal["rollback", "keep"]

LARGEST_SECONDS: Final = 1e9  # 31 years; in milliseconds still an exact integer for Lua
LARGEST_COUNT: Final = 10**12  # far above any use, and an exact integer for Lua
SMALLEST_LIMIT_S: Final = 0.001  # the clocks count milliseconds; less would be a limit of 0

_ON_FAILURE: Final[dict[str, OnFailure]] = {
    "rollback": "rollback",
    "rollback_on_fail": "rollback",
    "keep": "keep",
    "commit_on_complete": "keep",
}


def check_number(field: str, value: object, *, whole: bool = False) -> None:
    """Refuse what is no finite number, negative, or absurdly large; `whole` asks for an int."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        wanted = "a whole number" if whole else "a number"
        raise DeclarationError(f"{field} is {_shown(value)}; give {wanted}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise DeclarationError(
            f"{field} is {value}; give a finite number, or None where no limit is allowed."
        )
    if value < 0:
        raise DeclarationError(f"{field} is {_shown(value)}; it cannot be negative, give a number from 0 up.")
    largest = LARGEST_COUNT if whole else LARGEST_SECONDS
    if value > largest:
        raise DeclarationError(f"{field} is {_shown(value)}; give at most {largest:g}.")


def check_seconds(field: str, value: object, *, none: str | None = None, zero: str | None = None) -> None:
    """Check a time in seconds; `none` and `zero` say what None and 0 mean, or are None where they are refused."""
    if value is None:
        if none is None:
            raise DeclarationError(f"{field} is None; it must exist, give a number of seconds above 0.")
        return
    check_number(field, value)
    if value == 0:
        if zero is None:
            raise DeclarationError(f"{field} is 0; give a number of seconds above 0{_or_none(none)}.")
        return
    if zero is None and cast("float", value) < SMALLEST_LIMIT_S:
        raise DeclarationError(
            f"{field} is {_shown(value)}; give at least {SMALLEST_LIMIT_S:g} (one millisecond)."
        )


def check_count(field: str, value: object, *, none: str | None = None, zero: str | None = None) -> None:
    """Check a whole number; `none` and `zero` say what None and 0 mean, or are None where they are refused."""
    if value is None:
        if none is None:
            raise DeclarationError(
                f"{field} is None; it must exist, give a whole number from {0 if zero else 1} up."
            )
        return
    check_number(field, value, whole=True)
    if value == 0 and zero is None:
        raise DeclarationError(f"{field} is 0; give a whole number from 1 up{_or_none(none)}.")


def check_on_failure(field: str, value: object) -> OnFailure:
    """One of "rollback" and "keep", also by their aliases "rollback_on_fail" and "commit_on_complete" (E4)."""
    found = _ON_FAILURE.get(value) if isinstance(value, str) else None
    if found is None:
        raise DeclarationError(f'{field} is {_shown(value)}; give "rollback" or "keep".')
    return found


def refuse_unbuilt(field: str, value: object, default: object) -> None:
    """Refuse a parameter of a capability that is not built yet, unless it stands at its default."""
    if type(value) is not type(default) or value != default:
        raise NotBuilt(f"{field} is not built yet; leave it at its default ({default!r}).")


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_COUNT:
        return "a number too large"
    text = repr(value)
    return text if len(text) <= 60 else f"a value of type {type(value).__name__}"


def _or_none(none: str | None) -> str:
    return f", or None for {none}" if none else ""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits in seconds (A1, B6). A limit above its parent's is allowed; the smaller one applies.

    Attributes:
        call: L1, one try of a tool call. Never None.
        step: L2, one model decision with its tool calls, all tries and waits included. Never None.
        run: L3, one attempt. Never None.
        total: wall clock from the first claim; None = max_attempts x run + cleanup.
        model: one model request as a whole; None = what is left of the step.
        first_token: until the first event of a streamed request; 0 or None = off.
        idle: between two events of a streamed request; 0 or None = off.
        connect: until the connection stands; None = no limit of its own.
        cleanup: one pass of cleanup; None = no limit.
        compensation: one try of a compensation, a probe or a roll-back; None = what is left of the pass.
    """

    call: float = 10
    step: float = 60
    run: float = 300
    total: float | None = None
    model: float | None = 60
    first_token: float | None = 15
    idle: float | None = 20
    connect: float | None = 5
    cleanup: float | None = 60
    compensation: float | None = 10

    def __post_init__(self) -> None:
        for name in ("call", "step", "run"):
            check_seconds(f"Timeouts.{name}", getattr(self, name))
        check_seconds("Timeouts.total", self.total, none="max_attempts x run + cleanup")
        for name in ("model", "connect", "cleanup", "compensation"):
            check_seconds(f"Timeouts.{name}", getattr(self, name), none="no limit")
        for name in ("first_token", "idle"):
            check_seconds(f"Timeouts.{name}", getattr(self, name), none="no limit", zero="off")


@dataclass(frozen=True, slots=True)
class Budgets:
    """What a run may use up (G1-G6); None = no limit. Only `steps` is built yet.

    Attributes:
        run_tokens, session_tokens: prompt + completion tokens of a run, of a session.
        tool_seconds: wall clock of tools, parallel calls of a step counted once.
        steps: steps per attempt (G6).
        subagents, subagent_steps, depth: sub-agents per run, steps of each, how deep; 0 sub-agents or depth = none.
        cost, session_cost: US dollars per run, per session.
    """

    run_tokens: int | None = 100_000
    session_tokens: int | None = 200_000
    tool_seconds: float | None = 120
    steps: int | None = 20
    subagents: int | None = 3
    subagent_steps: int | None = 10
    depth: int | None = 2
    cost: float | None = None
    session_cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("run_tokens", "session_tokens", "steps", "subagent_steps"):
            check_count(f"Budgets.{name}", getattr(self, name), none="no limit")
        for name in ("subagents", "depth"):
            check_count(f"Budgets.{name}", getattr(self, name), none="no limit", zero="none")
        check_seconds("Budgets.tool_seconds", self.tool_seconds, none="no limit")
        for name in ("cost", "session_cost"):
            _check_cost(f"Budgets.{name}", getattr(self, name))
        for field in fields(self):
            if field.name != "steps" and getattr(self, field.name) != field.default:
                raise NotBuilt(
                    f"Budgets.{field.name} is not built yet; leave it at its default ({field.default!r})."
                )


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed try is repeated (C1, C2, C6, C7).

    Attributes:
        retries: retries after the first try; 0 = none. Never None: the number of sends must have a bound (C4, C11).
        backoff: seconds before the first retry, doubling after that; 0 = no wait.
        max_backoff: cap of a wait in seconds; None = no cap (see `cap_s`).
        jitter: share by which a wait varies, 0 to 1; 0 = none.
        assumed_cost: seconds one model try is taken to cost before it was measured; None = its own limit.
    """

    retries: int = 5
    backoff: float = 0.5
    max_backoff: float | None = 10
    jitter: float = 0.1
    assumed_cost: float | None = 10

    def __post_init__(self) -> None:
        check_count("RetryPolicy.retries", self.retries, zero="none")
        check_seconds("RetryPolicy.backoff", self.backoff, zero="no wait")
        check_seconds("RetryPolicy.max_backoff", self.max_backoff, none="no cap")
        check_seconds("RetryPolicy.assumed_cost", self.assumed_cost, none="the limit of the try")
        check_number("RetryPolicy.jitter", self.jitter)
        if self.jitter > 1:
            raise DeclarationError(f"RetryPolicy.jitter is {self.jitter}; give a share from 0 to 1.")

    @property
    def cap_s(self) -> float:
        """The cap of one wait in seconds; infinite when there is none."""
        return math.inf if self.max_backoff is None else self.max_backoff


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a breaker opens (C9): `failures` infrastructure failures in a row within `window` seconds open it
    for `open_for` seconds. None of them may be None or 0.
    """

    failures: int = 8
    window: float = 60
    open_for: float = 30

    def __post_init__(self) -> None:
        check_count("BreakerPolicy.failures", self.failures)
        check_seconds("BreakerPolicy.window", self.window)
        check_seconds("BreakerPolicy.open_for", self.open_for)


def _check_cost(field: str, value: object) -> None:
    if value is None:
        return
    check_number(field, value)
    if value == 0:
        raise DeclarationError(f"{field} is 0; give an amount above 0, or None for no limit.")

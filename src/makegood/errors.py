"""Every error that makegood shows to its users; imports nothing, so that any layer may raise them.

Each message is one sentence or two: what happened, to which run or declaration, and what to do about it.
A docstring below is the style of its message.
"""

from __future__ import annotations


class MakegoodError(Exception):
    """Base of all errors of makegood; catch it to catch them all."""


class DeclarationError(MakegoodError, ValueError):
    """Tool 'create_ticket' has no identity: name the arguments that identify its effect, or say identity=ALL."""


class NotBuilt(MakegoodError):
    """tool(approval=True) is not built yet; leave it at its default (False)."""


class SettingsError(MakegoodError, ValueError):
    """MAKEGOOD_LEESE_S is no setting of makegood; did you mean MAKEGOOD_LEASE_S?"""


class UnknownAgent(MakegoodError):
    """No worker serves an agent named 'suport'; start a worker that declares it, or correct the name."""


class InvalidInput(MakegoodError, ValueError):
    """The input of agent 'support' is not valid: order: is required; correct it and enqueue again."""


class PayloadTooLarge(InvalidInput):
    """The input of agent 'support' has 2.1 MiB, more than 1 MiB; store it elsewhere and pass a reference."""


class ArgumentsInvalid(MakegoodError, ValueError):
    """The arguments of create_ticket are not valid: title: is required. (Told to the model, which may call again.)"""


class OutputInvalid(MakegoodError, ValueError):
    """The answer is not a valid Report: rows: is required. (Told to the model, which may answer again.)"""


class KeyConflict(MakegoodError):
    """Key 'order-42' of agent 'support' already belongs to run R with another input; use a new key."""


class BreakerOpen(MakegoodError):
    """Breaker 'tickets' is open until 12:00:30 UTC, so the run was not accepted; enqueue it again after that."""


class WaitTimeout(MakegoodError, TimeoutError):
    """Run R is still running after 30 s; wait again, or look at it with `makegood runs show R`."""


class StillStopping(MakegoodError, TimeoutError):
    """Run R was told to stop but hangs in create_ticket for 12 s; look again with `makegood runs show R`."""


class RunNotFound(MakegoodError, LookupError):
    """There is no run R in this store; check the id and the URL."""


class StoreUnreachable(MakegoodError, ConnectionError):
    """The store at redis://localhost:6379/0 does not answer; start it, or correct MAKEGOOD_REDIS_URL."""


class BrokerUnreachable(MakegoodError, ConnectionError):
    """The broker does not answer; run R is stored and starts when a worker's sweeper finds it."""


class NotAllowed(MakegoodError, PermissionError):
    """The state store at redis://reader@localhost:6379/0 does not allow this; let its administrator grant it."""


class UnsupportedServer(MakegoodError):
    """The store is Redis 6.2; makegood needs Redis 7.0 or Valkey 8, or newer."""


class Conflict(MakegoodError):
    """Run R is in review and cannot be cancelled; resolve it with `makegood review resolve R`."""


class StaleFence(MakegoodError):
    """Run R was taken over by another worker (fence 4 is older than 5); this worker's write was refused."""


class RunCancelled(MakegoodError):
    """Run R was cancelled. What the code of a coroutine agent sees at its next `ctx.call` or `ctx.model`; let it pass."""


class ToolError(MakegoodError):
    """A tool's business failure: it is told to the model, means that no effect took place, and is not retried.

    Raise it in a tool as `ToolError("no such customer", code="NO_CUSTOMER")`. A coroutine agent's `ctx.call`
    raises it for every failed call.

    Attributes:
        message: what the model is told, one sentence.
        code: a short machine-readable word, or None.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class LockTimeout(ToolError):
    """Lock 'account-7' is held by someone else and was not free within the limit of the call (10.0 s).

    Told to the model with the code LOCK_TIMEOUT, and not retried. `nothing_done`: the call had neither sent a request nor
    declared or locked anything before, so that it had no effect.
    """

    def __init__(self, message: str, *, nothing_done: bool = True) -> None:
        super().__init__(message, code="LOCK_TIMEOUT")
        self.nothing_done = nothing_done


class RetryableToolError(ToolError):
    """A tool's infrastructure failure: raising it vouches that nothing has left, so the call is retried (C6).

    A kind of ToolError for whoever catches it; who classifies failures asks for this one first.
    """

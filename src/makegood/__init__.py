"""makegood runs LLM agents as Celery tasks; every run ends finished, or made good.

These are the public names and nothing else. Each is loaded when it is first used, so that `import makegood`
costs nothing, and declaring and enqueueing load neither a model library nor a worker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from makegood.errors import (
        ArgumentsInvalid,
        BreakerOpen,
        BrokerUnreachable,
        Conflict,
        DeclarationError,
        InvalidInput,
        KeyConflict,
        LockTimeout,
        MakegoodError,
        NotAllowed,
        NotBuilt,
        OutputInvalid,
        PayloadTooLarge,
        RetryableToolError,
        RunCancelled,
        RunNotFound,
        SettingsError,
        StaleFence,
        StillStopping,
        StoreUnreachable,
        ToolError,
        UnknownAgent,
        UnsupportedServer,
        WaitTimeout,
    )
    from makegood.tasks.agent import Agent, agent
    from makegood.tasks.client import AsyncClient, AsyncRun, Client, Run
    from makegood.tasks.context import ToolContext
    from makegood.tasks.policies import BreakerPolicy, Budgets, RetryPolicy, Timeouts
    from makegood.tasks.records import ALL, NOT_DONE, UNKNOWN, RecordedCall, Result
    from makegood.tasks.resources import resource
    from makegood.tasks.tool import tool

__all__ = [
    "ALL",
    "NOT_DONE",
    "UNKNOWN",
    "Agent",
    "ArgumentsInvalid",
    "AsyncClient",
    "AsyncRun",
    "BreakerOpen",
    "BreakerPolicy",
    "BrokerUnreachable",
    "Budgets",
    "Client",
    "Conflict",
    "DeclarationError",
    "InvalidInput",
    "KeyConflict",
    "LockTimeout",
    "MakegoodError",
    "NotAllowed",
    "NotBuilt",
    "OutputInvalid",
    "PayloadTooLarge",
    "RecordedCall",
    "Result",
    "RetryPolicy",
    "RetryableToolError",
    "Run",
    "RunCancelled",
    "RunNotFound",
    "SettingsError",
    "StaleFence",
    "StillStopping",
    "StoreUnreachable",
    "Timeouts",
    "ToolContext",
    "ToolError",
    "UnknownAgent",
    "UnsupportedServer",
    "WaitTimeout",
    "agent",
    "resource",
    "tool",
]

# What is not listed here is an error, from makegood.errors.
_HOME = {
    "ALL": "makegood.tasks.records",
    "NOT_DONE": "makegood.tasks.records",
    "UNKNOWN": "makegood.tasks.records",
    "Agent": "makegood.tasks.agent",
    "AsyncClient": "makegood.tasks.client",
    "AsyncRun": "makegood.tasks.client",
    "BreakerPolicy": "makegood.tasks.policies",
    "Budgets": "makegood.tasks.policies",
    "Client": "makegood.tasks.client",
    "RecordedCall": "makegood.tasks.records",
    "Result": "makegood.tasks.records",
    "RetryPolicy": "makegood.tasks.policies",
    "Run": "makegood.tasks.client",
    "Timeouts": "makegood.tasks.policies",
    "ToolContext": "makegood.tasks.context",
    "agent": "makegood.tasks.agent",
    "resource": "makegood.tasks.resources",
    "tool": "makegood.tasks.tool",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'makegood' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME.get(name, "makegood.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

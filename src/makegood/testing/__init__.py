"""Helpers for tests of agents: a scripted model provider behind a real HTTP endpoint.

See `makegood.testing.provider` for an example. Of makegood itself only the demo imports this package.
"""

from __future__ import annotations

from makegood.testing.provider import Provider
from makegood.testing.provider_behaviours import (
    Behaviour,
    Body,
    Close,
    CutStream,
    ErrorEvent,
    Events,
    Garbage,
    Html200,
    JsonError200,
    Raw,
    Reply,
    Reset,
    Stall,
    Status,
)
from makegood.testing.provider_openai import openai_delta, openai_tool
from makegood.testing.provider_records import ConnectionRecord, RequestRecord, Signal

__all__ = [
    "Behaviour",
    "Body",
    "Close",
    "ConnectionRecord",
    "CutStream",
    "ErrorEvent",
    "Events",
    "Garbage",
    "Html200",
    "JsonError200",
    "Provider",
    "Raw",
    "Reply",
    "RequestRecord",
    "Reset",
    "Signal",
    "Stall",
    "Status",
    "openai_delta",
    "openai_tool",
]

"""Agents of the crash tests whose runs leave something behind: what a run does is written in its input.

FAULTS names the plan of faults, SHOP_URL and MODEL_URL the test's servers. Files are written to the plan's folder.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from makegood import (
    NOT_DONE,
    Agent,
    BreakerPolicy,
    RecordedCall,
    Result,
    RetryPolicy,
    Timeouts,
    ToolContext,
    ToolError,
    tool,
)
from makegood.tasks.tool import Tool
from makegood.testing.faults import arm, pass_point

SHOP = os.environ["SHOP_URL"]
PLAN = arm(os.environ["FAULTS"])

STEP_S = 1.5
"""L2 where something hangs and is to be cut; everything else takes a twentieth of it."""

CALL_S = 2.0
"""L1 of calls that hang once: beyond L2, and not long where a cleanup is the first to repeat one."""

SETTLE_S = 4.0
"""So long a request of `missed` may still land; long enough for a cleanup to come and see that it has to wait."""


async def book(ctx: ToolContext, collection: str, name: str) -> dict[str, Any]:
    """The effect: one member of a collection of the shop."""
    body = {"customer": "c", "title": name, "to": name, "city": name, "item": name}
    response = await ctx.http.post(f"{SHOP}/{collection}", json=body)
    response.raise_for_status()
    return dict(response.json())


async def unbook(ctx: ToolContext, collection: str, call: RecordedCall) -> None:
    """Delete it; the point `mid_compensation` lies between the effect and its answer."""
    response = await ctx.http.delete(f"{SHOP}/{collection}/{call.response['id']}")
    if response.status_code != HTTPStatus.NOT_FOUND:
        response.raise_for_status()
    await pass_point(PLAN, "mid_compensation")


async def found_at_shop(ctx: ToolContext, collection: str, call: RecordedCall) -> Any:
    """What a probe says: what was created under the call's key."""
    response = await ctx.http.get(f"{SHOP}/{collection}/by-key/{call.idempotency_key}")
    if response.status_code == HTTPStatus.NOT_FOUND:
        return NOT_DONE
    response.raise_for_status()
    return response.json()


async def hang_once(name: str) -> None:
    """Hang for ever, the first time."""
    mark = PLAN.folder / f"{name}.hung"
    if not mark.exists():
        mark.touch()
        await asyncio.Event().wait()


# --- what can be undone -----------------------------------------------------------------------------------------------


@tool(effect="idempotent", identity=("name",))
async def flight(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Book a flight; the point `mid_tool` lies between its effect and its answer."""
    booked = await book(ctx, "flights", name)
    await pass_point(PLAN, "mid_tool")
    return booked


@flight.compensate
async def no_flight(ctx: ToolContext, call: RecordedCall) -> None:
    """Cancel it."""
    await unbook(ctx, "flights", call)


@tool(effect="idempotent", identity=("name",))
async def hotel(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Book a hotel."""
    return await book(ctx, "hotels", name)


@hotel.compensate
async def no_hotel(ctx: ToolContext, call: RecordedCall) -> None:
    """Cancel it."""
    await unbook(ctx, "hotels", call)


# --- what nobody heard the end of ---------------------------------------------------------------------------------------


@tool(effect="write", identity=("name",), timeout=CALL_S, settle_after=0)
async def found(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Make a ticket, and never say so; a probe finds it."""
    made = await book(ctx, "tickets", name)
    await hang_once(name)
    return made


@tool(effect="write", identity=("name",), timeout=CALL_S, settle_after=SETTLE_S)
async def missed(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Hang before anything was sent; a probe finds nothing, which counts only when nothing can land any more."""
    await hang_once(name)
    return await book(ctx, "tickets", name)


@tool(effect="idempotent", identity=("name",), timeout=CALL_S)
async def again(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Make a ticket, and never say so; the repeat under the same key does."""
    made = await book(ctx, "tickets", name)
    await hang_once(name)
    return made


@tool(effect="write", identity=("name",), timeout=CALL_S, on_failure="keep")
async def lost(ctx: ToolContext, name: str) -> dict[str, Any]:
    """Make an order, and never say so; nothing can tell."""
    made = await book(ctx, "orders", name)
    await hang_once(name)
    return made


async def probe_ticket(ctx: ToolContext, call: RecordedCall) -> Any:
    """Ask the shop."""
    return await found_at_shop(ctx, "tickets", call)


async def no_ticket(ctx: ToolContext, call: RecordedCall) -> None:
    """Withdraw it."""
    await unbook(ctx, "tickets", call)


for each in (found, missed):
    each.probe(probe_ticket)
for each in (found, missed, again):
    each.compensate(no_ticket)


# --- what stays, or does not let itself be undone -----------------------------------------------------------------------


@tool(effect="irreversible", identity=("name",))
async def mail(ctx: ToolContext, name: str) -> dict[str, Any]:
    """What cannot be undone."""
    return await book(ctx, "orders", name)


@tool(effect="idempotent", identity=("name",))
async def stuck(ctx: ToolContext, name: str) -> dict[str, Any]:
    """A flight that can be cancelled only once a person has opened the way."""
    return await book(ctx, "flights", name)


@stuck.compensate
async def no_stuck(ctx: ToolContext, call: RecordedCall) -> None:
    """Fails until the file is there."""
    if not (PLAN.folder / f"{call.args['name']}.open").exists():
        raise ToolError("The airline is on strike.")
    await unbook(ctx, "flights", call)


@tool(effect="idempotent", identity=("name",))
async def guarded(ctx: ToolContext, name: str) -> dict[str, Any]:
    """A flight whose cancellation waits for the test."""
    return await book(ctx, "flights", name)


@guarded.compensate
async def no_guarded(ctx: ToolContext, call: RecordedCall) -> None:
    """Waits for the file."""
    PLAN.passing("guarded")
    while not (PLAN.folder / f"{call.args['name']}.open").exists():  # noqa: ASYNC110  # another process opens it
        await asyncio.sleep(0.01)
    await unbook(ctx, "flights", call)


@tool(effect="idempotent", identity=("name",))
async def bomb(ctx: ToolContext, name: str) -> dict[str, Any]:
    """A flight whose cancellation takes its process down."""
    return await book(ctx, "flights", name)


@bomb.compensate
async def no_bomb(ctx: ToolContext, call: RecordedCall) -> None:
    """Counts how often."""
    PLAN.passing("bomb")
    os.kill(os.getpid(), signal.SIGKILL)


# --- files, locks, ends -------------------------------------------------------------------------------------------------


def file_of(name: str) -> Path:
    """The file that a call changes."""
    return PLAN.folder / f"{name}.txt"


@tool(effect="idempotent", identity=("name",))
async def note(ctx: ToolContext, name: str) -> None:
    """Change a file, declared before."""
    path = file_of(name)
    await ctx.declare("path", str(path))
    path.write_text("after")


@note.compensate
async def no_note(ctx: ToolContext, call: RecordedCall) -> None:
    """The file is a declared resource."""


@tool(effect="read")
async def clutch(ctx: ToolContext, name: str) -> int:
    """Take a lock and never give it back, as code would that was killed inside."""
    token: int = await ctx.lock(name).__aenter__()
    return token


@tool(effect="read")
async def give_up(ctx: ToolContext, name: str) -> None:
    """A bug that ends the run at once, without an effect of its own."""
    raise SystemExit("no car")


@tool(effect="read", timeout=60)
async def hang(ctx: ToolContext, name: str) -> None:
    """Hang for ever."""
    await asyncio.Event().wait()


@tool(effect="read", timeout=60)
async def hang_first(ctx: ToolContext, name: str) -> str:
    """Hang in the first attempt only."""
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return "went on"


TOOLS: list[Tool[Any, Any]] = [
    flight,
    hotel,
    found,
    missed,
    again,
    lost,
    mail,
    stuck,
    guarded,
    bomb,
    note,
    clutch,
    give_up,
    hang,
    hang_first,
]


async def not_finished(ctx: ToolContext, run: Result) -> bool:
    """What `verify` says of a run that hung."""
    assert (run.state, run.run_id) == ("timed_out", ctx.run_id)
    return False


def mending(
    name: str, *, attempts: int = 1, step_s: float = STEP_S, verify: Callable[..., Any] | None = None
) -> Agent:
    """An agent that leaves nothing behind."""
    return Agent(
        name,
        "openai/any",
        tools=TOOLS,
        model_args={"api_base": os.environ["MODEL_URL"], "api_key": "k"},
        on_failure="rollback",
        max_attempts=attempts,
        retry=RetryPolicy(retries=5, backoff=0.05, max_backoff=0.5),
        tool_retry=RetryPolicy(retries=5, backoff=0.05, max_backoff=0.5),
        breaker=BreakerPolicy(failures=1_000_000),  # what hangs here is no downstream that is ill
        timeouts=Timeouts(call=60, step=step_s, run=300, compensation=20),
        verify=verify,
    )


mend = mending("mend", verify=not_finished)
anew = mending("anew", attempts=2)
calm = mending("calm", step_s=120)

"""How bodies are started and end: async behind a decorator, awaitables, GeneratorExit, threads, calls without a limit."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from makegood import ToolContext, resource, tool
from makegood.errors import DeclarationError
from makegood.tasks.checks import is_async
from makegood.tasks.context import DeadlineView
from makegood.tasks.http import AttemptHttp, CallFacts, CallTransport
from makegood.tasks.resources import registered_resources
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.runners import TaskRunning, awaited, returned
from makegood.tasks.threads import SyncPool


def plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that says what it wraps, and no more."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


async def work(ctx: Any = None, id: Any = None, prior: Any = None) -> str:  # noqa: A002
    return "done"


def sync_work(ctx: Any = None) -> str:
    return "done"


class Caller:
    async def __call__(self, ctx: Any, id: str, prior: Any) -> str:  # noqa: A002
        return "done"


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (work, True),
        (plain(work), True),
        (plain(plain(work)), True),
        (functools.partial(work, 1), True),
        (Caller(), True),
        (sync_work, False),
        (plain(sync_work), False),
        (functools.partial(sync_work, 1), False),
        (Caller, False),
    ],
)
def test_async_is_seen_through_what_stands_in_front(fn: Callable[..., Any], expected: bool) -> None:
    """A plain wrapper returns what it wraps returns."""
    assert is_async(fn) is expected


def test_declarations_see_it_too() -> None:
    """A tool, and a kind of resource; a child process is for sync tools."""

    @plain
    async def look(ctx: ToolContext) -> str:
        return "seen"

    assert tool(effect="read")(look).is_async
    resource("of_the_bodies_test")(plain(work))
    assert registered_resources()["of_the_bodies_test"].is_async
    with pytest.raises(DeclarationError, match="is async"):
        tool(effect="read", isolation="process")(look)


def test_a_sync_function_may_not_return_an_awaitable() -> None:
    """Nobody would await it; a coroutine is closed. Whatever else it returns is its value."""
    made = work()
    with pytest.raises(TypeError, match=r"^look returned an awaitable; declare it with async def, or .*\.$"):
        returned("look", made)
    with pytest.raises(RuntimeError, match="already awaited"):
        asyncio.run(made)
    assert returned("look", None) is None
    assert asyncio.run(awaited(plain(work))) == asyncio.run(awaited(sync_work)) == "done"


@pytest.mark.contract("F8")
def test_generator_exit_ends_a_task_as_any_error_does() -> None:
    """Unless it comes from outside, because the loop is gone."""

    async def leave() -> None:
        raise GeneratorExit

    async def ends() -> tuple[bool, Any] | None:
        running = TaskRunning(leave(), "t")
        await running._task
        return running.ending.outcome

    outcome = asyncio.run(ends())
    assert outcome is not None
    assert not outcome[0]
    assert isinstance(outcome[1], GeneratorExit)

    async def begins() -> TaskRunning:
        running = TaskRunning(asyncio.Event().wait(), "t")
        await asyncio.sleep(0)
        return running

    loop = asyncio.new_event_loop()
    running = loop.run_until_complete(begins())
    running._task.get_coro().close()  # type: ignore[union-attr]  # as when it is collected
    assert not running.ending.done()
    running._task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


@pytest.mark.contract("E6")
def test_a_thread_of_an_async_body_is_awaited_however_often_it_is_cancelled() -> None:
    """From the second time on it counts as stuck; its slot is free again when it ends."""
    began, gate = threading.Event(), threading.Event()

    def hang() -> str:
        began.set()
        assert gate.wait(30)
        return "late"

    async def play() -> None:
        pool = SyncPool(1)
        assert await pool.call(lambda: "quick") == "quick"
        with pytest.raises(ZeroDivisionError):
            await pool.call(lambda: 1 // 0)
        running = TaskRunning(pool.call(hang), "t")
        await asyncio.get_running_loop().run_in_executor(None, began.wait, 30)
        for stuck in (0, 1, 1):
            running.stop()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (running.ending.done(), pool.stuck) == (False, stuck)
        gate.set()
        await asyncio.wait([running._task])
        assert running.ending.outcome is not None
        assert isinstance(running.ending.outcome[1], asyncio.CancelledError)
        assert pool.stuck == 0
        assert pool.try_reserve()
        pool.close()

    asyncio.run(play())


@pytest.mark.contract("A3")
def test_a_call_without_a_limit_says_so() -> None:
    """No deadline travels, no phase is bounded but by whoever asked for it; `at` is the last of all days."""
    sent: list[httpx.Request] = []

    class Pool(AttemptHttp):
        transport = httpx.MockTransport(lambda request: (sent.append(request), httpx.Response(200))[1])  # type: ignore[assignment]

    async def ask(deadline: Deadline, **options: Any) -> httpx.Request:
        transport = CallTransport(Pool(), CallFacts("r", "k", deadline, monotonic=lambda: 0.0))
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            await client.get("http://shop", **options)
        return sent[-1]

    endless = Deadline(math.inf, "run")
    request = asyncio.run(ask(endless))
    assert "x-deadline-ms" not in request.headers
    assert request.headers["idempotency-key"] == "k"
    assert set(request.extensions["timeout"].values()) == {None}
    assert set(asyncio.run(ask(endless, timeout=3)).extensions["timeout"].values()) == {3}
    request = asyncio.run(ask(Deadline(2.0, "call")))
    assert request.headers["x-deadline-ms"] == "2000"
    assert max(request.extensions["timeout"].values()) == pytest.approx(2.05)
    assert DeadlineView(endless).at == datetime.max.replace(tzinfo=UTC)
    left = DeadlineView(Deadline(5.0, "call"), lambda: 0.0).at - datetime.now(UTC)
    assert 0 < left.total_seconds() <= 5

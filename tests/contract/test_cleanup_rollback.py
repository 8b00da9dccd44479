"""Rolling back: it destroys nothing that is finished, detaches nothing, and survives what users write (CONTRACT A2, E2, E6, F8)."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contract.test_cleanup_pipeline import Ledger, asks_for, booking, give_up
from makegood import RecordedCall, RetryPolicy, ToolContext, ToolError, tool
from makegood.cleanup import bodies
from makegood.tasks import paths
from makegood.tasks.rollbacks import load_resources
from makegood.testing import Behaviour, Reply, RequestRecord
from support.engine import (
    MakeProvider,
    Shop,
    Workers,
    begun_anew,
    calls,
    events_of,
    eventually,
    limits,
    make_agent,
)

LONG_S = 30.0


class Gate:
    """Work that hangs where it comes by first, until it is let through."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []

    def pass_by(self) -> bool:
        """Whether this was the first, which was held."""
        self.threads.append(threading.current_thread())
        first = not self.entered.is_set()
        self.entered.set()
        if first:
            assert self.opened.wait(2 * LONG_S)
        return first


async def nothing(ctx: ToolContext, call: RecordedCall) -> None:
    """Everything is a declared resource."""


def writer(file: Path, **options: Any) -> Any:
    """A tool that declares the file and writes it; its first call fails half-way."""
    began: list[int] = []

    @tool(effect="idempotent", identity=("month",), **options)
    async def write(ctx: ToolContext, month: str = "5") -> str:
        await ctx.declare("path", str(file))
        began.append(ctx.attempt)
        file.write_text("half")
        if len(began) == 1:
            raise ToolError("the warehouse said no")
        file.write_text("whole")
        return "written"

    return write


# --- what is finished stays -----------------------------------------------------------------------------------------


@pytest.mark.contract("E2")
@pytest.mark.contract("E4")
def test_a_failed_call_does_not_take_the_file_of_the_one_that_wrote_it(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """Under keep the first call's file would be rolled back: to nothing, though the second has finished it."""
    file = tmp_path / "report.csv"
    agent = make_agent(model(asks_for("write", "write", "give_up")), writer(file), give_up)
    result, run = worker.run(agent)
    assert [(row["tool"], row["status"]) for row in run.journal()][:2] == [
        ("write", "failed"),
        ("write", "succeeded"),
    ]
    assert (result.state, result.effects.committed) == ("failed", 1)
    assert file.read_text() == "whole"


@pytest.mark.contract("E2")
@pytest.mark.contract("E5")
def test_what_a_new_attempt_is_told_is_done_is_there(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """Attempt 1 wrote the file at its second call and timed out; attempt 2 goes on with it."""
    file = tmp_path / "report.csv"

    @tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return file.read_text()

    def play(request: RequestRecord) -> Behaviour:
        needed = 0 if begun_anew(request) else 2
        if len(request.results) < needed:
            return calls(("write", {}))
        if len(request.results) == needed:
            return calls(("look", {}))
        return Reply(str(request.messages[-1]["content"]))

    agent = make_agent(model(play), writer(file), look, timeouts=limits(step=1.5))
    result, _ = worker.run(agent)
    assert (result.state, result.attempts) == ("succeeded", 2)
    assert "whole" in result.output


@pytest.mark.contract("E2")
@pytest.mark.contract("E4")
def test_a_snapshot_does_not_take_what_a_tool_keeps(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """The agent rolls back what its attempt announced, but not the file that a tool of its own policy wrote since."""
    kept, other = tmp_path / "kept.csv", tmp_path / "other.csv"

    async def snapshot(ctx: Any, value: Any) -> None:
        await ctx.declare("path", str(kept))
        await ctx.declare("path", str(other))
        other.write_text("x")

    write = writer(kept, on_failure="keep")
    agent = make_agent(
        model(asks_for("write", "write", "give_up")),
        write,
        give_up,
        on_failure="rollback",
        snapshot=snapshot,
    )
    result, run = worker.run(agent)
    assert result.state == "failed"
    assert (kept.read_text(), other.exists()) == ("whole", False)
    assert [each["data"]["id"] for each in events_of(run, "cleanup.rolled_back")] == [str(other)]


# --- nothing detaches -----------------------------------------------------------------------------------------------


@pytest.mark.contract("F8")
@pytest.mark.contract("E6")
@pytest.mark.contract("A2")
def test_a_roll_back_that_hangs_is_awaited_and_changes_nothing_when_it_goes_on(
    worker: Workers, model: MakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that answers late: no second try beside the first, the process is replaced, the late one does nothing."""
    monkeypatch.setattr(bodies, "HANG_S", 0.5)
    file, gate, real = tmp_path / "file.txt", Gate(), paths._PuttingBack._remove
    late: list[tuple[str, bool]] = []

    def slow(self: Any, path: Path) -> None:
        held = gate.pass_by()
        try:
            real(self, path)
        except TimeoutError as error:
            late.append((str(error), file.exists()))
            raise
        finally:
            assert not held or late

    monkeypatch.setattr(paths._PuttingBack, "_remove", slow)

    @tool(effect="idempotent", identity=("x",))
    async def write(ctx: ToolContext, x: str = "") -> None:
        await ctx.declare("path", str(file))
        file.write_text("made")

    write.compensate(nothing)
    agent = make_agent(
        model(asks_for("write", "give_up")),
        write,
        give_up,
        on_failure="rollback",
        timeouts=limits(compensation=0.3),
    )
    worker.start(agent)
    run = worker.enqueue(agent)
    assert worker.recycled.wait(LONG_S)
    assert gate.threads == gate.threads[:1]
    assert gate.threads[0].name == "makegood-tool"  # of the bounded pool, where it counts as stuck
    assert run.status() == "cleaning"
    info = run.info()
    assert (info["activity"], info["activity_detail"]["call"]) == ("hanging", "roll-back of path")
    gate.opened.set()
    assert run.wait(LONG_S).state == "failed"
    assert [exists for _, exists in late] == [True]
    assert not file.exists()
    assert [each["data"]["code"] for each in events_of(run, "cleanup.failed")] == ["TIMEOUT"]


@pytest.mark.contract("E6")
@pytest.mark.contract("F8")
def test_a_declaration_that_hangs_is_awaited_and_declares_nothing(
    worker: Workers, model: MakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at the prior state outlasts its call: the run is stopping until it ends."""
    gate, real = Gate(), paths.take

    def slow(path: Path) -> paths.State:
        gate.pass_by()
        return real(path)

    monkeypatch.setattr(paths, "take", slow)

    @tool(effect="idempotent", identity=("x",), timeout=0.3)
    async def write(ctx: ToolContext, x: str = "") -> None:
        await ctx.declare("path", str(tmp_path / "file"))

    agent = make_agent(model(asks_for("write")), write, tool_retry=RetryPolicy(retries=0))
    worker.start(agent)
    run = worker.enqueue(agent)
    assert gate.entered.wait(LONG_S)
    eventually(lambda: run.status() == "stopping", "the hanging call is shown")
    assert not gate.opened.is_set()
    gate.opened.set()
    run.wait(LONG_S)
    assert [thread.name for thread in gate.threads] == ["makegood-tool"] * len(gate.threads)
    declared = worker.client.run_flow(load_resources(run.id))
    assert len(declared) == len(gate.threads) - 1  # only by the repeat, in cleanup


@pytest.mark.contract("E2")
def test_a_sync_tool_declares_in_the_thread_that_it_has(
    worker: Workers, model: MakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool has one thread: nothing waits for a second one."""
    file, looked, real = tmp_path / "file", [], paths.take
    (tmp_path / "callback_of_sync.py").write_text("def back(ctx, id, prior): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        paths, "take", lambda path: (looked.append(threading.current_thread()), real(path))[1]
    )
    ran: list[threading.Thread] = []

    @tool(effect="idempotent", identity=("x",), on_failure="rollback")
    def write(ctx: ToolContext, x: str = "") -> str:
        ran.append(threading.current_thread())
        for _ in range(2):
            ctx.declare("path", str(file))
        ctx.declare("callback", "callback_of_sync:back")
        file.write_text("made")
        return "ok"

    write.compensate(nothing)
    agent = make_agent(model(asks_for("write", "give_up")), write, give_up)
    worker.start(agent, sync_threads=1)
    result, run = worker.run(agent)
    assert result.state == "failed"
    assert looked == ran
    assert not file.exists()
    assert [each["data"]["kind"] for each in events_of(run, "cleanup.rolled_back")] == ["callback", "path"]


@pytest.mark.contract("E2")
def test_a_path_that_goes_up_is_refused(worker: Workers, model: MakeProvider, tmp_path: Path) -> None:
    """Absent when it was declared, since a folder before it was missing: rolled back, it would remove what was there."""
    shared = tmp_path / "shared"
    shared.mkdir()

    @tool(effect="idempotent", identity=("path",), on_failure="rollback")
    async def write(ctx: ToolContext, path: str) -> None:
        try:
            await ctx.declare("path", path)
        except Exception as error:
            raise ToolError(str(error)) from error

    write.compensate(nothing)

    def play(request: RequestRecord) -> Behaviour:
        return (
            calls(("give_up", {}))
            if request.results
            else calls(("write", {"path": f"{tmp_path}/new/../shared"}))
        )

    result, run = worker.run(make_agent(model(play), write, give_up))
    assert result.state == "failed"
    assert "give the path itself" in run.journal()[0]["error"]["message"]
    assert shared.exists()


# --- what users write -----------------------------------------------------------------------------------------------


@pytest.mark.contract("E2")
@pytest.mark.contract("E8")
@pytest.mark.parametrize("breaks", ["os.environ['NO_SUCH_SETTING']", "sys.exit('not for cleanup')"])
def test_a_callback_whose_module_breaks_in_the_cleanup_worker_does_not_stop_the_others(
    worker: Workers, model: MakeProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    """It is tried like any other roll-back, then a person is asked; the rest of the cleanup is done."""
    module = tmp_path / "callback_that_breaks.py"
    module.write_text("def back(ctx, id, prior): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ledger = Ledger()

    @tool(effect="idempotent", identity=("x",))
    async def configure(ctx: ToolContext, x: str = "") -> None:
        await ctx.declare("callback", "callback_that_breaks:back")

    configure.compensate(nothing)
    worker.cleans = False
    agent = make_agent(
        model(asks_for("flight", "configure", "give_up")),
        booking(ledger, "flight"),
        configure,
        give_up,
        on_failure="rollback",
    )
    worker.start(agent)
    run = worker.enqueue(agent)
    worker.left(run)
    sys.modules.pop("callback_that_breaks")
    module.write_text(f"import os, sys\n{breaks}\ndef back(ctx, id, prior): pass\n")
    worker.start_cleaner()
    assert run.wait(LONG_S).state == "requires_manual_review"
    assert ledger.lines == ["flight", "undo flight"]
    (item,) = worker.client.review(run.id)["items"]
    assert item["resource"] == {"kind": "callback", "id": "callback_that_breaks:back"}
    assert "cannot be imported" in item["why"]["message"]


@pytest.mark.contract("E2")
def test_an_async_callback_is_imported_in_a_thread_and_runs_on_the_loop(
    worker: Workers,
    model: MakeProvider,
    shop: Callable[..., Shop],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may import for long without stopping the loop, and has an async client."""
    there = shop()
    module = tmp_path / "callback_on_loop.py"
    module.write_text(
        "import threading\n"
        "imported_in = threading.current_thread()\n"
        "ran = []\n"
        "async def back(ctx, id, prior):\n"
        "    ran.append((threading.current_thread(), prior))\n"
        f"    (await ctx.http.post({there.url!r}, json=prior)).raise_for_status()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    @tool(effect="idempotent", identity=("x",))
    async def configure(ctx: ToolContext, x: str = "") -> None:
        await ctx.declare("callback", "callback_on_loop:back", {"was": 1})

    configure.compensate(nothing)
    worker.cleans = False
    agent = make_agent(model(asks_for("configure", "give_up")), configure, give_up, on_failure="rollback")
    worker.start(agent)
    run = worker.enqueue(agent)
    worker.left(run)
    sys.modules.pop("callback_on_loop")
    worker.start_cleaner()
    assert run.wait(LONG_S).state == "failed"
    found = sys.modules.pop("callback_on_loop")
    ((thread, prior),) = found.ran
    assert prior == {"was": 1}
    assert (found.imported_in.name, thread.name == "makegood-tool") == ("makegood-tool", False)
    (key,) = there.keys
    assert key.endswith(":undo")


def wrapped(fn: Any) -> Any:
    """A decorator as many are: plain, in front of whatever it wraps."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


@pytest.mark.contract("E9")
def test_async_functions_behind_a_plain_decorator_are_awaited(worker: Workers, model: MakeProvider) -> None:
    """A tool, its probe, its compensation."""
    ledger = Ledger()

    @tool(effect="write", identity=("x",), settle_after=0)
    @wrapped
    async def book(ctx: ToolContext, x: str = "") -> str:
        ledger.note("book")
        raise ConnectionResetError("the reply is lost")

    @book.probe
    @wrapped
    async def find(ctx: ToolContext, call: RecordedCall) -> str:
        ledger.note("find")
        return "found"

    @book.compensate
    @wrapped
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        ledger.note(f"cancel what was {call.response}")

    agent = make_agent(
        model(asks_for("book", "give_up")),
        book,
        give_up,
        on_failure="rollback",
        tool_retry=RetryPolicy(retries=0),
    )
    result, _ = worker.run(agent)
    assert ledger.lines == ["book", "find", "cancel what was found"]
    assert result.effects.compensated == 1


@pytest.mark.contract("E9")
def test_a_function_that_returns_a_coroutine_has_done_nothing(worker: Workers, model: MakeProvider) -> None:
    """Returning is success, but not of a promise that nobody keeps: it is a bug, of a tool and of a compensation."""
    ledger = Ledger()
    flight = booking(ledger, "flight", compensates=False)

    async def really(what: str) -> None:
        ledger.note(what)

    @flight.compensate
    def cancel(ctx: ToolContext, call: RecordedCall) -> Any:
        return really("undo flight")

    @tool(effect="read")
    def look(ctx: ToolContext) -> Any:
        return really("look")

    agent = make_agent(
        model(asks_for("flight", "look", "give_up")), flight, look, give_up, on_failure="rollback"
    )
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    assert ledger.lines == ["flight"]
    rows = {row["tool"]: row for row in run.journal()}
    assert "look returned an awaitable; declare it with async def" in rows["look"]["error"]["message"]
    assert rows["flight"]["compensation"]["status"] == "failed"
    (item,) = worker.client.review(run.id)["items"]
    assert "flight.compensate returned an awaitable" in item["why"]["message"]


@pytest.mark.contract("E8")
@pytest.mark.contract("F8")
def test_generator_exit_is_an_error_like_any_other(worker: Workers, model: MakeProvider) -> None:
    """In a tool, and in its compensation: nothing hangs for it."""
    ledger = Ledger()
    flight = booking(ledger, "flight", compensates=False)

    @flight.compensate
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        ledger.note("undo flight")
        raise GeneratorExit

    @tool(effect="read")
    async def look(ctx: ToolContext) -> None:
        raise GeneratorExit

    agent = make_agent(
        model(asks_for("flight", "look", "give_up")), flight, look, give_up, on_failure="rollback"
    )
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    assert ledger.lines == ["flight"] + ["undo flight"] * 3
    assert {row["tool"]: row["status"] for row in run.journal()}["look"] == "failed"
    assert not worker.recycled.is_set()


# --- no limit -------------------------------------------------------------------------------------------------------


@pytest.mark.contract("A3")
@pytest.mark.contract("E7")
def test_a_cleanup_without_limits_takes_locks_and_sends_no_deadline(
    worker: Workers, model: MakeProvider, shop: Callable[..., Shop]
) -> None:
    """A repeated call has its own limit, and its lock a lifetime; a compensation has none: `remaining()` is infinite."""
    there, seen = shop(), []

    @tool(effect="idempotent", identity=("x",), settle_after=0)
    async def book(ctx: ToolContext, x: str = "") -> None:
        async with ctx.lock("counter"):
            seen.append(ctx.deadline.at)
            if len(seen) == 1:
                raise ConnectionResetError("the reply is lost")

    @book.compensate
    async def cancel(ctx: ToolContext, call: RecordedCall) -> None:
        seen.append((ctx.deadline.remaining(), ctx.deadline.at))
        (await ctx.http.post(there.url, json={})).raise_for_status()

    agent = make_agent(
        model(asks_for("book", "give_up")),
        book,
        give_up,
        on_failure="rollback",
        tool_retry=RetryPolicy(retries=0),
        timeouts=limits(cleanup=None, compensation=None),
    )
    result, run = worker.run(agent)
    assert (result.state, result.effects.compensated) == ("failed", 1)
    assert run.journal()[0]["status"] == "succeeded"
    assert (seen[1] - datetime.now(UTC)).total_seconds() < LONG_S
    assert seen[2] == (float("inf"), datetime.max.replace(tzinfo=UTC))
    (request,) = there.requests
    assert "x-deadline-ms" not in request.headers
    assert request.headers["idempotency-key"].endswith(":undo")

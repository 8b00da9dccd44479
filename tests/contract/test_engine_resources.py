"""What a call may leave behind is declared before it is there, and brought back when its run fails (CONTRACT E2)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from makegood import ALL, ToolError, resource, tool
from makegood.store.keys import run_key
from makegood.tasks.flows import run_sync
from makegood.tasks.rollbacks import Declared, load_resources
from makegood.testing import Behaviour, Reply, RequestRecord, Status
from support import engine_tools
from support.engine import LONG_S, MakeProvider, Workers, calls, eventually, limits, make_agent, told

dropped: list[tuple[str, Any]] = []


@resource("table_of_engine_test")
def drop_table(ctx: Any, id: str, prior: object | None) -> None:  # noqa: A002
    """Notes what it was asked to bring back."""
    dropped.append((id, prior))


def declared(worker: Workers, run_id: str) -> list[Declared]:
    """What a run has declared, oldest first."""
    return run_sync(worker.client.store, load_resources(run_id))


def steal(worker: Workers, run_id: str) -> None:
    """Somebody else has claimed the run."""
    worker.client.store.redis.hset(run_key(run_id), "fence", "99:other")


@pytest.mark.contract("E2")
def test_a_declaration_is_durable_before_the_effect(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """When the call goes on, the store has it: in an async tool, in a sync one, and in one with a process of its own."""
    seen: list[list[Declared]] = []

    @tool(effect="read")
    async def make_async(ctx: Any) -> None:
        await ctx.declare("path", str(tmp_path / "async"))
        seen.append(await asyncio.to_thread(declared, worker, ctx.run_id))

    @tool(effect="read")
    def make_sync(ctx: Any) -> None:
        ctx.declare("table_of_engine_test", "t", {"rows": 3})
        seen.append(declared(worker, ctx.run_id))

    path = str(tmp_path / "process")
    provider = model(
        [
            calls(("make_async", {})),
            calls(("make_sync", {})),
            calls(("declare_in_process", {"path": path})),
            Reply("done"),
        ]
    )
    agent = make_agent(provider, make_async, make_sync, *engine_tools.RESIDUE_TOOLS)
    result, run = worker.run(agent)
    assert result.state == "succeeded"
    assert [len(each) for each in seen] == [1, 2]
    first, second, third = declared(worker, run.id)
    keys = [row["call_key"] for row in run.journal()]
    assert [each.call_key for each in (first, second, third)] == keys
    assert (first.kind, first.id, first.prior) == ("path", str(tmp_path / "async"), {"type": "absent"})
    assert (second.kind, second.id, second.prior) == ("table_of_engine_test", "t", {"rows": 3})
    assert (third.id, third.attempt, third.step, third.generation, third.status) == (
        path,
        1,
        3,
        1,
        "declared",
    )
    assert Path(path).read_text() == "made", "on success it stays"


@pytest.mark.contract("E2", "D9")
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_call_of_a_run_that_is_someone_else_s_does_not_go_on(
    worker: Workers, model: MakeProvider, kind: str
) -> None:
    """Its declaration is refused, also when the tool hides that; the attempt stops, and nobody is told."""
    at, go = threading.Event(), threading.Event()
    went_on: list[str] = []

    @tool(effect="write", identity=ALL)
    async def make_async(ctx: Any) -> None:
        at.set()
        await asyncio.to_thread(go.wait, LONG_S)
        await ctx.declare("table_of_engine_test", "t")
        went_on.append("async")

    @tool(effect="write", identity=ALL)
    def make_sync(ctx: Any) -> str:
        at.set()
        go.wait(LONG_S)
        try:
            ctx.declare("table_of_engine_test", "t")
        except Exception as error:
            return str(error)
        went_on.append("sync")
        return ""

    provider = model([calls((f"make_{kind}", {}))], then=Reply("done"))
    agent = make_agent(provider, make_async, make_sync)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    assert at.wait(LONG_S)
    steal(worker, run.id)
    go.set()
    eventually(lambda: not runtime.attempts, "the worker stops its work on the run")
    assert (went_on, declared(worker, run.id), len(provider.requests)) == ([], [], 1)
    assert run.journal()[0]["status"] == "started"


@pytest.mark.contract("E2", "D9")
def test_a_process_of_a_run_that_is_someone_else_s_does_not_go_on(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """The child asks the store itself."""
    provider = model([calls(("declare_when_let", {"folder": str(tmp_path)}))], then=Reply("done"))
    agent = make_agent(provider, *engine_tools.RESIDUE_TOOLS)
    runtime = worker.start(agent)
    run = worker.enqueue(agent)
    eventually((tmp_path / "at").exists, "the child runs")
    steal(worker, run.id)
    (tmp_path / "go").touch()
    eventually(lambda: not runtime.attempts, "the worker stops its work on the run")
    assert not (tmp_path / "made").exists()
    assert len(provider.requests) == 1


@pytest.mark.contract("E2", "E4")
def test_when_a_run_fails_what_unfinished_calls_declared_comes_back(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """Under keep: files and keys are as before, a registered kind is asked with its prior state; finished work stays."""
    dropped.clear()
    redis = worker.client.store.redis
    redis.set("price", "10")
    notes = tmp_path / "notes"
    notes.write_text("before")

    @tool(effect="write", identity=ALL)
    async def spoil(ctx: Any) -> None:
        for kind, name in (("path", str(notes)), ("path", str(tmp_path / "new")), ("redis_key", "price")):
            await ctx.declare(kind, name)
        await ctx.declare("table_of_engine_test", "t", {"rows": 3, "password": "geheim"})
        notes.write_text("spoilt")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "file").touch()
        redis.delete("price")
        raise ToolError("The report is wrong.")

    @tool(effect="write", identity=ALL)
    def finish(ctx: Any) -> None:
        ctx.declare("path", str(tmp_path / "finished"))
        (tmp_path / "finished").touch()

    provider = model([calls(("finish", {})), calls(("spoil", {})), Status(400)])
    agent = make_agent(provider, spoil, finish)
    worker.start(agent, secret_fields=("password",))
    result, run = worker.run(agent)
    assert result.state == "failed"
    assert (notes.read_text(), (tmp_path / "new").exists(), redis.get("price")) == ("before", False, b"10")
    assert dropped == [("t", {"rows": 3, "password": "**********"})]
    assert (tmp_path / "finished").exists()
    states = {each.id: each.status for each in declared(worker, run.id)}
    assert states.pop(str(tmp_path / "finished")) == "declared"
    assert set(states.values()) == {"rolled_back"}


@pytest.mark.contract("E2")
def test_a_call_that_is_taken_up_again_keeps_the_first_prior_state(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """What it finds is its own work, which may be more than could be kept."""
    path = tmp_path / "report"
    at, go = threading.Event(), threading.Event()

    @tool(effect="idempotent", identity=ALL)
    async def write(ctx: Any) -> None:
        await ctx.declare("path", str(path))
        path.write_bytes(b"x" * 2 * 1024 * 1024)
        at.set()
        await asyncio.to_thread(go.wait, LONG_S)

    agent = make_agent(model([calls(("write", {})), Reply("done")]), write)
    first = worker.start(agent)
    run = worker.enqueue(agent)
    assert at.wait(LONG_S)
    at.clear()
    worker.pump.detach(first)
    first._from_thread(partial(first.attempts[run.id].cancel.ask, "disposed"))
    go.set()
    eventually(lambda: not first.attempts, "the run is handed over")
    worker.start(agent)
    assert run.wait(LONG_S).state == "succeeded"
    (each,) = declared(worker, run.id)
    assert (each.prior, each.status) == ({"type": "absent"}, "declared")


@pytest.mark.parametrize(
    ("kind", "name", "prior", "says"),
    [
        ("tabel", "t", None, "registered as 'tabel'"),
        ("path", "relative", None, "not absolute"),
        ("path", "/dev/null", None, "neither a file"),
        ("path", "/tmp/x", 1, "leave prior out"),
        ("table_of_engine_test", "t", "x" * 262_144, "more than 256 KiB"),
        ("table_of_engine_test", "t", object, "no JSON"),
        ("table_of_engine_test", "t", {"n": 2**70}, "no JSON"),
        ("table_of_engine_test", "\ud800", None, "no JSON"),
        ("callback", "no.such:thing", None, "cannot be imported"),
    ],
)
def test_what_could_not_be_brought_back_is_a_bug_of_the_tool(
    worker: Workers, model: MakeProvider, kind: str, name: str, prior: Any, says: str
) -> None:
    """One sentence, before anything is created."""
    went_on: list[int] = []

    @tool(effect="read")
    async def make(ctx: Any) -> None:
        await ctx.declare(kind, name, prior)
        went_on.append(1)

    provider = model([calls(("make", {})), Reply("I see")])
    result, run = worker.run(make_agent(provider, make))
    assert result.state == "succeeded"
    error = told(provider.requests[1])
    assert (error["code"], went_on, declared(worker, run.id)) == ("BUG", [], [])
    assert says in error["message"]


def test_a_large_prior_state_is_kept_whole(worker: Workers, model: MakeProvider) -> None:
    """Up to 256 KiB of JSON."""
    whole = "x" * 262_142

    @tool(effect="read")
    def make(ctx: Any) -> None:
        ctx.declare("table_of_engine_test", "t", whole)

    result, run = worker.run(make_agent(model([calls(("make", {})), Reply("done")]), make))
    assert result.state == "succeeded"
    assert [each.prior for each in declared(worker, run.id)] == [whole]


# --- the hook of the agent ------------------------------------------------------------------------------------------


def hooks(ran: list[Any]) -> dict[str, Callable[..., Any]]:
    """A sync and an async `snapshot`, which do the same."""

    def plain(ctx: Any, input: Any) -> None:  # noqa: A002
        ran.append((ctx.attempt, input))
        ctx.log.info("declaring")
        assert ctx.deadline.remaining() > 0
        assert not ctx.cancelled.asked
        ctx.declare("table_of_engine_test", f"of {ctx.run_id}", {"rows": 1})

    async def awaited(ctx: Any, input: Any) -> None:  # noqa: A002
        ran.append((ctx.attempt, input))
        await ctx.declare("table_of_engine_test", f"of {ctx.run_id}", {"rows": 1})

    return {"sync": plain, "async": awaited}


@pytest.mark.contract("E2")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_snapshot_is_taken_before_the_first_step(worker: Workers, model: MakeProvider, kind: str) -> None:
    """Once in the attempt, before the model is asked."""
    ran: list[Any] = []
    seen: list[int] = []

    @tool(effect="read")
    def look(ctx: Any) -> str:
        return "seen"

    def answer(request: RequestRecord) -> Behaviour:
        seen.append(len(ran))
        return Reply("done") if request.results else calls(("look", {}))

    agent = make_agent(model(answer), look, snapshot=hooks(ran)[kind])
    result, run = worker.run(agent, {"text": "hello"})
    assert (result.state, seen, ran) == ("succeeded", [1, 1], [(1, {"text": "hello"})])
    (each,) = declared(worker, run.id)
    assert (each.id, each.prior, each.call_key, each.step) == (f"of {run.id}", {"rows": 1}, "snapshot", 0)


def test_a_snapshot_is_taken_once_in_each_attempt(worker: Workers, model: MakeProvider) -> None:
    """A new attempt takes another; one that is continued after its first step does not."""
    ran: list[Any] = []
    at, go = threading.Event(), threading.Event()

    @tool(effect="read")
    async def wait(ctx: Any) -> None:
        at.set()
        await asyncio.to_thread(go.wait, LONG_S)

    def answer(request: RequestRecord) -> Behaviour:
        return Reply("done") if request.results else calls(("wait", {}))

    agent = make_agent(model(answer), wait, snapshot=hooks(ran)["async"])
    first = worker.start(agent)
    run = worker.enqueue(agent)
    assert at.wait(LONG_S)
    first.drain()
    go.set()
    worker.stop(first)
    worker.start(agent)
    assert run.wait(LONG_S).state == "succeeded"
    assert ran == [(1, "go")]


def test_a_snapshot_that_fails_is_a_bug(worker: Workers, model: MakeProvider) -> None:
    """The run ends before the model is asked."""

    def snapshot(ctx: Any, input: Any) -> None:  # noqa: A002
        raise ZeroDivisionError("no")

    provider = model(then=Reply("done"))
    result, _ = worker.run(make_agent(provider, snapshot=snapshot))
    assert result.error is not None
    assert (result.state, result.error.code, provider.requests) == ("failed", "BUG", [])
    assert "snapshot failed: ZeroDivisionError: no" in result.error.message


def test_a_snapshot_has_the_limit_of_a_step(worker: Workers, model: MakeProvider) -> None:
    """One that hangs ends the attempt like a step that does."""

    async def snapshot(ctx: Any, input: Any) -> None:  # noqa: A002
        await asyncio.sleep(LONG_S)

    agent = make_agent(model(then=Reply("no")), snapshot=snapshot, timeouts=limits(step=0.3), max_attempts=1)
    result, _ = worker.run(agent)
    assert result.error is not None
    assert (result.state, result.error.code) == ("timed_out", "STEP_TIMEOUT")


@pytest.mark.contract("E2", "E4")
@pytest.mark.parametrize(("policy", "stays"), [("rollback", False), ("keep", True)])
def test_the_snapshot_of_a_failed_run_comes_back_under_rollback(
    worker: Workers, model: MakeProvider, tmp_path: Path, policy: str, stays: bool
) -> None:
    """Under keep it stays."""
    path = tmp_path / "table"

    async def snapshot(ctx: Any, input: Any) -> None:  # noqa: A002
        await ctx.declare("path", str(path))
        path.touch()

    agent = make_agent(model([Status(400)]), snapshot=snapshot, on_failure=policy)
    result, _ = worker.run(agent)
    assert (result.state, path.exists()) == ("failed", stays)


def test_an_agent_of_code_takes_its_snapshot_first(worker: Workers, model: MakeProvider) -> None:
    """Before its coroutine runs."""
    from makegood import agent as make_code_agent

    ran: list[Any] = []
    provider = model(then=Reply("done"))

    @make_code_agent(
        name="code",
        model="openai/gpt-5-mini",
        model_args={"api_base": provider.url, "api_key": "k"},
        snapshot=hooks(ran)["async"],
    )
    async def code(ctx: Any, input: Any) -> int:  # noqa: A002
        return len(ran)

    result, run = worker.run(code)
    assert (result.state, result.output) == ("succeeded", 1)
    assert len(declared(worker, run.id)) == 1

"""What a dead attempt leaves in databases, files, locks and the chat (CONTRACT E1, E2, E5, E7, J26)."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from contract.test_cleanup_pipeline import Ledger, asks_for, booking, give_up
from makegood import RecordedCall, ToolContext, resource, tool
from makegood.testing import Behaviour, Reply, RequestRecord
from support.engine import MakeProvider, Workers, begun_anew, calls, events_of, limits, make_agent

database: list[Path] = []


@resource("sqlite_table")
async def drop_table(ctx: ToolContext, id: str, prior: object | None) -> None:  # noqa: A002  # the interface's name
    """Drop the table, unless it was there before."""
    if prior is None:
        with sqlite3.connect(database[-1]) as db:
            db.execute(f"DROP TABLE IF EXISTS {id}")


def query(sql: str) -> list[Any]:
    """The rows of a statement on the database."""
    with sqlite3.connect(database[-1]) as db:
        return db.execute(sql).fetchall()


@tool(effect="idempotent", identity=("name",))
async def create_table(ctx: ToolContext, name: str) -> str:
    """Create an empty table; says so when it is there already."""
    await ctx.declare("sqlite_table", name)
    try:
        query(f"CREATE TABLE {name} (city TEXT)")
    except sqlite3.OperationalError as error:
        return str(error)
    return "created"


@create_table.compensate
async def nothing_to_do(ctx: ToolContext, call: RecordedCall) -> None:
    """The table is a declared resource."""


@tool(effect="idempotent", identity=("name",), settle_after=0)
async def fill(ctx: ToolContext, name: str) -> int:
    """Put the rows in; the first attempt hangs before it did anything."""
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    query(f"INSERT INTO {name} VALUES ('Rome'), ('Oslo')")
    return 2


@fill.probe
async def filled(ctx: ToolContext, call: RecordedCall) -> Any:
    """What the table says."""
    from makegood import NOT_DONE

    n = query(f"SELECT count(*) FROM {call.args['name']}")[0][0]
    return n or NOT_DONE


@fill.compensate
async def emptied(ctx: ToolContext, call: RecordedCall) -> None:
    """The table is a declared resource."""


@tool(effect="read")
async def report(ctx: ToolContext, name: str) -> str:
    """What the report says about the table."""
    return f"{query(f'SELECT count(*) FROM {name}')[0][0]} cities"


def hasty(request: RequestRecord) -> Behaviour:
    """A model that, told "already exists" without facts that say what is missing, writes its report at once."""
    done = [m["content"] for m in request.messages if m["role"] == "tool"]
    facts = [
        m["content"] for m in request.messages if m["role"] == "user" and "was begun before" in m["content"]
    ]
    if not done:
        return calls(("create_table", {"name": "cities"}))
    knows_more = bool(facts) and "fill" in facts[0]
    if len(done) == 1 and "already exists" in done[0] and not knows_more:
        return calls(("report", {"name": "cities"}))
    if len(done) == 1:
        return calls(("fill", {"name": "cities"}))
    if len(done) == 2 and "cities" not in done[-1]:
        return calls(("report", {"name": "cities"}))
    return Reply(done[-1])


@pytest.mark.contract("E5")
@pytest.mark.parametrize("policy", ["keep", "rollback"])
def test_a_second_attempt_does_not_report_on_the_empty_table_of_the_first(
    worker: Workers, model: MakeProvider, tmp_path: Path, policy: str
) -> None:
    """Attempt 1 left an empty table; under both policies attempt 2 fills it before it reports."""
    database.append(tmp_path / "cities.db")
    agent = make_agent(
        model(hasty), create_table, fill, report, on_failure=policy, timeouts=limits(step=1.5, call=30)
    )
    result, run = worker.run(agent)
    assert (result.state, result.attempts) == ("succeeded", 2)
    assert query("SELECT count(*) FROM cities") == [(2,)]
    assert "2 cities" in result.output
    rolled_back = [event["data"]["id"] for event in events_of(run, "cleanup.rolled_back")]
    assert rolled_back == (["cities"] if policy == "rollback" else [])


@pytest.mark.contract("E2")
@pytest.mark.contract("E1")
def test_declared_resources_are_brought_back_newest_first(
    worker: Workers, model: MakeProvider, tmp_path: Path
) -> None:
    """A file that was there gets its content back, one that was created goes; a Redis key too. On success they stay."""
    there, new = tmp_path / "there.txt", tmp_path / "new.txt"
    there.write_text("before")
    store = worker.client.store.redis
    store.set("answer", "41")

    @tool(effect="idempotent", identity=("end",), on_failure="rollback")
    async def change(ctx: ToolContext, end: str) -> str:
        await ctx.declare("path", str(there))
        await ctx.declare("path", str(new))
        await ctx.declare("redis_key", "answer")
        there.write_text("after")
        new.write_text("x")
        store.set("answer", "42")
        return end

    @change.compensate
    async def nothing(ctx: ToolContext, call: RecordedCall) -> None:
        """Everything is a declared resource."""

    def play(request: RequestRecord) -> Behaviour:
        task = next(m["content"] for m in request.messages if m["role"] == "user")
        if not request.results:
            return calls(("change", {"end": task}))
        return calls(("give_up", {})) if task == "fail" else Reply("done")

    agent = make_agent(model(play), change, give_up)
    result, run = worker.run(agent, "fail")
    assert result.state == "failed"
    assert (there.read_text(), new.exists(), store.get("answer")) == ("before", False, b"41")
    kinds = [event["data"]["kind"] for event in events_of(run, "cleanup.rolled_back")]
    assert kinds == ["redis_key", "path", "path"]
    result, run = worker.run(agent, "succeed")
    assert result.state == "succeeded"
    assert (there.read_text(), new.read_text(), store.get("answer")) == ("after", "x", b"42")
    assert not events_of(run, "cleanup.started")


@pytest.mark.contract("E2")
def test_a_resource_whose_kind_nobody_knows_any_more_reaches_a_person(
    worker: Workers, model: MakeProvider
) -> None:
    """The review names the kind and the id; what else is left is cleaned all the same."""
    from makegood.tasks import resources

    @resource("fleeting")
    def gone(ctx: ToolContext, id: str, prior: object | None) -> None:  # noqa: A002
        """Never called."""

    ledger = Ledger()

    @tool(effect="write", identity=("x",))
    async def make(ctx: ToolContext, x: str = "1") -> None:
        await ctx.declare("fleeting", "thing-7")
        resources._registered.pop("fleeting")

    @make.compensate
    async def unmake(ctx: ToolContext, call: RecordedCall) -> None:
        ledger.note("undo make")

    agent = make_agent(model(asks_for("make", "give_up")), make, give_up, on_failure="rollback")
    result, run = worker.run(agent)
    assert result.state == "requires_manual_review"
    (item,) = worker.client.review(run.id)["items"]
    assert (item["kind"], item["resource"]["kind"], item["resource"]["id"]) == (
        "resource",
        "fleeting",
        "thing-7",
    )
    assert ledger.lines == ["undo make"]


@pytest.mark.contract("J26")
@pytest.mark.contract("E7")
@pytest.mark.contract("E1")
def test_the_lock_of_a_run_that_timed_out_is_free_at_once(worker: Workers, model: MakeProvider) -> None:
    """The holder reaches L3; the next run gets the lock long before it would have expired."""
    got: list[tuple[str, int]] = []

    @tool(effect="read")
    async def hold(ctx: ToolContext, forever: bool) -> None:
        async with ctx.lock("account-7") as token:
            got.append((ctx.run_id, token))
            if forever:
                await asyncio.Event().wait()

    def play(request: RequestRecord) -> Behaviour:
        task = next(m["content"] for m in request.messages if m["role"] == "user")
        return Reply("done") if request.results else calls(("hold", {"forever": task == "hang"}))

    one = make_agent(model(play), hold, name="one", timeouts=limits(run=1.5, call=30), max_attempts=1)
    two = make_agent(model(play), hold, name="two")
    worker.start(one, two)
    first = worker.enqueue(one, "hang")
    assert first.wait(30).state == "timed_out"
    second = worker.enqueue(two, "quick")
    assert second.wait(30).state == "succeeded"
    assert [run_id for run_id, _ in got] == [first.id, second.id]
    assert got[1][1] > got[0][1]


@pytest.mark.contract("E6")
@pytest.mark.contract("E1")
def test_cleanup_begins_only_when_everything_of_the_attempt_is_over(
    worker: Workers, model: MakeProvider
) -> None:
    """A tool that swallows its cancellation twice is cancelled again; only then is anything undone."""
    ledger = Ledger()

    @tool(effect="read")
    async def stubborn(ctx: ToolContext) -> None:
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ledger.note("swallowed")
        ledger.note("over")

    agent = make_agent(
        model(asks_for("flight", "stubborn")),
        booking(ledger, "flight"),
        stubborn,
        on_failure="rollback",
        timeouts=limits(step=1.0),
        max_attempts=1,
    )
    result, run = worker.run(agent)
    assert result.state == "timed_out"
    assert ledger.lines == ["flight", "swallowed", "swallowed", "swallowed", "over", "undo flight"]
    (stopping,) = events_of(run, "run.stopping")
    assert stopping["data"]["call"] == "stubborn"


@pytest.mark.contract("E5")
@pytest.mark.contract("E1")
def test_facts_of_a_new_attempt_say_what_was_rolled_back(worker: Workers, model: MakeProvider) -> None:
    """Prompt and input are byte-equal, old turns are gone, the undone call is named as such."""
    ledger = Ledger()

    @tool(effect="read")
    async def slow(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "ok"

    provider = model(asks_for("flight", "slow"))
    agent = make_agent(
        provider,
        booking(ledger, "flight"),
        slow,
        system="Be brief.",
        on_failure="rollback",
        timeouts=limits(step=1.5),
    )
    result, _ = worker.run(agent, "Book it.")
    assert result.state == "succeeded"
    anew = next(request for request in provider.requests if begun_anew(request))
    assert [m["content"] for m in anew.messages[:2]] == ["Be brief.", "Book it."]
    assert len(anew.messages) == 3
    facts = anew.messages[2]["content"]
    assert len(facts) <= 1200
    assert "flight" in facts.partition("Rolled back")[2]

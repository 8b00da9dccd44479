"""Sentry while agents run: spans of every attempt, one event per hang, and nothing of what a run is about."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import sentry_sdk

from makegood import ALL, Agent, RetryPolicy, ToolError, tool
from makegood.monitoring import sentry
from makegood.tasks.client import Run
from makegood.testing import Behaviour, Reply, RequestRecord, Stall, Status
from support.engine import LONG_S, MakeProvider, Shop, Workers, calls, eventually, limits, make_agent, told
from support.sentry import Kept, kept, switched_on, traced

__all__ = ["kept", "traced"]


@tool(effect="read")
async def look(ctx: Any, what: str) -> dict[str, str]:
    """Looks it up."""
    await asyncio.sleep(0)
    return {"seen": what[::-1]}


def spans_of(sent: Kept, run_id: str) -> tuple[Any, list[Any]]:
    """The last transaction of a run and the spans below it."""
    root = [each for each in sent.roots() if each.data["makegood.run.id"] == run_id][-1]
    return root, [span for span in sent.spans() if span.trace == root.trace]


def assert_keyed_and_counted(spans: list[Any], run: Run) -> None:
    """Each try has its call's key, and each request that was answered its tokens."""
    rows = {row["tool"]: row["call_key"] for row in run.journal()}
    for span in spans:
        if span.op == "gen_ai.execute_tool":
            assert span.data["gen_ai.tool.call.id"] == rows[span.data["gen_ai.tool.name"]]
        elif "makegood.code" not in span.data:
            assert span.data["gen_ai.usage.input_tokens"] > 0


def test_an_attempt_with_retries_is_one_transaction_with_all_its_requests_and_tries(
    worker: Workers, model: MakeProvider, traced: Kept
) -> None:
    """A request that failed, two that answered, a call whose first try failed, and a sync call beside it."""
    tries: list[int] = []

    @tool(effect="read", retry=RetryPolicy(retries=2, backoff=0.01))
    def shaky(ctx: Any) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("away")
        return "there"

    def answer(request: RequestRecord) -> Behaviour:
        if len(provider.requests) == 1:
            return Status(500)
        return Reply("done") if request.results else calls(("look", {"what": "x"}), ("shaky", {}))

    agent = make_agent(provider := model(answer), look, shaky)
    worker.start(agent, sentry_traces=1)
    result, run = worker.run(agent)
    assert result.state == "succeeded"
    eventually(traced.roots, "the transaction")
    root, spans = spans_of(traced, run.id)
    assert (root.name, root.status) == ("invoke_agent a", "ok")
    facts = {name.removeprefix("makegood."): value for name, value in root.data.items()}
    assert facts["run.state"] == "succeeded"
    assert (facts["attempt.number"], facts["attempt.steps"], facts["attempt.calls"]) == (1, 2, 2)
    assert {span.parent for span in spans} == {root.id}
    assert Counter((span.name, span.data.get("makegood.code", "")) for span in spans) == Counter(
        {
            ("chat openai/gpt-5-mini", "SERVER"): 1,
            ("chat openai/gpt-5-mini", ""): 2,
            ("execute_tool look", ""): 1,
            ("execute_tool shaky", "TRANSPORT"): 1,
            ("execute_tool shaky", ""): 1,
        }
    )
    assert_keyed_and_counted(spans, run)


def test_the_spans_of_fifty_runs_at_once_do_not_mix(
    worker: Workers, model: MakeProvider, traced: Kept
) -> None:
    """On one event loop; each asks for three calls at once, which use sentry-sdk themselves."""

    @tool(effect="read")
    async def busy(ctx: Any, n: int) -> int:
        sentry_sdk.set_tag("run", ctx.run_id)
        with sentry_sdk.start_span(op="gen_ai.chat", name="its own"):
            await asyncio.sleep(0.001 * (n % 5))
        return n

    def answer(request: RequestRecord) -> Behaviour:
        return Reply("done") if request.results else calls(*(("busy", {"n": n}) for n in range(3)))

    agent = make_agent(model(answer), busy)
    worker.start(agent, slots=50, sentry_traces=1)
    runs = [worker.enqueue(agent, f"go {n}") for n in range(50)]
    assert {run.wait(2 * LONG_S).state for run in runs} == {"succeeded"}
    eventually(lambda: len(traced.roots()) == 50, "all transactions")
    for run in runs:
        root, spans = spans_of(traced, run.id)
        assert {span.parent for span in spans} == {root.id}
        assert Counter(span.op for span in spans) == {"gen_ai.chat": 2, "gen_ai.execute_tool": 3}
        keys = {row["call_key"] for row in run.journal()}
        assert {
            span.data["gen_ai.tool.call.id"] for span in spans if "gen_ai.tool.call.id" in span.data
        } == keys
    assert not any("run" in each["tags"] for each in traced.transactions)


@dataclass(frozen=True)
class About:
    """What runs are about: words that are nowhere else."""

    prompt: str = field(default_factory=lambda: secrets.token_hex(12))
    argument: str = field(default_factory=lambda: secrets.token_hex(12))
    reply: str = field(default_factory=lambda: secrets.token_hex(12))
    card: str = field(default_factory=lambda: secrets.token_hex(12))


ENDINGS = ("well", "bug", "refused", "http", "undo")
"""How the runs of `ordering` end: they succeed, meet a bug whose text quotes the argument, a business error, an HTTP
error, and an undo that fails."""


def ordering(model: MakeProvider, downstream: Shop, about: About) -> Agent:
    """An agent whose runs end as the last word of their prompt says."""

    @tool(effect="write", identity=ALL)
    async def order(ctx: Any, what: str, card: str, how: str) -> dict[str, str]:
        if how == "bug":
            raise LookupError(f"there is no {what}")
        if how == "refused":
            raise ToolError(f"cannot order {what}", code="NO")
        if how == "http":
            (await ctx.http.post(f"{downstream.url}/{what}", json={"what": what})).raise_for_status()
        return {"id": what, "card": card}

    @order.compensate
    async def cancel(ctx: Any, call: Any) -> None:
        (await ctx.http.delete(f"{downstream.url}/{about.argument}")).raise_for_status()

    def answer(request: RequestRecord) -> Behaviour:
        how = request.messages[0]["content"].split()[-1]
        args = {"what": about.argument, "card": about.card, "how": how}
        if not request.results:
            return calls(("order", args), text=about.reply)
        return Status(401) if how == "undo" else Reply(about.reply)

    return make_agent(model(answer), order, on_failure="rollback", max_attempts=1)


@pytest.mark.parametrize("payloads", [False, True])
def test_what_a_run_is_about_leaves_only_when_switched_on(
    worker: Workers,
    model: MakeProvider,
    shop: Callable[..., Shop],
    monkeypatch: pytest.MonkeyPatch,
    payloads: bool,
) -> None:
    """All envelopes of five runs are searched; secrets are in none, whatever is switched on."""
    about = About()
    downstream = shop(*(Status(400, {"why": about.reply}) for _ in range(20)))
    monkeypatch.setattr(Workers, "_heard", lambda self, *told: sentry.alert(*told))
    with switched_on(traces=1.0, payloads=payloads) as sent:
        agent = ordering(model, downstream, about)
        worker.start(agent, sentry_traces=1, sentry_payloads=payloads, secret_fields="card")
        runs = [worker.enqueue(agent, f"{about.prompt} {how}") for how in ENDINGS]
        for run in runs:
            run.wait(2 * LONG_S)
        eventually(lambda: len(sent.roots()) == 5, "all transactions")
        eventually(lambda: {event["fingerprint"][1] for event in sent.events} == {"bug", "review"}, "events")
    assert not sent.said(about.card)
    if payloads:
        assert_told(sent, about, runs[0].id)
    else:
        assert [text for text in (about.prompt, about.argument, about.reply) if sent.said(text)] == []


def assert_told(sent: Kept, about: About, run_id: str) -> None:
    """The spans of a run and the event of the bug say what it was about."""
    _, spans = spans_of(sent, run_id)
    asked = next(span for span in spans if span.op == "gen_ai.chat")
    called = next(span for span in spans if span.op == "gen_ai.execute_tool")
    assert about.prompt in asked.data["gen_ai.input.messages"]
    assert about.reply in asked.data["gen_ai.output.messages"]
    assert about.argument in called.data["gen_ai.tool.call.arguments"]
    assert about.argument in called.data["gen_ai.tool.call.result"]
    bug = next(event for event in sent.events if event["fingerprint"][1] == "bug")
    assert bug["exception"]["values"][-1]["value"] == f"there is no {about.argument}"


@pytest.mark.contract("F8")
def test_a_call_that_does_not_stop_is_told_once(
    worker: Workers, model: MakeProvider, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it hangs; the run that ends afterwards is no further event."""
    go = threading.Event()

    @tool(effect="read", timeout=0.2, retry=RetryPolicy(retries=0))
    def hang(ctx: Any) -> None:
        go.wait(LONG_S)

    monkeypatch.setattr(Workers, "_heard", lambda self, *told: sentry.alert(*told))
    agent = make_agent(model([calls(("hang", {}))]), hang, max_attempts=1)
    worker.start(agent)
    run = worker.enqueue(agent)
    eventually(lambda: run.status() == "stopping", "it is shown as hanging")
    first_s = run.info()["activity_detail"]["for_s"]
    eventually(lambda: run.info()["activity_detail"]["for_s"] > first_s, "it is reported again")
    go.set()
    run.wait(LONG_S)
    (event,) = kept.events
    assert event["fingerprint"] == ["makegood", "stuck", "a", "hang", "STOPPING"]
    assert event["contexts"]["run"] == {"run_id": run.id}


@pytest.mark.contract("E8")
def test_a_cleanup_that_does_not_stop_is_told_once(
    worker: Workers, model: MakeProvider, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compensation hangs past its limit; it comes to an end before its process would be replaced."""
    go, hangs = threading.Event(), threading.Event()

    @tool(effect="write", identity=ALL)
    async def act(ctx: Any) -> str:
        return "acted"

    @act.compensate
    def undo(ctx: Any, call: Any) -> None:
        hangs.set()
        go.wait(LONG_S)

    monkeypatch.setattr(Workers, "_heard", lambda self, *told: sentry.alert(*told))

    def answer(request: RequestRecord) -> Behaviour:
        return Status(401) if request.results else calls(("act", {}))

    agent = make_agent(
        model(answer), act, on_failure="rollback", max_attempts=1, timeouts=limits(call=1, cleanup=2)
    )
    worker.start(agent)
    run = worker.enqueue(agent)
    assert hangs.wait(LONG_S)
    eventually(lambda: kept.events, "the event")
    go.set()
    run.wait(2 * LONG_S)
    stuck = [event for event in kept.events if event["fingerprint"][1] == "stuck"]
    assert len(stuck) == 1
    assert stuck[0]["fingerprint"][2] == "a"
    assert stuck[0]["fingerprint"][4] == "CLEANUP_HANGS"


def test_business_errors_and_expected_timeouts_are_no_events(
    worker: Workers, model: MakeProvider, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused call, a tool that is late, a step that is late: numbers, not alerts."""

    @tool(effect="read", timeout=0.2, retry=RetryPolicy(retries=0))
    async def late(ctx: Any) -> None:
        await asyncio.sleep(LONG_S)

    @tool(effect="read")
    async def refuse(ctx: Any) -> None:
        raise ToolError("no", code="NO")

    def answer(request: RequestRecord) -> Behaviour:
        kind = request.messages[0]["content"]
        if kind == "stall":
            return Stall()
        if request.results:
            assert told(request)
            return Reply("done")
        return calls((kind, {}))

    monkeypatch.setattr(Workers, "_heard", lambda self, *told: sentry.alert(*told))
    agent = make_agent(model(answer), late, refuse, timeouts=limits(step=1.5), max_attempts=1)
    worker.start(agent)
    for kind in ("late", "refuse", "stall"):
        worker.enqueue(agent, kind).wait(LONG_S)
    assert kept.tried == 0


def test_a_run_does_not_notice_that_sentry_is_broken(worker: Workers, model: MakeProvider) -> None:
    """Neither its spans nor its events can be sent."""

    @tool(effect="read")
    async def bug(ctx: Any) -> float:
        return 1 / 0

    def answer(request: RequestRecord) -> Behaviour:
        return Reply("done") if request.results else calls(("bug", {}))

    with switched_on(Kept(breaks=True), traces=1.0) as broken:
        agent = make_agent(model(answer), bug)
        worker.start(agent, sentry_traces=1)
        result, _ = worker.run(agent)
        assert result.state == "succeeded"
        eventually(lambda: broken.tried >= 2, "both were tried")

"""Steps of a declared agent: what the model is asked, what it is told, what ends the loop."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from makegood import ALL, Agent, Budgets, ToolError, tool
from makegood.testing import Reply, RequestRecord
from support.engine import MakeProvider, Workers, calls, events_of, limits, make_agent, told


@tool(effect="read")
async def look(ctx: Any, n: int) -> str:
    """Look something up."""
    return f"seen {n}"


def endless(request: RequestRecord) -> Reply:
    """A model that never answers: it looks at another thing each time."""
    return calls(("look", {"n": request.number}))


@pytest.mark.contract("D2", "F4")
def test_a_tool_call_is_journaled_and_its_result_told_to_the_model(
    worker: Workers, model: MakeProvider
) -> None:
    """Two rounds: the model asks for a tool, gets its result, answers; the row says everything."""
    provider = model([calls(("look", {"n": 7})), Reply("done")])
    result, run = worker.run(make_agent(provider, look, system="Be kind."), "hello")
    assert (result.state, result.output, result.steps, result.calls) == ("succeeded", "done", 2, 1)
    first, second = provider.requests
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert [m["content"] for m in first.messages] == ["Be kind.", "hello"]
    assert second.messages[-1]["content"] == "seen 7"
    (row,) = run.journal()
    assert row["status"] == "succeeded"
    assert row["response"] == "seen 7"
    assert row["args"] == {"n": 7}
    assert row["tries"] == 1
    assert row["step"] == 1
    assert row["started_at"] <= row["ended_at"]
    kinds = [event["type"] for event in run.events()]
    assert kinds[0] == "run.enqueued"
    assert kinds[-1] == "run.ended"
    assert kinds.index("tool.started") < kinds.index("tool.ended")
    assert result.usage.prompt_tokens == 20
    assert result.usage.completion_tokens == 10


@pytest.mark.contract("B3")
def test_tool_arguments_stay_the_raw_text_of_the_provider(worker: Workers, model: MakeProvider) -> None:
    """Blanks, escapes and key order of the arguments come back to the provider as it sent them."""
    raw = '{ "n" :\t7 }'
    provider = model([calls(("look", raw)), Reply("done")])
    worker.run(make_agent(provider, look))
    assistant = provider.requests[1].messages[-2]
    assert assistant["tool_calls"][0]["function"]["arguments"] == raw


@pytest.mark.contract("C6")
@pytest.mark.parametrize("raw", ['{"n": "many"}', "{}", "[]", "{not json", '{"n": 1, "m": 2}'])
def test_invalid_arguments_go_back_to_the_model_and_make_no_row(
    worker: Workers, model: MakeProvider, raw: str
) -> None:
    """The model is told what is wrong, nothing runs, and it may call again."""
    provider = model([calls(("look", raw)), calls(("look", {"n": 1})), Reply("done")])
    result, run = worker.run(make_agent(provider, look))
    assert result.state == "succeeded"
    assert told(provider.requests[1])["code"] == "INVALID_ARGUMENTS"
    assert len(run.journal()) == 1
    assert result.calls == 1


def test_an_unknown_tool_is_answered_with_the_names_of_the_known_ones(
    worker: Workers, model: MakeProvider
) -> None:
    """A tool that does not exist is an answer to the model, not a failure of the run."""
    provider = model([calls(("lok", {"n": 1}), ("look", {"n": 1})), Reply("done")])
    result, run = worker.run(make_agent(provider, look))
    assert result.state == "succeeded"
    assert len(run.journal()) == 1
    first, second = provider.requests[1].messages[-2:]
    assert json.loads(first["content"])["error"]["code"] == "UNKNOWN_TOOL"
    assert "look" in first["content"]
    assert second["content"] == "seen 1"


@pytest.mark.contract("A5")
@pytest.mark.parametrize("call", [("nothing", {"a": 1}), ("look", {"n": "many"})])
def test_the_same_failing_call_three_times_in_a_row_ends_the_run(
    worker: Workers, model: MakeProvider, call: tuple[str, Any]
) -> None:
    """Unknown tools and invalid arguments count; there is no fourth request."""
    provider = model(lambda _: calls(call))
    result, _ = worker.run(make_agent(provider, look))
    assert result.error is not None
    assert result.error.code == "REPEATED_FAILURE"
    assert result.state == "failed"
    assert len(provider.requests) == 3


@pytest.mark.contract("A5")
def test_a_success_between_two_failures_breaks_the_row(worker: Workers, model: MakeProvider) -> None:
    """Fail, fail, succeed, fail, fail, answer: the run succeeds."""
    bad, good = calls(("look", {"n": "x"})), calls(("look", {"n": 1}))
    provider = model([bad, bad, good, bad, bad, Reply("done")])
    result, _ = worker.run(make_agent(provider, look))
    assert result.state == "succeeded"


@pytest.mark.contract("A5")
def test_a_business_error_of_a_tool_counts_as_a_repeated_failure(
    worker: Workers, model: MakeProvider
) -> None:
    """The tool says no three times; the numbers in its text do not make three different errors."""
    seen: list[int] = []

    @tool(effect="read")
    async def refuse(ctx: Any, n: int) -> str:
        seen.append(n)
        raise ToolError(f"no such thing, attempt {len(seen)}", code="NOPE")

    provider = model(lambda _: calls(("refuse", {"n": 1})))
    result, run = worker.run(make_agent(provider, refuse))
    assert result.error is not None
    assert result.error.code == "REPEATED_FAILURE"
    assert len(seen) == 3
    assert {row["error"]["code"] for row in run.journal()} == {"NOPE"}


@pytest.mark.contract("A4", "G6")
def test_the_step_limit_ends_a_model_that_never_answers(worker: Workers, model: MakeProvider) -> None:
    """Exactly as many model requests as steps are allowed."""
    provider = model(endless)
    result, _ = worker.run(make_agent(provider, look, budgets=Budgets(steps=4)))
    assert result.error is not None
    assert result.error.code == "STEP_LIMIT"
    assert result.state == "failed"
    assert result.steps == 4
    assert len(provider.requests) == 4


@pytest.mark.contract("G6")
def test_twenty_steps_are_the_default(worker: Workers, model: MakeProvider) -> None:
    """The answer in the twentieth step is still good."""
    provider = model(lambda r: Reply("done") if r.number == 20 else endless(r))
    result, _ = worker.run(make_agent(provider, look))
    assert result.state == "succeeded"
    assert result.steps == 20


@pytest.mark.contract("A4")
def test_a_model_that_only_sends_invalid_arguments_is_ended_by_the_attempts_limit(
    worker: Workers, model: MakeProvider
) -> None:
    """Each step is fast and each error another one, so that only L3 is left to end it."""
    provider = model(lambda r: calls(("look", {"n": "x" * r.number})))
    agent = make_agent(provider, look, budgets=Budgets(steps=10**6), timeouts=limits(run=0.5), max_attempts=1)
    result, _ = worker.run(agent)
    assert result.state == "timed_out"
    assert result.error is not None
    assert result.error.code == "RUN_TIMEOUT"


class Report(BaseModel):
    """What the agent has to answer."""

    rows: int


def test_an_answer_of_the_wrong_form_is_sent_back_until_it_is_right(
    worker: Workers, model: MakeProvider
) -> None:
    """The model is told what is wrong and answers again; the output is the object."""
    provider = model([Reply("five rows"), Reply('```json\n{"rows": 5}\n```')])
    result, _ = worker.run(make_agent(provider, output=Report))
    assert (result.state, result.output, result.steps) == ("succeeded", {"rows": 5}, 2)
    said, note = provider.requests[1].messages[-2:]
    assert said == {"role": "assistant", "content": "five rows"}
    assert note["role"] == "user"
    assert "Report" in note["content"]


def test_an_answer_of_the_wrong_form_for_ever_ends_at_the_step_limit(
    worker: Workers, model: MakeProvider
) -> None:
    """The retry of the form is bounded."""
    provider = model(lambda _: Reply("five rows"))
    result, _ = worker.run(make_agent(provider, output=Report, budgets=Budgets(steps=3)))
    assert result.error is not None
    assert result.error.code == "STEP_LIMIT"
    assert len(provider.requests) == 3


@pytest.mark.parametrize(
    ("value", "sent"),
    [("plain", "plain"), ({"text": "alone"}, "alone"), ({"text": "a", "b": 1}, '{"text": "a", "b": 1}')],
)
def test_the_first_message_is_the_input(worker: Workers, model: MakeProvider, value: Any, sent: str) -> None:
    """A text as it is, a lone text key its value, anything else its JSON."""
    provider = model()
    worker.run(make_agent(provider), value)
    assert provider.requests[0].messages[-1]["content"] == sent


def test_a_prompt_that_fails_ends_the_run_as_a_bug_without_a_request(
    worker: Workers, model: MakeProvider
) -> None:
    """The user's own function raised; nobody asks the model."""

    def prompt(value: Any) -> str:
        raise RuntimeError("boom")

    provider = model()
    result, _ = worker.run(make_agent(provider, prompt=prompt), {"a": 1})
    assert result.error is not None
    assert result.error.code == "BUG"
    assert "boom" in result.error.message
    assert not provider.requests


def test_a_long_response_is_cut_marked_and_its_whole_digest_kept(
    worker: Workers, model: MakeProvider
) -> None:
    """Above 256 KiB the model, the journal and a later attempt see the same cut text."""
    whole = "x" * (300 * 1024)

    @tool(effect="read")
    async def much(ctx: Any) -> str:
        return whole

    @tool(effect="read")
    async def many(ctx: Any) -> dict[str, str]:
        return {"text": whole}

    provider = model([calls(("much", {}), ("many", {})), Reply("done")])
    result, run = worker.run(make_agent(provider, much, many))
    assert result.state == "succeeded"
    text, object_ = run.journal()
    assert "cut" in text["response"]
    assert len(text["response"].encode()) < 256 * 1024
    assert object_["response"]["cut"] is True
    assert object_["response"]["bytes"] > 300 * 1024
    assert text["response_digest"]
    assert provider.requests[1].messages[-2]["content"] == text["response"]


def test_a_response_just_under_the_limit_is_kept_whole(worker: Workers, model: MakeProvider) -> None:
    """Large bodies travel in pieces and come back as they were."""
    whole = "y" * (256 * 1024 - 2)

    @tool(effect="read")
    def much(ctx: Any) -> str:
        return whole

    provider = model([calls(("much", {})), Reply("done")])
    _, run = worker.run(make_agent(provider, much))
    assert run.journal()[0]["response"] == whole == provider.requests[1].messages[-1]["content"]


def test_a_response_that_is_no_json_is_a_bug_told_once(worker: Workers, model: MakeProvider) -> None:
    """An object without a form, or a circle, does not reach the journal."""

    @tool(effect="read")
    async def circle(ctx: Any) -> Any:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    provider = model([calls(("circle", {})), Reply("done")])
    result, run = worker.run(make_agent(provider, circle))
    assert result.state == "succeeded"
    assert run.journal()[0]["status"] == "failed"
    assert told(provider.requests[1])["code"] == "BUG"


def test_secrets_are_masked_before_the_model_or_the_journal_sees_them(
    worker: Workers, model: MakeProvider
) -> None:
    """SecretStr fields and named fields: the tool gets the clear value, everybody else a mask."""
    got: list[str] = []

    @tool(effect="write", identity=("customer",))
    async def pay(ctx: Any, customer: str, card: SecretStr, pin: str) -> dict[str, Any]:
        got.extend([card.get_secret_value(), pin])
        return {"ok": True, "PIN": "9999", "nested": [{"pin": "9999"}]}

    provider = model([calls(("pay", {"customer": "c", "card": "4242", "pin": "1234"})), Reply("done")])
    agent = make_agent(provider, pay)
    worker.start(agent, secret_fields=("pin",))
    _, run = worker.run(agent)
    assert got == ["4242", "1234"]
    (row,) = run.journal()
    assert row["args"] == {"customer": "c", "card": "**********", "pin": "**********"}
    assert row["response"] == {"ok": True, "PIN": "**********", "nested": [{"pin": "**********"}]}
    assert "9999" not in provider.requests[1].messages[-1]["content"]


def test_calls_of_one_step_run_at_the_same_time_and_their_results_keep_the_order(
    worker: Workers, model: MakeProvider
) -> None:
    """Each waits for the other, so both must be running; the first to be asked for is the first to be told."""
    import asyncio

    met: dict[str, asyncio.Event] = {}

    @tool(effect="write", identity=ALL)
    async def meet(ctx: Any, me: str, other: str) -> str:
        met.setdefault(me, asyncio.Event()).set()
        await met.setdefault(other, asyncio.Event()).wait()
        return me

    asked = calls(("meet", {"me": "b", "other": "a"}), ("meet", {"me": "a", "other": "b"}))
    provider = model([asked, Reply("done")])
    result, _ = worker.run(make_agent(provider, meet))
    assert result.state == "succeeded"
    assert result.effects.committed == 2
    assert [m["content"] for m in provider.requests[1].messages[-2:]] == ["b", "a"]


def test_two_calls_of_one_id_get_two_ids_that_stay(worker: Workers, model: MakeProvider) -> None:
    """A sloppy provider doubles an id; the history is balanced all the same and equal in both later requests."""
    provider = model(
        [
            calls(("look", {"n": 1}, "same"), ("look", {"n": 2}, "same")),
            calls(("look", {"n": 3})),
            Reply("done"),
        ]
    )
    result, _ = worker.run(make_agent(provider, look))
    assert result.state == "succeeded"
    second, third = provider.requests[1:]
    assert list(third.messages[: len(second.messages)]) == list(second.messages)


@pytest.mark.parametrize("stream", [False, True])
def test_streamed_and_whole_replies_make_the_same_run(
    worker: Workers, model: MakeProvider, stream: bool
) -> None:
    """model_args may ask for streamed requests; the run is the same."""
    provider = model([calls(("look", {"n": 1}), ("look", {"n": 2})), Reply("a long answer", pieces=4)])
    agent = make_agent(provider, look, model_args={"stream": True} if stream else {})
    result, run = worker.run(agent)
    assert (result.state, result.output) == ("succeeded", "a long answer")
    assert [row["response"] for row in run.journal()] == ["seen 1", "seen 2"]
    assert all(request.streamed is stream for request in provider.requests)
    assert result.usage.prompt_tokens == 20
    assert not result.usage.estimated


def test_an_input_of_a_megabyte_and_a_large_history_come_back_whole(
    worker: Workers, model: MakeProvider
) -> None:
    """Bodies above 64 KiB are spilled and resolved for the model, the record and the decision."""
    big = "z" * (1024 * 1024 - 2)
    provider = model([Reply("w" * 200_000, tool_calls=[("look", {"n": 1})]), Reply("v" * 100_000)])
    result, run = worker.run(make_agent(provider, look), big)
    assert result.output == "v" * 100_000
    assert run.info()["input"] == big
    assert provider.requests[1].messages[-3]["content"] == big


def test_two_agents_of_one_worker_keep_their_own_declarations(worker: Workers, model: MakeProvider) -> None:
    """Runs of both are claimed from the same shards, each by its name."""
    one, two = model(), model()
    agents: list[Agent] = [make_agent(one, name="one"), make_agent(two, name="two")]
    worker.start(*agents)
    runs = [worker.enqueue(agents[i % 2], f"{i}") for i in range(8)]
    assert all(run.wait(30).state == "succeeded" for run in runs)
    assert len(one.requests) == len(two.requests) == 4
    assert not events_of(runs[0], "run.continued")

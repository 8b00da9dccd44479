"""Agent and @agent: fields, refusals, effective limits, input, output, and what workers publish."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from makegood.errors import DeclarationError, InvalidInput, NotBuilt, OutputInvalid, PayloadTooLarge
from makegood.tasks.agent import Agent, agent
from makegood.tasks.policies import BreakerPolicy, Budgets, RetryPolicy, Timeouts
from makegood.tasks.queries import MAX_INPUT_BYTES, checked_request
from makegood.tasks.records import ALL
from makegood.tasks.tool import Tool, tool

MODEL = "openai/gpt-5-mini"


@tool(effect="write", identity=("customer",), timeout=8, breaker="tickets", on_failure="keep", settle_after=0)
async def create_ticket(ctx: Any, customer: str) -> None:
    """Create a ticket."""


@tool(effect="read", retry=RetryPolicy(retries=1))
def look_up(ctx: Any, id: int) -> None:  # noqa: A002
    """Look it up."""


@tool(effect="irreversible", identity=ALL)
def mail(ctx: Any, to: str) -> None:
    """Send a mail."""


class Order(BaseModel):
    """An input."""

    sku: str
    count: int = 1


class Report(BaseModel):
    """An output."""

    rows: int


def make(**options: Any) -> Agent:
    """An agent with these options."""
    return Agent(**{"name": "support", "model": MODEL, **options})


def test_defaults_are_those_of_the_interface() -> None:
    """Every field, by the name and with the documented default."""
    made = make()
    assert (made.name, made.model, made.system, made.code) == ("support", MODEL, "", None)
    assert (dict(made.tools), dict(made.model_args), made.fallback_models) == ({}, {}, ())
    assert (made.on_failure, made.max_attempts) == ("rollback", 3)
    assert (made.timeouts, made.budgets, made.retry) == (Timeouts(), Budgets(), RetryPolicy())
    assert made.tool_retry == RetryPolicy(retries=5, backoff=1, max_backoff=16)
    assert made.breaker == BreakerPolicy()
    assert (made.input, made.prompt, made.output, made.before_step, made.before_end) == (None,) * 5


def test_tools_are_found_by_name() -> None:
    """In the order they were given."""
    assert list(make(tools=[look_up, create_ticket]).tools.items()) == [
        ("look_up", look_up),
        ("create_ticket", create_ticket),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "Agent name"),
        ({"name": "a b"}, "Agent name"),
        ({"name": "x" * 65}, "Agent name"),
        ({"name": None}, "Agent name"),
        ({"model": ""}, "model"),
        ({"model": "  "}, "model"),
        ({"model": None}, "model"),
        ({"system": None}, "system"),
        ({"tools": [create_ticket, create_ticket]}, "two tools named 'create_ticket'"),
        ({"tools": [print]}, "print is no tool"),
        ({"tools": create_ticket}, "tools must be a list"),
        ({"tools": "create_ticket"}, "tools must be a list"),
        ({"tools": None}, "tools must be a list"),
        ({"model_args": [1]}, "model_args"),
        ({"model_args": {1: 2}}, "model_args"),
        ({"model_args": {"num_retries": 3}}, "use retry= instead"),
        ({"model_args": {"timeout": 3}}, "use timeouts= instead"),
        ({"model_args": {"messages": []}}, "messages"),
        ({"fallback_models": "gpt"}, "fallback_models"),
        ({"fallback_models": [""]}, "fallback_models"),
        ({"fallback_models": [None]}, "fallback_models"),
        ({"on_failure": "commit"}, "on_failure"),
        ({"timeouts": {"call": 5}}, "timeouts must be Timeouts"),
        ({"budgets": None}, "budgets must be Budgets"),
        ({"retry": 5}, "retry must be RetryPolicy"),
        ({"tool_retry": None}, "tool_retry must be RetryPolicy"),
        ({"breaker": "x"}, "breaker must be BreakerPolicy"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_attempts": -1}, "max_attempts is -1"),
        ({"max_attempts": None}, "max_attempts is None"),
        ({"max_attempts": True}, "max_attempts is True"),
        ({"max_attempts": 1.5}, "max_attempts is 1.5"),
        ({"input": dict}, "input must be a pydantic model"),
        ({"input": Order(sku="x")}, "input must be a pydantic model"),
        ({"output": "Report"}, "output must be a pydantic model"),
        ({"prompt": "Say {text}"}, "prompt needs a function"),
        ({"prompt": lambda: ""}, "prompt must take"),
        ({"before_step": 1}, "before_step needs a function"),
        ({"before_step": lambda: None}, "before_step must take"),
        ({"before_end": lambda ctx: None}, "before_end must take"),
        ({"verify": True}, "verify needs a function"),
        ({"verify": lambda ctx: None}, "verify must take"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    """One sentence that names the field."""
    with pytest.raises(DeclarationError, match=says) as caught:
        make(**options)
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "option",
    [
        {"max_running": 2},
        {"session_on_review": "continue"},
    ],
)
def test_unbuilt_options_are_refused_by_name(option: dict[str, Any]) -> None:
    """A sentence that names the capability."""
    with pytest.raises(NotBuilt, match=f"{next(iter(option))} is not built yet; leave it at its default"):
        make(**option)


def test_an_agent_is_read_only() -> None:
    """A declaration shared by runs cannot change under them, and its arguments are copied."""
    tools: list[Tool] = [look_up]
    arguments = {"temperature": 0}
    made = make(tools=tools, model_args=arguments)
    tools.append(create_ticket)
    arguments["temperature"] = 1
    assert (list(made.tools), dict(made.model_args)) == (["look_up"], {"temperature": 0})
    with pytest.raises(AttributeError, match="read-only"):
        made.max_attempts = 5
    with pytest.raises(TypeError):
        made.tools["x"] = look_up  # type: ignore[index]


@pytest.mark.contract("A1")
def test_limits_of_a_tool_go_before_those_of_its_agent() -> None:
    """tool > agent > default, for timeout, retry and on_failure."""
    made = make(tools=[create_ticket, look_up, mail], timeouts=Timeouts(call=7))
    assert [made.tool_timeout_s(each) for each in (create_ticket, look_up)] == [8, 7]
    assert [made.tool_retry_policy(each).retries for each in (create_ticket, look_up)] == [5, 1]
    assert [made.tool_on_failure(each) for each in (create_ticket, mail)] == ["keep", "rollback"]


@pytest.mark.contract("A1")
@pytest.mark.parametrize(
    ("timeouts", "attempts", "total_s"),
    [
        (Timeouts(), 3, 960),
        (Timeouts(run=10, cleanup=5), 2, 25),
        (Timeouts(total=50), 3, 50),
        (Timeouts(cleanup=None), 1, 360),
    ],
)
def test_the_total_is_attempts_times_run_plus_cleanup(
    timeouts: Timeouts, attempts: int, total_s: float
) -> None:
    """Unless it is given; it always exists."""
    assert make(timeouts=timeouts, max_attempts=attempts).total_s() == total_s


@pytest.mark.contract("C4")
def test_sends_per_step_have_a_bound() -> None:
    """One, the retries and the fallback models."""
    assert make().max_sends_per_step() == 6
    assert make(retry=RetryPolicy(retries=0), fallback_models=["a/b", "c/d"]).max_sends_per_step() == 3


def test_the_declaration_is_json_without_secrets() -> None:
    """What workers publish says all limits and never the model's arguments."""
    made = make(
        tools=[create_ticket, look_up, mail],
        model_args={"api_key": SecretStr("hunter2"), "api_base": "http://x"},
        fallback_models=["a/b"],
        input=Order,
    )
    shown = json.loads(json.dumps(made.declaration()))
    assert set(shown) == {
        "name",
        "kind",
        "model",
        "fallback_models",
        "tools",
        "timeouts",
        "retry",
        "tool_retry",
        "budgets",
        "max_attempts",
        "on_failure",
        "input_schema",
        "max_sends_per_step",
    }
    assert shown["kind"] == "prompt"
    assert shown["timeouts"]["total"] == 960
    assert shown["budgets"] == {"steps": 20}
    assert shown["input_schema"]["required"] == ["sku"]
    assert [each["identity"] for each in shown["tools"]] == [["customer"], None, "ALL"]
    assert shown["tools"][0] == {
        "name": "create_ticket",
        "effect": "write",
        "identity": ["customer"],
        "timeout": 8,
        "timeout_from": "tool",
        "slow": False,
        "isolation": "thread",
        "breaker": "tickets",
        "on_failure": "keep",
        "compensates": False,
        "probes": False,
    }
    for text in (json.dumps(shown), repr(made)):
        assert "hunter2" not in text
        assert "http://x" not in text


def test_a_coroutine_becomes_an_agent() -> None:
    """@agent(...) takes what Agent takes and keeps the function as `code`."""

    async def nightly(ctx: Any, input: Any) -> None: ...  # noqa: A002

    made = agent(name="nightly", model=MODEL, tools=[look_up])(nightly)
    assert isinstance(made, Agent)
    assert (made.name, made.code, list(made.tools)) == ("nightly", nightly, ["look_up"])
    assert made.declaration()["kind"] == "code"


def test_an_agents_code_must_be_async_and_fit() -> None:
    """A plain function and another signature are refused."""

    def plain(ctx: Any, input: Any) -> None: ...  # noqa: A002
    async def short(ctx: Any) -> None: ...

    with pytest.raises(DeclarationError, match="async def"):
        agent(name="a", model=MODEL)(plain)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="must take"):
        agent(name="a", model=MODEL)(short)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hello", "hello"),
        ("", ""),
        ({"text": "hello"}, "hello"),
        ({"text": 5}, '{"text": 5}'),
        ({"text": "a", "more": 1}, '{"text": "a", "more": 1}'),
        ({"ü": [1, None]}, '{"ü": [1, null]}'),
        ({}, "{}"),
    ],
)
def test_the_first_message(value: Any, message: str) -> None:
    """The text; the value of a lone `text` key; else the JSON, in the order it was given."""
    made = make()
    assert made.first_message(value) == message


def test_the_first_message_by_prompt() -> None:
    """`prompt(input)` makes it from an object, and sees the input model when there is one."""
    made = make(prompt=lambda order: f"{order['count']} of {order['sku']}")
    assert made.first_message({"sku": "x", "count": 2}) == "2 of x"
    assert made.first_message("hello") == "hello"
    assert made.first_message({"text": "hello"}) == "hello"
    typed = make(input=Order, prompt=lambda order: f"{order.count} of {order.sku}")
    assert typed.first_message({"sku": "x"}) == "1 of x"
    with pytest.raises(DeclarationError, match="return a text"):
        make(prompt=lambda order: 5).first_message({"a": 1})


@pytest.mark.parametrize(
    "value", [None, 5, [1], True, b"x", {"a": object()}, {"a": float("nan")}, {"a": {1, 2}}]
)
def test_input_is_a_text_or_a_json_object(value: Any) -> None:
    """Anything else is refused at enqueue."""
    with pytest.raises(InvalidInput, match="agent 'support'"):
        checked_request("support", value, None, None)


def test_input_is_checked_by_its_model_and_kept_as_given() -> None:
    """Byte-equal (E5): defaults are not written into it; a model instance becomes its JSON."""
    assert checked_request("support", {"sku": "x", "n": None}, None, None).value == {"sku": "x", "n": None}
    assert checked_request("support", Order(sku="x"), None, None).value == {"sku": "x", "count": 1}
    made = make(input=Order)
    assert made.typed_input({"sku": "x"}) == Order(sku="x", count=1)
    for wrong, says in (({"count": 1}, "sku: is required"), ("text", "JSON object"), ({"sku": 5}, "sku: ")):
        with pytest.raises(InvalidInput, match=says):
            made.typed_input(wrong)


def test_input_has_at_most_a_mebibyte() -> None:
    """Counted as JSON in UTF-8, the quotes included."""
    assert checked_request("support", "x" * (MAX_INPUT_BYTES - 2), None, None)
    for large in ("x" * (MAX_INPUT_BYTES - 1), "ä" * (MAX_INPUT_BYTES // 2), {"a": "x" * MAX_INPUT_BYTES}):
        with pytest.raises(PayloadTooLarge, match="more than 1 MiB"):
            checked_request("support", large, None, None)


@pytest.mark.parametrize("name", ["", "x" * 65, "two words", "a\n", "ä"])
def test_a_name_that_no_agent_can_have_is_refused_at_enqueue(name: str) -> None:
    """With the words of the declaration, and cut in the message."""
    with pytest.raises(InvalidInput, match=r"Agent name '.{0,70}' is not usable; names are 1 to 64 of"):
        checked_request(name, "x", None, None)


@pytest.mark.parametrize(
    "text", ['{"rows": 3}', ' {"rows": 3}\n', '```json\n{"rows": 3}\n```', '```\n{"rows": 3}\n```\n']
)
def test_output_is_read_by_its_model(text: str) -> None:
    """Also inside a code fence, as models like to write it; the result is JSON."""
    assert make(output=Report).parse_output(text) == {"rows": 3}


def test_output_that_is_none_is_refused_for_the_model() -> None:
    """A sentence that says what is wrong; without a model any text is the output."""
    made = make(output=Report)
    for text, says in (
        ("three rows", "not valid JSON"),
        ("{}", "rows: is required"),
        ("[]", "JSON object"),
        ("", "JSON"),
    ):
        with pytest.raises(OutputInvalid, match=f"not a valid Report: .*{says}"):
            made.parse_output(text)
    assert make().parse_output("three rows") == "three rows"
    assert made.output_schema is not None
    assert made.output_schema["required"] == ["rows"]

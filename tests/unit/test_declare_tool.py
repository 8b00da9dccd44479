"""@tool: what is accepted, what is refused and how, and what the model is shown."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from makegood.errors import DeclarationError, NotBuilt
from makegood.tasks.policies import RetryPolicy
from makegood.tasks.records import ALL
from makegood.tasks.tool import Tool, tool

if TYPE_CHECKING:
    from makegood.tasks.context import ToolContext  # as in a user's module: not there at run time


class Address(BaseModel):
    """Where to."""

    street: str
    zip_code: str | None = None


class Colour(enum.Enum):
    """Two colours."""

    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    """A tree."""

    children: list[Node] = []


@tool(effect="idempotent", timeout=8, identity=("customer",), breaker="tickets")
async def create_ticket(ctx: ToolContext, customer: str, title: str = "none") -> dict[str, str]:
    """Create a ticket.

    One per customer.
    """
    return {"customer": customer, "title": title}


@tool(effect="read")
def look_up(ctx: ToolContext, id: int) -> str:  # noqa: A002
    """Look it up."""
    return f"row {id}"


@tool(effect="write", identity=ALL, isolation="process")
def heavy(ctx: ToolContext, n: int) -> int:
    """Work hard."""
    return n


def parameters_of(made: Tool) -> dict[str, Any]:
    """The JSON schema of a tool's arguments."""
    shown: dict[str, Any] = made.schema["function"]["parameters"]
    return shown


def test_the_schema_has_the_form_providers_take() -> None:
    """Name, docstring and a closed object, without generated titles."""
    assert create_ticket.schema == {
        "type": "function",
        "function": {
            "name": "create_ticket",
            "description": "Create a ticket.\n\nOne per customer.",
            "parameters": {
                "type": "object",
                "properties": {
                    "customer": {"type": "string"},
                    "title": {"type": "string", "default": "none"},
                },
                "required": ["customer"],
                "additionalProperties": False,
            },
        },
    }


def test_options_become_attributes() -> None:
    """What was declared can be read, and the defaults are the documented ones."""
    assert (create_ticket.effect, create_ticket.timeout, create_ticket.identity) == (
        "idempotent",
        8,
        ("customer",),
    )
    assert (create_ticket.breaker, create_ticket.is_async) == ("tickets", True)
    assert (look_up.effect, look_up.timeout, look_up.identity) == ("read", None, None)
    assert (look_up.breaker, look_up.is_async) == ("look_up", False)
    assert (look_up.retry, look_up.reuse, look_up.on_failure) == (None, False, None)
    assert (look_up.isolation, look_up.settle_after, look_up.key_ttl) == ("thread", None, 86_400)
    assert (heavy.isolation, heavy.identity) == ("process", ALL)


async def test_a_tool_is_still_its_function() -> None:
    """Calling a tool calls the function, sync or not; name and docstring stay."""
    assert look_up(None, 3) == "row 3"
    assert await create_ticket(None, "c", title="t") == {"customer": "c", "title": "t"}
    assert create_ticket.__name__ == "create_ticket"  # type: ignore[attr-defined]
    assert create_ticket.__doc__ is not None
    assert create_ticket.__doc__.startswith("Create a ticket.")


def test_rich_hints_become_schema() -> None:
    """Optional, Literal, enums, nested and recursive models, Annotated descriptions and constraints."""

    @tool(effect="read")
    def rich(
        ctx: ToolContext,
        to: Address,
        tree: Node,
        kind: Literal["a", "b"],
        colour: Colour,
        many: list[Address],
        note: Optional[str] = None,  # noqa: UP045
        at: datetime | None = None,
        size: Annotated[int, Field(description="in cm", ge=1)] = 3,
        weight: int = Field(5, description="in kg", le=9),
    ) -> None: ...

    shown = parameters_of(rich)
    properties = shown["properties"]
    assert properties["kind"] == {"enum": ["a", "b"], "type": "string"}
    assert properties["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert properties["size"] == {"description": "in cm", "minimum": 1, "type": "integer", "default": 3}
    assert properties["weight"] == {"description": "in kg", "maximum": 9, "type": "integer", "default": 5}
    assert properties["to"] == {"$ref": "#/$defs/Address"}
    assert set(shown["$defs"]) == {"Address", "Node", "Colour"}
    assert shown["required"] == ["to", "tree", "kind", "colour", "many"]
    json.dumps(rich.schema)


def test_hints_of_local_classes_are_resolved() -> None:
    """A model defined inside a function works, also with `from __future__ import annotations`, also nested."""

    class Order(BaseModel):
        lines: list[Line]

    class Line(BaseModel):
        sku: str

    def make() -> Tool:
        @tool(effect="read")
        def price(ctx: ToolContext, order: Order, first: Line | None = None) -> int:
            return len(order.lines)

        return price

    made = make()
    assert set(parameters_of(made)["$defs"]) == {"Order", "Line"}
    assert made.parse('{"order": {"lines": [{"sku": "x"}]}}')["order"].lines[0].sku == "x"


def test_a_local_tool_may_use_names_that_are_assigned_later() -> None:
    """Its own name, for one: the closure has an empty cell while the tool is made."""

    @tool(effect="read")
    def count(ctx: ToolContext, n: int) -> int:
        return later if n == 0 else count.fn(ctx, n - 1)

    later = 7
    assert count(None, 3) == 7


def test_a_wrapped_function_keeps_the_schema_of_the_inner_one() -> None:
    """A decorator made with functools.wraps may stand between."""

    class Inner(BaseModel):
        x: int

    def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    @tool(effect="read")
    @logged
    def get(ctx: ToolContext, inner: Inner, n: int = 1) -> int:
        return inner.x + n

    assert get(None, **get.parse('{"inner": {"x": 2}}')) == 3


def test_a_tool_without_arguments_has_an_empty_closed_object() -> None:
    """No parameters is a schema too."""

    @tool(effect="read")
    def now(ctx: ToolContext) -> str:
        return "now"

    assert parameters_of(now) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.parse("") == now.parse("{}") == {}


def test_parameters_may_have_names_that_pydantic_uses() -> None:
    """`schema`, `model_config`, `_x` or `self` are ordinary names of a tool's arguments."""

    @tool(effect="write", identity=("schema", "_x"))
    def odd(
        ctx: ToolContext, schema: str, model_config: int, _x: int, self: str, copy: bool = False
    ) -> None: ...

    raw = '{"schema": "s", "model_config": 1, "_x": 2, "self": "me"}'
    kwargs = odd.parse(raw)
    assert kwargs == {"schema": "s", "model_config": 1, "_x": 2, "self": "me", "copy": False}
    assert odd.identity_of(odd.encode_args(kwargs)) == {"schema": "s", "_x": 2}
    assert list(parameters_of(odd)["properties"]) == ["schema", "model_config", "_x", "self", "copy"]


def no_context(customer: str) -> None: ...
def no_parameters() -> None: ...
def keyword_context(*, ctx: Any) -> None: ...
def with_args(ctx: Any, *args: int) -> None: ...
def with_kwargs(ctx: Any, **kwargs: int) -> None: ...
def without_hint(ctx, x): ...  # type: ignore[no-untyped-def]
def positional(ctx: Any, x: int, /) -> None: ...
def unresolvable(ctx: Any, x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def no_json(ctx: Any, x: Callable[[int], int]) -> None: ...
def no_schema(ctx: Any, x: threading_lock) -> None: ...  # type: ignore[valid-type]
def aliased(ctx: Any, x: int = Field(1, alias="y")) -> None: ...
def yields(ctx: Any) -> Any:
    yield 1


async def yields_async(ctx: Any) -> Any:
    yield 1


threading_lock = type("Lock", (), {})


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (no_context, "must take ctx first"),
        (no_parameters, "must take ctx first"),
        (keyword_context, "must take ctx first"),
        (with_args, "name every parameter"),
        (with_kwargs, "name every parameter"),
        (without_hint, "'x' has no type hint"),
        (positional, "by position only"),
        (unresolvable, "'x' cannot be resolved"),
        (no_json, "no JSON"),
        (no_schema, "no JSON"),
        (aliased, "has an alias"),
        (yields, "yields"),
        (yields_async, "yields"),
        (lambda ctx: None, "not accepted by model providers"),
        (print, "needs a function written with def"),
        (Address, "needs a function written with def"),
        (create_ticket, "needs a function written with def"),
    ],
)
def test_a_function_no_schema_can_describe_is_refused(fn: Any, says: str) -> None:
    """The sentence says what to change."""
    with pytest.raises(DeclarationError, match=says) as caught:
        tool(effect="read")(fn)
    assert len(str(caught.value)) < 350


@pytest.mark.parametrize("name", ["größe", "x" * 65])
def test_a_name_providers_refuse_is_refused(name: str) -> None:
    """^[a-zA-Z0-9_-]{1,64}$, checked where it is written and not at the first request."""

    def fn(ctx: Any) -> None: ...

    fn.__name__ = name
    with pytest.raises(DeclarationError, match="1 to 64 of"):
        tool(effect="read")(fn)


@pytest.mark.contract("D5")
@pytest.mark.parametrize("effect", ["read", "idempotent", "write", "irreversible"])
def test_the_four_effect_classes(effect: Any) -> None:
    """All four are accepted."""

    def fn(ctx: Any, x: int) -> None: ...

    assert tool(effect=effect, identity=("x",))(fn).effect == effect


@pytest.mark.contract("D3")
@pytest.mark.parametrize("effect", ["idempotent", "write", "irreversible"])
def test_identity_is_mandatory_for_effects(effect: Any) -> None:
    """Only a read may leave it out."""

    def fn(ctx: Any, x: int) -> None: ...

    with pytest.raises(DeclarationError, match=r"Tool 'fn' has effects but no identity.*identity=ALL"):
        tool(effect=effect)(fn)
    assert tool(effect=effect, identity=ALL)(fn).identity is ALL


@pytest.mark.parametrize("identity", [(), "x", ("x", "x"), ("nope",), (1,), ("ctx",), 5, {"x"}])
def test_identity_names_parameters(identity: Any) -> None:
    """A misspelt or empty identity would give every call the same key."""

    def fn(ctx: Any, x: int) -> None: ...

    with pytest.raises(DeclarationError, match="identity"):
        tool(effect="write", identity=identity)(fn)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("effect", "delete"),
        ("effect", None),
        ("effect", ["read"]),
        ("isolation", "vm"),
        ("reuse", "yes"),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", True),
        ("settle_after", -1),
        ("settle_after", "1"),
        ("key_ttl", 0),
        ("retry", 3),
        ("on_failure", "undo"),
        ("breaker", ""),
        ("breaker", "a b"),
        ("breaker", "{x}"),
        ("breaker", 5),
        ("slow", 1),
    ],
)
def test_options_that_make_no_sense_are_refused(option: str, value: Any) -> None:
    """Each refusal names the option."""

    def fn(ctx: Any, x: int) -> None: ...

    with pytest.raises(DeclarationError, match=option):
        tool(**{"effect": "write", "identity": ("x",), option: value})(fn)


@pytest.mark.parametrize(
    ("option", "value", "default"),
    [("approval", True, False), ("rate", "10/s", None), ("max_running", 2, None)],
)
def test_unbuilt_options_are_refused_by_name(option: str, value: Any, default: Any) -> None:
    """One sentence that names the capability; its default passes."""

    def fn(ctx: Any) -> None: ...

    with pytest.raises(NotBuilt) as caught:
        tool(**{"effect": "read", option: value})(fn)
    assert (
        str(caught.value)
        == f"tool({option}={value!r}) is not built yet; leave it at its default ({default!r})."
    )
    assert tool(**{"effect": "read", option: default})(fn).name == "fn"


def test_options_of_this_tool_are_recorded() -> None:
    """retry, on_failure (also by alias), settle_after, reuse, key_ttl."""

    def fn(ctx: Any, x: int) -> None: ...

    retry = RetryPolicy(retries=1)
    made = tool(identity=("x",), retry=retry, on_failure="commit_on_complete", settle_after=0, key_ttl=None)(
        fn
    )
    assert (made.effect, made.retry, made.on_failure) == ("write", retry, "keep")
    assert (made.settle_after, made.key_ttl) == (0, None)
    assert tool(effect="read", reuse=True)(fn).reuse is True
    assert [tool(effect="read", slow=slow)(fn).slow for slow in (False, True)] == [False, True]


def test_bare_decoration_is_refused_with_the_way_to_write_it() -> None:
    """`@tool` without parentheses."""

    def fn(ctx: Any) -> None: ...

    with pytest.raises(DeclarationError, match=r'write @tool\(effect="read"\)'):
        tool(fn)


def test_a_process_tool_must_be_importable() -> None:
    """Lambdas, local functions, __main__ and coroutines cannot run in a child process."""

    def local(ctx: Any, x: int) -> None: ...
    def scripted(ctx: Any, x: int) -> None: ...
    async def waiting(ctx: Any, x: int) -> None: ...

    scripted.__module__, scripted.__qualname__ = "__main__", "scripted"
    nameless: Any = lambda ctx, x: None  # noqa: E731
    nameless.__name__ = "nameless"
    nameless.__annotations__ = {"x": int}
    for fn in (local, scripted, nameless):
        with pytest.raises(DeclarationError, match="must be able to import"):
            tool(effect="write", identity=ALL, isolation="process")(fn)
    with pytest.raises(DeclarationError, match="is async"):
        tool(effect="write", identity=ALL, isolation="process")(waiting)

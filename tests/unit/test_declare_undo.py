"""What stands beside a tool: compensation, probe, secrets they cannot need, and the roll-back of resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, SecretStr

from makegood.errors import DeclarationError
from makegood.tasks.resources import registered_resources, resource
from makegood.tasks.tool import Tool, tool

if TYPE_CHECKING:
    from makegood.tasks.context import ToolContext


class Address(BaseModel):
    """Where to."""

    street: str
    zip_code: str | None = None


@tool(effect="read")
def look_up(ctx: ToolContext, id: int) -> str:  # noqa: A002
    """Look it up."""
    return f"row {id}"


def undoable() -> Tool:
    """A fresh tool with one argument."""

    @tool(effect="write", identity=("x",))
    async def act(ctx: ToolContext, x: str) -> None: ...

    return act


@pytest.mark.contract("D5")
def test_compensate_works_bare_and_with_arguments() -> None:
    """Both forms record the function and return it unchanged."""
    bare, told, called = undoable(), undoable(), undoable()

    async def undo(ctx: Any, call: Any) -> None: ...
    def undo_sync(ctx: Any, call: Any) -> None: ...

    assert bare.compensate(undo) is undo
    assert bare.compensation is not None
    assert (bare.compensation.fn, bare.compensation.is_async) == (undo, True)
    assert (bare.compensation.handles_unknown, bare.compensation.effect) == (False, "idempotent")
    assert told.compensate(handles_unknown=True, effect="write")(undo_sync) is undo_sync
    assert told.compensation is not None
    assert (told.compensation.handles_unknown, told.compensation.effect) == (True, "write")
    assert told.compensation.is_async is False
    assert called.compensate()(undo) is undo


@pytest.mark.contract("D5")
def test_probe_works_bare_and_with_parentheses() -> None:
    """Both forms record the function and return it unchanged."""

    def find(ctx: Any, call: Any) -> None: ...

    for made, decorated in ((one := undoable(), one.probe), (two := undoable(), two.probe())):
        assert decorated(find) is find
        assert made.probe_with is not None
        assert (made.probe_with.fn, made.probe_with.is_async) == (find, False)


@pytest.mark.parametrize("kind", ["compensate", "probe"])
def test_a_helper_must_fit(kind: str) -> None:
    """Signature (ctx, call), one per tool, none for a read."""

    def fits(ctx: Any, call: Any) -> None: ...
    def short(ctx: Any) -> None: ...
    def long(ctx: Any, call: Any, more: Any) -> None: ...
    def keyword(ctx: Any, *, call: Any) -> None: ...
    def generator(ctx: Any, call: Any) -> Any:
        yield

    for wrong in (short, long, keyword, generator, 5, look_up):
        with pytest.raises(DeclarationError, match=f"act.{kind}"):
            getattr(undoable(), kind)(wrong)
    made = undoable()
    getattr(made, kind)(fits)
    with pytest.raises(DeclarationError, match=f"two functions for {kind}"):
        getattr(made, kind)(fits)
    with pytest.raises(DeclarationError, match=f"nothing to {kind}"):
        getattr(look_up, kind)(fits)


def test_options_of_compensate_are_checked() -> None:
    """A misspelt effect is refused."""

    def undo(ctx: Any, call: Any) -> None: ...

    for options in ({"effect": "read"}, {"handles_unknown": "yes"}):
        with pytest.raises(DeclarationError, match=next(iter(options))):
            undoable().compensate(**options)(undo)  # type: ignore[call-overload]


class Login(BaseModel):
    """Something with a secret in it."""

    user: str
    password: SecretStr


def test_a_compensation_cannot_need_a_masked_value() -> None:
    """The journal keeps a mask only; refused at declaration, also when the secret is nested."""

    def undo(ctx: Any, call: Any) -> None: ...

    @tool(effect="write", identity=("user",))
    def direct(ctx: ToolContext, user: str, password: SecretStr) -> None: ...

    @tool(effect="write", identity=("user",))
    def nested(ctx: ToolContext, user: str, logins: list[Login] | None = None) -> None: ...

    for made, name in ((direct, "password"), (nested, "logins")):
        with pytest.raises(DeclarationError, match=f"secret argument {name}"):
            made.compensate(undo)
        assert made.compensation is None
        assert made.probe(undo) is undo


def test_a_name_hidden_by_setting_is_found_when_a_worker_asks() -> None:
    """MAKEGOOD_SECRET_FIELDS is known at boot only; it hides by name at any depth, in any case."""

    def undo(ctx: Any, call: Any) -> None: ...

    @tool(effect="write", identity=("user",))
    def send(ctx: ToolContext, user: str, to: Address) -> None: ...

    send.check_masking(["user"])  # no compensation: nothing to refuse
    send.compensate(undo)
    send.check_masking(["password"])
    for hidden in ("user", "ZIP_CODE", "to"):
        with pytest.raises(DeclarationError, match="secret argument"):
            send.check_masking([hidden])


def test_an_identity_cannot_be_a_secret() -> None:
    """Two secrets have the same mask, so they could not tell two calls apart."""

    def fn(ctx: Any, token: SecretStr) -> None: ...

    with pytest.raises(DeclarationError, match="identity names the secret 'token'"):
        tool(effect="write", identity=("token",))(fn)


@pytest.mark.contract("E2")
def test_a_resource_kind_is_registered() -> None:
    """The function is returned unchanged and found by its kind."""

    async def drop(ctx: Any, id: str, prior: object | None) -> None: ...  # noqa: A002

    assert resource("temp_table_of_test")(drop) is drop
    assert registered_resources()["temp_table_of_test"].fn is drop
    assert registered_resources()["temp_table_of_test"].is_async is True
    assert resource("temp_table_of_test")(drop) is drop


def test_a_resource_kind_is_unique_and_fits() -> None:
    """Built-in kinds, a second function and a wrong signature are refused."""

    def one(ctx: Any, id: str, prior: object) -> None: ...  # noqa: A002
    def two(ctx: Any, id: str, prior: object) -> None: ...  # noqa: A002
    def short(ctx: Any, id: str) -> None: ...  # noqa: A002

    for kind in ("redis_key", "path", "", "a b", 5):
        with pytest.raises(DeclarationError, match="kind"):
            resource(kind)(one)  # type: ignore[arg-type]
    resource("unique_of_test")(one)
    with pytest.raises(DeclarationError, match="declared twice"):
        resource("unique_of_test")(two)
    with pytest.raises(DeclarationError, match="must take \\(ctx, id, prior\\)"):
        resource("short_of_test")(short)

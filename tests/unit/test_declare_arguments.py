"""Arguments from a model: parsed once, refused with a sentence the model can use, recorded without secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, field_validator

from makegood.errors import ArgumentsInvalid
from makegood.tasks.masking import mask_named
from makegood.tasks.records import ALL
from makegood.tasks.schema import MAX_ARGUMENTS_BYTES
from makegood.tasks.tool import tool


class Line(BaseModel):
    """One line of an order."""

    sku: str
    tags: set[str] = set()
    price: float = 1.0


@tool(effect="write", identity=("customer",))
def order(ctx: Any, customer: str, count: int = 1, lines: list[Line] | None = None, note: Any = None) -> None:
    """Order something."""


@tool(effect="write", identity=ALL)
def log_in(ctx: Any, user: str, password: SecretStr, extra: dict[str, Any] | None = None) -> None:
    """Log in."""


@tool(effect="read")
def log_in_plainly(ctx: Any, user: str) -> None:
    """Log in."""


class Picky(BaseModel):
    """A model with validators of its own."""

    value: str

    @field_validator("value")
    @classmethod
    def no_secrets(cls, value: str) -> str:
        """Raise, in several ways."""
        if value == "bug":
            raise KeyError("oops")
        if value.startswith("long"):
            raise ValueError(value)
        return value


@tool(effect="read")
def pick(ctx: Any, what: Picky) -> None:
    """Pick."""


def sentence(raw: Any) -> str:
    """What the model is told about these arguments."""
    with pytest.raises(ArgumentsInvalid) as caught:
        order.parse(raw)
    told = str(caught.value)
    assert told.startswith("The arguments of order are not valid: ")
    assert told.endswith(".")
    assert len(told) < 1000
    assert "\n" not in told
    return told


def test_good_arguments_become_keyword_arguments() -> None:
    """Defaults are filled in, nested models are objects."""
    kwargs = order.parse('{"customer": "c", "lines": [{"sku": "x"}]}')
    assert kwargs == {"customer": "c", "count": 1, "lines": [Line(sku="x")], "note": None}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("{}", "customer: is required"),
        ('{"customer": 5}', "customer: input should be a valid string"),
        ('{"customer": "c", "count": "many"}', "count: input should be a valid integer"),
        (
            '{"customer": "c", "colour": 1}',
            "colour: is not an argument (known: customer, count, lines, note)",
        ),
        ('{"customer": "c", "lines": [{}]}', "lines.0.sku: is required"),
        ("[]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ('"text"', "must be a JSON object"),
        ("7", "must be a JSON object"),
        ("customer=c", "not valid JSON"),
        ('{"customer": "c"', "not valid JSON"),
        ('{"customer": "c"} and more', "not valid JSON"),
        ("\x00", "not valid JSON"),
        (5, "must be a JSON object"),
        (b"{}", "must be a JSON object"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence_for_the_model(raw: Any, says: str) -> None:
    """Field and problem, in one sentence."""
    assert says in sentence(raw)


def test_empty_text_means_no_arguments() -> None:
    """Some providers send nothing for a call without arguments."""

    @tool(effect="read")
    def now(ctx: Any) -> None: ...

    for raw in ("", "  \n", "{}", None):
        assert now.parse(raw) == {}
    assert "customer: is required" in sentence("")


def test_what_was_sent_is_not_echoed() -> None:
    """A megabyte of nonsense, as value, as key or as many problems, gives a short sentence."""
    noise = "x" * 900_000
    assert "xxxxx" not in sentence(json.dumps({"customer": "c", "count": noise}))
    sentence(json.dumps({"customer": "c", noise: 1}))
    sentence(json.dumps({"customer": "c", "lines": [{}] * 10_000}))
    assert "and 9996 more" in sentence(json.dumps({"customer": 5, "lines": [{}] * 10_000}))
    with pytest.raises(ArgumentsInvalid) as caught:
        pick.parse(json.dumps({"what": {"value": "long" + noise}}))
    assert len(str(caught.value)) < 400


def test_secrets_are_not_echoed() -> None:
    """A wrong secret does not reach the sentence."""
    with pytest.raises(ArgumentsInvalid) as caught:
        log_in.parse('{"user": "u", "password": {"hidden": "hunter2"}}')
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        '{"customer": "' + "x" * (50 * 1024 * 1024) + '"}',
        '{"customer": "' + "ä" * (MAX_ARGUMENTS_BYTES // 2) + '"}',
    ],
)
def test_more_than_a_mebibyte_is_refused(raw: str) -> None:
    """Counted in bytes."""
    assert "more than 1 MiB" in sentence(raw)


def test_a_mebibyte_is_accepted() -> None:
    """Exactly the limit passes."""
    frame = '{"customer": ""}'
    raw = '{"customer": "' + "x" * (MAX_ARGUMENTS_BYTES - len(frame)) + '"}'
    assert len(order.parse(raw)["customer"]) == MAX_ARGUMENTS_BYTES - len(frame)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused(opening: str) -> None:
    """No RecursionError escapes, and no C stack overflows."""
    sentence('{"customer": "c", "note": ' + opening * 100_000)
    sentence('{"customer": "c", "note": ' + "[" * 5_000 + "]" * 5_000 + "}")


@pytest.mark.parametrize(
    "raw",
    [
        '{"customer": "c", "note": NaN}',
        '{"customer": "c", "note": [-Infinity]}',
        '{"customer": "c", "note": 1e999}',
        '{"customer": "c", "lines": [{"sku": "s", "price": "inf"}]}',
        '{"customer": "c", "lines": [{"sku": "s", "price": NaN}]}',
        '{"customer": "c", "note": "\\ud800"}',
        '{"customer": "c", "note": "\ud800"}',
        '{"customer": "c", "note": ' + "1" * 5_000 + "}",
    ],
)
def test_what_json_cannot_hold_is_refused(raw: str) -> None:
    """NaN, infinities, lone surrogates and endless integers would break the journal or its digests."""
    sentence(raw)


def test_a_failing_validator_is_no_crash() -> None:
    """A bug in a validator is told to the model as refused arguments, with its cause for the log."""
    with pytest.raises(ArgumentsInvalid, match="failed with KeyError") as caught:
        pick.parse('{"what": {"value": "bug"}}')
    assert isinstance(caught.value.__cause__, KeyError)


def test_bind_checks_python_values_the_same_way() -> None:
    """What `ctx.call(tool, **kwargs)` passes: objects are accepted, mistakes get the same sentences."""
    assert order.bind({"customer": "c", "lines": [Line(sku="x")]})["lines"] == [Line(sku="x")]
    with pytest.raises(ArgumentsInvalid, match="customer: is required"):
        order.bind({})
    with pytest.raises(ArgumentsInvalid, match="colour: is not an argument"):
        order.bind({"customer": "c", "colour": 1})
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    for note in (object(), deep, float("nan"), "\ud800"):
        with pytest.raises(ArgumentsInvalid):
            order.bind({"customer": "c", "note": note})
    with pytest.raises(ArgumentsInvalid, match="no JSON"):
        log_in_plainly.bind({"user": "\ud800"})


def test_encoded_arguments_are_json_that_binds_to_the_same() -> None:
    """The journal's arguments can be sent again: bind(encode(x)) is x."""

    @tool(effect="write", identity=ALL)
    def act(ctx: Any, at: datetime, raw: bytes, names: frozenset[str], line: Line) -> None: ...

    kwargs = act.bind(
        {
            "at": datetime(2026, 1, 1, tzinfo=UTC),
            "raw": b"x",
            "names": {"b", "a", "c"},
            "line": Line(sku="s", tags={"z", "y"}),
        }
    )
    encoded = act.encode_args(kwargs)
    assert json.loads(json.dumps(encoded)) == encoded
    assert encoded["names"] == ["a", "b", "c"]
    assert encoded["line"]["tags"] == ["y", "z"]
    assert act.bind(encoded) == kwargs
    assert act.parse(json.dumps(encoded)) == kwargs


def test_sets_encode_the_same_in_every_process() -> None:
    """Hash seeds differ between workers; the digest of the same call may not."""
    code = (
        "from makegood.tasks.tool import tool\n"
        "from makegood.tasks.records import ALL\n"
        "@tool(identity=ALL)\n"
        "def act(ctx, names: set[str]) -> None: ...\n"
        "print(act.encode_args(act.bind({'names': {f'n{i}' for i in range(50)}})))\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_secrets_are_masked_where_they_are_recorded() -> None:
    """By type, and by name at any depth; the tool itself gets the real value."""
    kwargs = log_in.parse(
        '{"user": "u", "password": "hunter2", "extra": {"Api_Key": "k", "list": [{"api_key": 1}]}}'
    )
    assert kwargs["password"].get_secret_value() == "hunter2"
    assert log_in.encode_args(kwargs, ["api_key"]) == {
        "user": "u",
        "password": "**********",
        "extra": {"Api_Key": "**********", "list": [{"api_key": "**********"}]},
    }
    assert log_in.identity_of(log_in.encode_args(kwargs, ["user"]))["user"] == "**********"
    assert "hunter2" not in json.dumps(log_in.encode_args(kwargs))


class Key(BaseModel):
    """A nested secret."""

    name: str
    secret: SecretStr


@tool(effect="idempotent", identity=("user",))
def rotate(ctx: Any, user: str, keys: list[Key], at: datetime, extra: dict[str, Any] | None = None) -> None:
    """Rotate keys."""


ROTATE = (
    '{"user": "u", "keys": [{"name": "n", "secret": "hunter2"}], "at": "2026-01-01T00:00:00Z", '
    '"extra": {"pin": "1"}}'
)


def test_a_child_process_gets_the_secrets() -> None:
    """What goes through the pipe is JSON that binds to the same arguments, secrets included."""
    kwargs = rotate.parse(ROTATE)
    wire = json.loads(json.dumps(rotate.wire_args(kwargs)))
    assert rotate.bind(wire) == kwargs
    assert rotate.bind(wire)["keys"][0].secret.get_secret_value() == "hunter2"
    assert log_in.wire_args(log_in.parse('{"user": "u", "password": "p"}'))["password"] == "p"


def test_a_repeat_takes_recorded_arguments_but_no_mask() -> None:
    """A repeat sends what was recorded; where only a mask was kept, the value of the new call."""
    recorded = rotate.encode_args(rotate.parse(ROTATE), ["pin"])
    later = rotate.parse(ROTATE.replace("2026", "2027"))
    repeated = rotate.bind_recorded(recorded, later)
    assert repeated["at"].year == 2026
    assert repeated["keys"][0].secret.get_secret_value() == "hunter2"
    assert repeated["extra"] == {"pin": "1"}
    with pytest.raises(ArgumentsInvalid, match="gone: is not an argument"):
        rotate.bind_recorded({**recorded, "gone": 1}, later)


def test_masking_leaves_everything_else() -> None:
    """Without names, or without a match, the value is what it was."""
    value = {"a": [1, {"b": None}], "c": "secret"}
    assert mask_named(value, ()) == value
    assert mask_named(value, ["secret"]) == value
    assert mask_named("secret", ["secret"]) == "secret"


@pytest.mark.contract("D3")
def test_identity_arguments() -> None:
    """The named ones; all of them under ALL and for a read."""
    kwargs = order.parse('{"customer": "c", "count": 3}')
    assert order.identity_of(order.encode_args(kwargs)) == {"customer": "c"}
    assert set(log_in.identity_of(log_in.encode_args(log_in.parse('{"user": "u", "password": "p"}')))) == {
        "user",
        "password",
        "extra",
    }
    assert pick.identity_of(pick.encode_args(pick.parse('{"what": {"value": "v"}}'))) == {
        "what": {"value": "v"}
    }

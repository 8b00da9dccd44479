"""What the command line reads and writes, without a process or a server."""

from __future__ import annotations

from typing import Any

import pytest

from makegood import errors
from makegood.cli.enqueue import parse_input
from makegood.cli.exits import Exit, code_for
from makegood.cli.output import clean, one_line, print_record, print_table
from makegood.cli.runs import is_stream_id


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hello", "hello"),
        ("", ""),
        ('{"text": "hello"}', {"text": "hello"}),
        (' {"a": 1}\n', {"a": 1}),
        ("[1, 2]", "[1, 2]"),
        ("42", "42"),
        ('"quoted"', '"quoted"'),
        ("{not json}", "{not json}"),
        ('{"a": NaN}', '{"a": NaN}'),
        ("{" * 100_000, "{" * 100_000),
    ],
)
def test_an_input_is_a_json_object_when_it_parses_as_one_else_a_text(text: str, value: Any) -> None:
    """Numbers, lists and quoted texts stay what was typed; NaN is no JSON."""
    assert parse_input(text) == value


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.MakegoodError("x"), Exit.FAILED),
        (errors.UnsupportedServer("x"), Exit.FAILED),
        (errors.InvalidInput("x"), Exit.USAGE),
        (errors.PayloadTooLarge("x"), Exit.USAGE),
        (errors.SettingsError("x"), Exit.USAGE),
        (errors.DeclarationError("x"), Exit.USAGE),
        (errors.NotBuilt("x"), Exit.USAGE),
        (errors.RunNotFound("x"), Exit.NOT_FOUND),
        (errors.UnknownAgent("x"), Exit.NOT_FOUND),
        (errors.NotAllowed("x"), Exit.NOT_ALLOWED),
        (errors.KeyConflict("x"), Exit.CONFLICT),
        (errors.Conflict("x"), Exit.CONFLICT),
        (errors.StoreUnreachable("x"), Exit.UNREACHABLE),
        (errors.BrokerUnreachable("x"), Exit.UNREACHABLE),
        (errors.WaitTimeout("x"), Exit.WAITED_OUT),
        (errors.StillStopping("x"), Exit.WAITED_OUT),
    ],
)
def test_every_error_has_its_exit_code(error: errors.MakegoodError, code: Exit) -> None:
    """The table of docs/cli.md."""
    assert code_for(error) == code


def test_control_characters_never_reach_a_terminal() -> None:
    """What a model said can neither colour nor move nor clear anything; texts in any script stay as they are."""
    assert clean("red \x1b[31m bell \x07 del \x7f c1 \x9b") == r"red \x1b[31m bell \x07 del \x7f c1 \x9b"
    assert clean("Grüße, 你好, 🙂\tand\nlines") == "Grüße, 你好, 🙂\tand\nlines"


def test_a_cell_is_one_line_of_bounded_length() -> None:
    """Line breaks become spaces, objects JSON, and what is too long says that it goes on."""
    assert one_line("a\n b") == "a b"
    assert one_line({"a": [1, None]}) == '{"a": [1, null]}'
    assert one_line(None) == ""
    assert one_line("abcdef", 4) == "abc…"


def test_tables_off_a_terminal_are_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """No colours, no frame, no width to fit, no blanks at the ends of lines."""
    print_table(("NAME", "STATE"), [("a", "open"), ("b" * 200, "")], "Nothing.")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "NAME" + " " * 198 + "STATE"
    assert out[1:] == ["a" + " " * 201 + "open", "b" * 200]


def test_an_empty_table_is_a_message_not_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts that read standard output get nothing; a person is told why."""
    print_table(("NAME",), [], "There are no such runs.")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "There are no such runs.\n")


def test_a_record_is_a_field_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Longer texts keep their lines, indented; fields without a value are left out."""
    print_record({"state": "failed", "output": "one\ntwo", "error": None, "steps": 3})
    assert capsys.readouterr().out.splitlines() == [
        "state   failed",
        "output  one",
        "        two",
        "steps   3",
    ]


@pytest.mark.parametrize(("text", "valid"), [("0", True), ("17-0", True), ("17-", True), ("-", False), ("a", False), ("", False), ("1 2", False)])  # fmt: skip
def test_ids_of_events_are_checked_before_they_reach_the_store(text: str, valid: bool) -> None:
    """Milliseconds, or milliseconds-number."""
    assert is_stream_id(text) is valid

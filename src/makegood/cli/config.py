"""`makegood config`: every setting with its value, default, meaning and an example."""

from __future__ import annotations

import os
from typing import Any

import click

from makegood.cli.base import Command, State, store_options
from makegood.cli.output import clean, fail, print_json, to_json


@click.command("config", cls=Command)
@click.option("--redacted", is_flag=True, help="Accepted for clarity: passwords are never printed.")
@store_options
@click.pass_obj
def config(state: State, redacted: bool) -> int:
    """Print all settings; passwords are never shown.

    When a variable is wrong the settings are listed all the same, without values, and the exit code is 2.
    """
    from makegood.cli.exits import Exit
    from makegood.errors import SettingsError

    values: dict[str, object] | None = None
    problem = ""
    try:
        settings = state.settings()
        values = settings.redacted()
        given = settings.model_fields_set
    except SettingsError as error:
        given, problem = set(), str(error)
    listed = describe(values, given)
    if state.json:
        print_json(listed)
    else:
        for name, entry in listed.items():
            _print_setting(name, entry, known=values is not None)
    if problem:
        fail(problem)
        return Exit.USAGE
    return Exit.FINE


def describe(values: dict[str, object] | None, given: set[str]) -> dict[str, dict[str, Any]]:
    """Settings by the name of their variable; `set` says that the environment gives the value."""
    from makegood.settings import setting_docs

    return {
        doc.name: {
            "value": None if values is None else values[doc.name],
            "set": doc.field in given if values is not None else doc.name in os.environ,
            "default": doc.default,
            "kind": doc.kind,
            "description": doc.description,
            "example": doc.example,
        }
        for doc in setting_docs()
    }


def _print_setting(name: str, entry: dict[str, Any], *, known: bool) -> None:
    value = entry["value"]
    if isinstance(value, list):
        value = ",".join(map(str, value)) or None
    shown = "not set" if value is None else clean(value) if isinstance(value, str) else to_json(value)
    origin = "" if entry["set"] else " (default)"
    click.echo(f"{name} = {shown}{origin}" if known else name)
    click.echo(f"    {entry['description']}")
    click.echo(f"    {entry['kind']}; default: {entry['default']}; example: {name}={entry['example']}\n")

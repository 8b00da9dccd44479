"""What commands write: data on standard output, messages on standard error.

On a terminal tables are drawn by rich; anywhere else they are plain columns without colours and without a width to fit.
Texts of models and tools never reach a terminal with control characters in them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

STYLES = {
    "succeeded": "green", "closed": "green", "ok": "green",
    "failed": "red", "timed_out": "red", "expired": "red", "open": "red", "error": "red",
    "running": "cyan", "queued": "cyan", "parked": "cyan", "cleaning": "cyan",
    "requires_manual_review": "yellow", "stopping": "yellow", "cancelled": "yellow", "half_open": "yellow", "warn": "yellow",
}  # fmt: skip
"""Colours of words that stand alone in a cell."""


def clean(text: object) -> str:
    """The text with control characters made visible, so that nothing that a model said can steer a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in str(text))


def one_line(value: object, limit: int | None = None) -> str:
    """A value on one line: a text as it is, anything else as JSON; cut to `limit` characters."""
    text = value if isinstance(value, str) else "" if value is None else to_json(value)
    text = clean(" ".join(text.split()))
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON text; ASCII only where standard output is not UTF-8."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return json.dumps(value, ensure_ascii=encoding != "utf8", indent=indent)


def print_json(value: Any) -> None:
    """One JSON document: indented for a person at a terminal, on one line for a program."""
    click.echo(to_json(value, indent=2 if on_terminal() else None))


def print_line(value: Any) -> None:
    """One line of NDJSON, at once."""
    click.echo(to_json(value))


def say(message: str) -> None:
    """A message for a person, on standard error."""
    click.echo(clean(message), err=True)


def warn(message: str) -> None:
    """A warning, on standard error."""
    click.echo(f"{_coloured('Warning:', 'yellow')} {clean(message)}", err=True)


def fail(message: str) -> None:
    """An error, on standard error."""
    click.echo(f"{_coloured('Error:', 'red')} {clean(message)}", err=True)


def styled(text: str, **style: Any) -> str:
    """The text in a style of click, on a terminal that wants colours; else as it is."""
    return click.style(text, **style) if on_terminal() and "NO_COLOR" not in os.environ else text


def on_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout is not None and sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """A table; without rows the sentence `empty`, as a message."""
    if not rows:
        say(empty)
        return
    texts = [[one_line(cell) for cell in row] for row in rows]
    if not on_terminal():
        for line in column_lines(columns, texts):
            click.echo(line)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="" if "NO_COLOR" in os.environ else "bold")
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    for row in texts:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    Console(highlight=False, markup=False, emoji=False).print(table)


def print_record(record: Mapping[str, object]) -> None:
    """One record, a field per line; longer texts keep their lines, indented. Fields that are None are left out."""
    width = max(map(len, record), default=0)
    for name, value in record.items():
        if value is None:
            continue
        text = clean(value) if isinstance(value, str) else to_json(value)
        click.echo(f"{name.ljust(width)}  " + text.replace("\n", f"\n{' ' * width}  "))


def column_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as plain lines, each column as wide as its widest cell."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _coloured(text: str, colour: str) -> str:
    plain = "NO_COLOR" in os.environ or not sys.stderr.isatty()
    return text if plain else click.style(text, fg=colour)

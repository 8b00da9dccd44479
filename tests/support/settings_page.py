"""Renders docs/settings.md: `PYTHONPATH=tests .venv/bin/python -m support.settings_page > docs/settings.md`."""

from __future__ import annotations

import sys

from makegood.settings import setting_docs

HEAD = """# Settings

Environment variables, or files of the same names in /run/secrets. Every setting has a default; a name that begins with MAKEGOOD_ and is
not in this table is an error. `makegood config` prints the values that are in force, with passwords left out.

| variable | type | default | meaning | example |
|---|---|---|---|---|
"""


def render() -> str:
    """The page, from what the settings say of themselves."""
    rows = [
        "| "
        + " | ".join((f"`{each.name}`", each.kind, code(each.default), each.description, code(each.example)))
        + " |\n"
        for each in setting_docs()
    ]
    return HEAD + "".join(rows)


def code(text: str) -> str:
    """A value as code; a word like `none` or a sentence stays text."""
    return text if " " in text or text == "none" else f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(render())

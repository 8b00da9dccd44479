"""The tables of events and metrics are what the code emits, and docs/telemetry.md is what the tables say."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from makegood.monitoring import genai
from makegood.monitoring.metrics import METRICS
from makegood.monitoring.telemetry import COMMAND, render
from makegood.tasks.event_types import EVENTS
from support.emitted import emitted_by_lua, emitted_by_marks, emitted_by_python

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "makegood"

DATA = {event.type: set(event.data) for event in EVENTS}


@functools.cache
def emitted() -> dict[str, set[str]]:
    """Type of event → every key that some line of the source puts into its data."""
    found: dict[str, set[str]] = {}
    store = SOURCE / "store"
    for part in (emitted_by_python(SOURCE), emitted_by_lua(store / "lua"), emitted_by_marks(store / "ops")):
        for kind, names in part.items():
            found.setdefault(kind, set()).update(names)
    return found


def test_the_page_of_telemetry_is_up_to_date() -> None:
    """Write it anew with the command that its head names."""
    assert (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8") == render(), COMMAND


def test_every_event_in_the_source_is_in_the_table_and_the_other_way_round() -> None:
    """None is missing, and none is promised that nobody emits."""
    assert sorted(emitted()) == sorted(DATA)
    assert len(EVENTS) == len(DATA)


@pytest.mark.parametrize("kind", sorted(DATA))
def test_the_table_names_the_data_that_the_source_writes(kind: str) -> None:
    """Key by key."""
    assert emitted()[kind] == DATA[kind]


def test_every_event_says_when_it_is_written_and_what_each_of_its_fields_means() -> None:
    """In sentences that a table can hold."""
    for event in EVENTS:
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", event.type)
        assert event.when.endswith("."), event.type
        for text in (event.when, *event.data.values()):
            assert text
            assert "|" not in text
            assert "\n" not in text


def test_the_page_names_every_event_metric_and_span() -> None:
    """Each in code."""
    page = render()
    named = {event.type for event in EVENTS} | {metric.full_name for metric in METRICS}
    named |= {
        genai.INVOKE_AGENT,
        genai.EXECUTE_TOOL,
        genai.CHAT,
        *genai.FACTS.values(),
        *genai.PAYLOADS.values(),
    }
    for name in named:
        assert f"`{name}`" in page, name


def test_what_is_emitted_is_found_however_the_source_says_it(tmp_path: Path) -> None:
    """A dict in the call or before it, parts of dicts, a type that depends, a key that is added later."""
    (tmp_path / "emits.py").write_text(
        "def one():\n"
        "    data = {'a': 1}\n"
        "    data['b'] = 2\n"
        "    told = {**data, 'c': 3}\n"
        "    kind = 'x.y' if data else 'x.z'\n"
        "    return NewEvent(kind, told), NewEvent('x.empty', {}), NewEvent('x.bare')\n"
        "def two():\n"
        "    data = {'d': 1}\n"
        "    NewEvent('x.y', data)\n"
        "    data = {'e': 1}\n"
        "    return NewEvent('x.w', {**data})\n"
    )
    assert emitted_by_python(tmp_path) == {
        "x.y": {"a", "b", "c", "d"},
        "x.z": {"a", "b", "c"},
        "x.w": {"e"},
        "x.empty": set(),
        "x.bare": set(),
    }

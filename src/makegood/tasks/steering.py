"""Limits and verdicts as operators ask for them: checked, then flows (CONTRACT A7, A8)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from makegood.errors import InvalidInput, UnknownAgent
from makegood.store.ops import catalog, limits
from makegood.store.ops.reads import iso
from makegood.tasks.flows import Flow
from makegood.tasks.policies import LARGEST_SECONDS, SMALLEST_LIMIT_S
from makegood.tasks.queries import check_run_id
from makegood.tasks.rules.limits import LIMIT_LEVELS, VERDICTS, field_of

SHOWN = 20
"""Known names that a refusal lists at the most."""


def list_timeouts() -> Flow[list[dict[str, Any]]]:
    """The limits that are set by hand: level, name, limit_s."""
    (found,) = yield [limits.read_limits()]
    split = [(*field.partition("|")[::2], seconds) for field, seconds in sorted(found.items())]
    return [{"level": level, "name": name, "limit_s": seconds} for level, name, seconds in split]


def list_timeout_changes() -> Flow[list[dict[str, Any]]]:
    """Who set which limit, from what to what, when and why, oldest first."""
    (found,) = yield [limits.read_limit_changes()]
    return [limits.change_dict(each) for each in found]


def set_timeout(level: Any, name: Any, seconds: Any, actor: str, reason: str) -> Flow[dict[str, Any]]:
    """Set a limit, or take back what was set (None): level, name, from_s, to_s, of which None is what was declared.

    Raises InvalidInput, UnknownAgent (no worker publishes the tool or agent).
    """
    known_level = _one_of("level", level, LIMIT_LEVELS)
    if not isinstance(name, str) or not name:
        raise InvalidInput("name must be the name of a tool (level call) or of an agent (level step or run).")
    limit_s = None if seconds is None else _checked_s(seconds)
    (published,) = yield [catalog.read_catalog()]
    if limit_s is not None:  # what was set for something that is gone can still be taken back
        check_known(known_level, name, published)
    (before,) = yield [limits.set_limit(field_of(known_level, name), limit_s, actor, reason)]
    return {"level": known_level, "name": name, "from_s": before, "to_s": limit_s}


def judge_timeout(run_id: Any, verdict: Any, actor: str, reason: str) -> Flow[dict[str, Any]]:
    """Say whether a run that timed out had in fact finished: run_id, verdict, by, at.

    Raises RunNotFound, InvalidInput, Conflict.
    """
    check_run_id(run_id)
    known = _one_of("verdict", verdict, VERDICTS)
    (judged,) = yield [limits.judge_timeout(run_id=run_id, verdict=known, actor=actor, reason=reason)]
    return {"run_id": run_id, "verdict": judged.verdict, "by": judged.by, "at": iso(judged.at_ms)}


def check_known(level: str, name: str, published: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a tool or agent that no worker publishes; while none ever published, everything passes. Raises UnknownAgent."""
    if not published:
        return
    what, known = ("tool", tools_in(published)) if level == "call" else ("agent", set(published))
    if name not in known:
        raise unknown(what, name, known)


def tools_in(published: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Names of all tools that workers publish."""
    return {str(tool["name"]) for agent in published.values() for tool in agent.get("tools", ())}


def unknown(what: str, name: str, known: Iterable[str]) -> UnknownAgent:
    """The error about a name that nobody publishes, with the names that come near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3)
    hint = (
        f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(names[:SHOWN]) or 'none'}."
    )
    return UnknownAgent(f"No worker publishes {what} {name[:80]!r}; {hint}")


def _one_of(field: str, given: Any, allowed: tuple[Any, ...]) -> Any:
    if given not in allowed:
        raise InvalidInput(f"{field} must be one of {', '.join(allowed)}, not {str(given)[:60]!r}.")
    return given


def _checked_s(seconds: Any) -> float:
    number = not isinstance(seconds, bool) and isinstance(seconds, int | float)
    if not number or not SMALLEST_LIMIT_S <= seconds <= LARGEST_SECONDS:
        raise InvalidInput(
            f"A limit is a number of seconds from {SMALLEST_LIMIT_S:g} to {LARGEST_SECONDS:g}, or None for what was "
            f"declared; not {str(seconds)[:60]!r}."
        )
    return float(seconds)

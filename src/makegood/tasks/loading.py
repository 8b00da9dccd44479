"""MAKEGOOD_AGENTS: from `module[:name],…` to the agents a worker serves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from makegood.errors import SettingsError
from makegood.tasks.agent import Agent


def load_agents(spec: str) -> dict[str, Agent]:
    """The agents named by `spec`, by name: all of a module, or those of one name in it.

    `module:name` may be an agent or a list, tuple, set or dict of agents. The working directory is importable.

    Raises:
        SettingsError: one sentence: nothing named, module missing or failing, no agent in it, or two different
            agents of one name.
    """
    entries = [each.strip() for each in spec.split(",") if each.strip()]
    if not entries:
        raise SettingsError(
            "MAKEGOOD_AGENTS names no module; set it to module[:name], as shop.agents:support."
        )
    _make_working_directory_importable()
    agents: dict[str, Agent] = {}
    for entry in entries:
        for found in _agents_of(entry):
            if agents.setdefault(found.name, found) is not found:
                raise SettingsError(
                    f"MAKEGOOD_AGENTS: two different agents are named {found.name!r}, one of them in {entry}; rename one."
                )
    return agents


def _agents_of(entry: str) -> list[Agent]:
    module_name, colon, name = (part.strip() for part in entry.partition(":"))
    if not module_name or (colon and not name):
        raise SettingsError(f"MAKEGOOD_AGENTS: {entry!r} is not of the form module[:name].")
    module = _imported(module_name)
    if not name:
        found = [each for each in vars(module).values() if isinstance(each, Agent)]
        if not found:
            raise SettingsError(
                f"MAKEGOOD_AGENTS: module {module_name} has no Agent at its top level; name what holds it, as "
                f"{module_name}:agents."
            )
        return found
    if not hasattr(module, name):
        raise SettingsError(f"MAKEGOOD_AGENTS: module {module_name} has no {name!r}; correct the name.")
    return _agents_in(entry, getattr(module, name))


def _agents_in(entry: str, value: Any) -> list[Agent]:
    if isinstance(value, Agent):
        return [value]
    members = value.values() if isinstance(value, Mapping) else value
    if isinstance(members, Iterable) and not isinstance(members, str | bytes):
        listed = list(members)
        if listed and all(isinstance(each, Agent) for each in listed):
            return listed
    raise SettingsError(
        f"MAKEGOOD_AGENTS: {entry} is neither an Agent nor a list of them, but {type(value).__name__}."
    )


def _imported(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise SettingsError(
                f"MAKEGOOD_AGENTS: there is no module {module_name}; correct the name, or start in the directory "
                f"that holds it (this one is {Path.cwd()})."
            ) from error
        raise SettingsError(f"MAKEGOOD_AGENTS: importing {module_name} failed: {error}.") from error
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise SettingsError(
            f"MAKEGOOD_AGENTS: importing {module_name} failed: {type(error).__name__}: {reason[0] if reason else ''}"
        ) from error


def _make_working_directory_importable() -> None:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)

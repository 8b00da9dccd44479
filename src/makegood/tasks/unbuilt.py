"""What is declared for clean-up is accepted but not acted upon yet; a worker says so when it starts."""

from __future__ import annotations

from collections.abc import Iterable

from makegood.tasks.agent import Agent
from makegood.tasks.resources import registered_resources

_RESULT = "is accepted, but clean-up is not built yet: nothing is undone, probed or settled"


def unbuilt_warnings(agent: Agent) -> list[str]:
    """At most one sentence for an agent: what of its declaration will only be acted upon by clean-up."""
    tools = [tool for tool in agent.tools.values() if tool.effect != "read"]
    users = {
        'on_failure="rollback"': [tool.name for tool in tools if agent.tool_on_failure(tool) == "rollback"],
        "compensate": [tool.name for tool in tools if tool.compensation is not None],
        "probe": [tool.name for tool in tools if tool.probe_with is not None],
        "settle_after": [tool.name for tool in tools if tool.settle_after is not None],
    }
    found = "; ".join(f"{what} of {', '.join(names)}" for what, names in users.items() if names)
    return [f"Agent {agent.name!r}: {found} {_RESULT}; see the README."] if found else []


def startup_warnings(agents: Iterable[Agent]) -> list[str]:
    """The sentences a worker logs once when it starts: one per agent, and one for the kinds of `@resource`."""
    kinds = ", ".join(sorted(registered_resources()))
    said = [f"@resource of {kinds} {_RESULT}; see the README."] if kinds else []
    return [sentence for agent in agents for sentence in unbuilt_warnings(agent)] + said

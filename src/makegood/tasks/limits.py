"""The limits that hold in one worker: read once a second, so that one set by hand needs no restart (CONTRACT A7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from makegood.store.async_store import AsyncStore
from makegood.store.ops.limits import read_limits
from makegood.tasks.agent import Agent
from makegood.tasks.rules.limits import set_or_declared_s, settle_after_s
from makegood.tasks.tool import Tool


@dataclass(slots=True)
class LimitBoard:
    """What operators have set, over what was declared; without a store that answers, the last that was heard."""

    store: AsyncStore
    set_by_hand: dict[str, float] = field(default_factory=dict)

    async def refresh(self) -> None:
        """Read what is set."""
        self.set_by_hand = await self.store.do(read_limits())

    def call_s(self, agent: Agent, tool: Tool[Any, Any]) -> float:
        """L1 of one try of this tool, in seconds."""
        return set_or_declared_s(self.set_by_hand, "call", tool.name, agent.tool_timeout_s(tool))

    def settle_after_s(self, agent: Agent, tool: Tool[Any, Any]) -> float:
        """Seconds after which an unknown call of this tool may be settled (invariant 4)."""
        return settle_after_s(tool.settle_after, agent.tool_timeout_s(tool), self.call_s(agent, tool))

    def step_s(self, agent: Agent) -> float:
        """L2 in seconds."""
        return set_or_declared_s(self.set_by_hand, "step", agent.name, agent.timeouts.step)

    def run_s(self, agent: Agent) -> float:
        """L3 in seconds."""
        return set_or_declared_s(self.set_by_hand, "run", agent.name, agent.timeouts.run)

    def total_s(self, agent: Agent) -> float:
        """Wall clock of a run from its first claim; it grows and shrinks with L3 unless it was declared itself."""
        return agent.total_s(self.run_s(agent))

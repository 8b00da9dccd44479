"""What a declaration gives cleanup to work with, as its rules want it."""

from __future__ import annotations

from dataclasses import replace

from makegood.tasks.agent import Agent
from makegood.tasks.limits import LimitBoard
from makegood.tasks.masking import holds_mask
from makegood.tasks.rules.cleaning import UNDECLARED, Means, MeansOf
from makegood.tasks.rules.rows import Row
from makegood.tasks.tool import Tool


def means_of(agent: Agent, limits: LimitBoard, *, repeats: bool = True) -> MeansOf:
    """For a row what its tool offers: policy, probe, compensation, times, and whether the call can be sent again.

    `repeats` False spares the look at the recorded arguments: nothing is going to be sent again.
    """

    def means(row: Row) -> Means:
        tool = agent.tools.get(row.tool)
        if tool is None:  # it has left the agent, whose own policy then says whether its effects may stay
            return replace(UNDECLARED, policy=agent.on_failure)
        return _means(agent, limits, tool, row, repeats)

    return means


def _means(agent: Agent, limits: LimitBoard, tool: Tool, row: Row, repeats: bool) -> Means:
    undo = tool.compensation
    return Means(
        policy=agent.tool_on_failure(tool),
        probes=tool.probe_with is not None,
        compensates=undo is not None,
        handles_unknown=undo is not None and undo.handles_unknown,
        undo_repeatable=undo is None or undo.effect == "idempotent",
        settle_after_s=limits.settle_after_s(agent, tool),
        key_ttl_s=float("inf") if tool.key_ttl is None else tool.key_ttl,
        repeatable=repeats and _is_repeatable(tool, row),
    )


def _is_repeatable(tool: Tool, row: Row) -> bool:
    """Whether the recorded arguments are whole and the tool still takes them."""
    if any(holds_mask(value) for value in row.args.values()):
        return False
    try:
        tool.bind_recorded(row.args, {})
    except Exception:  # a validator of the user's may raise anything
        return False
    return True

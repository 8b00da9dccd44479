"""What cleanup undoes and rolls back, in which order, and what a person is asked about."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from makegood.tasks.rules.callkeys import call_key_of
from makegood.tasks.rules.cleaning import (
    Means,
    Policy,
    Resource,
    Undo,
    Undoing,
    has_to_undo,
    plan_rollback,
    plan_undo,
)
from makegood.tasks.rules.rows import Effect, Row, Status
from makegood.tasks.rules.rows import Undo as UndoStatus

EFFECTS: list[Effect] = ["idempotent", "write", "irreversible"]
ENDED: list[Status] = ["planned", "failed", "aborted_before_dispatch"]


def row(
    tool: str = "hotel",
    *,
    status: Status = "succeeded",
    effect: Effect = "write",
    step: int = 1,
    attempt: int = 1,
    index: int = 0,
    generation: int = 1,
    undo: UndoStatus | None = None,
) -> Row:
    return Row(
        call_key=call_key_of(tool, "ann", 1),
        tool=tool,
        attempt=attempt,
        step=step,
        index=index,
        status=status,
        effect=effect,
        identity_digest="ann",
        request_digest="ann",
        args={},
        generation=generation,
        undo=undo,
    )


def plan(
    *rows: Row, means: Means | dict[str, Means], undoing: Undoing = "policy", final: bool = True
) -> list[Undo]:
    def means_of(each: Row) -> Means:
        return means if isinstance(means, Means) else means[each.tool]

    return plan_undo(rows, means_of, undoing, final=final)


def kinds(plans: Sequence[Undo]) -> list[tuple[str, str]]:
    return [(each.row.tool, each.kind) for each in plans]


UNDOES = Means(policy="rollback", compensates=True)


# --- undoing ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E3")
def test_compensations_run_newest_first() -> None:
    """By attempt, step and place in the step, whatever order the journal has."""
    rows = [row("c", step=2), row("a"), row("d", step=2, index=1), row("e", attempt=2), row("b", index=1)]
    assert kinds(plan(*rows, means=UNDOES)) == [(name, "undo") for name in "edcba"]


@pytest.mark.contract("E3", "E9")
@pytest.mark.parametrize("status", ENDED)
def test_what_has_no_effect_is_not_undone(status: Status) -> None:
    """Nothing happened, it was a read, it was undone already, or a person has accepted it as it stands."""
    rows = [
        row("a", status=status),
        row("b", effect="read"),
        row("c", undo="succeeded"),
        row("d", undo="kept"),
        row("e", status="unknown", undo="kept"),
        row("f", effect="read", status="unknown"),
    ]
    assert plan(*rows, means=UNDOES) == []


@pytest.mark.contract("E9")
@pytest.mark.parametrize("undo", [None, "started", "failed", "unknown"])
def test_what_was_not_undone_yet_is_tried_again(undo: UndoStatus | None) -> None:
    """Until its success is recorded."""
    assert kinds(plan(row(undo=undo), means=UNDOES)) == [("hotel", "undo")]


@pytest.mark.contract("E9")
def test_only_the_newest_generation_is_undone() -> None:
    """The generation before it was undone."""
    first, second = row(undo="succeeded"), row(generation=2)
    (only,) = plan(second, first, means=UNDOES)
    assert only == Undo(second, "undo")


@pytest.mark.contract("E4", "E3")
@pytest.mark.parametrize(
    ("policy", "undoing", "compensates", "expected"),
    [
        ("rollback", "policy", True, "undo"),
        ("rollback", "all", True, "undo"),
        ("rollback", "none", True, "leave"),
        ("keep", "policy", True, "leave"),
        ("keep", "all", True, "undo"),
        ("keep", "none", True, "leave"),
        ("keep", "policy", False, "leave"),
        ("keep", "all", False, "leave"),
        ("keep", "none", False, "leave"),
        ("rollback", "policy", False, "ask"),
        ("rollback", "all", False, "ask"),
        ("rollback", "none", False, "leave"),
    ],
)
@pytest.mark.parametrize("effect", EFFECTS)
def test_the_policy_says_what_is_undone(
    policy: Policy, undoing: Undoing, compensates: bool, expected: str, effect: Effect
) -> None:
    """Keep keeps, unless an operator wants everything undone; rollback leaves nothing, and asks where it cannot."""
    (only,) = plan(row(effect=effect), means=Means(policy=policy, compensates=compensates), undoing=undoing)
    assert only.kind == expected
    why = "irreversible" if effect == "irreversible" else "no_compensation"
    assert only.why == (why if expected == "ask" else "")


@pytest.mark.contract("E4")
def test_the_policy_of_each_tool_counts_for_its_own_calls() -> None:
    """A tool may keep what the agent rolls back, and the other way round."""
    means = {"hotel": UNDOES, "mail": Means(policy="keep", compensates=True)}
    assert kinds(plan(row(), row("mail", step=2), means=means)) == [("mail", "leave"), ("hotel", "undo")]


@pytest.mark.contract("E10")
def test_an_irreversible_call_is_a_persons_when_the_run_ends() -> None:
    """Under rollback it is never silently committed; before another attempt it stays, and is replayed there."""
    call, means = row(effect="irreversible"), Means(policy="rollback")
    assert plan(call, means=means) == [Undo(call, "ask", "irreversible")]
    assert plan(call, means=means, final=False) == [Undo(call, "leave")]
    write = row(effect="write")
    assert plan(write, means=means, final=False) == [Undo(write, "ask", "no_compensation")]


@pytest.mark.contract("E3", "E9")
@pytest.mark.parametrize("undoing", ["none", "policy", "all"])
@pytest.mark.parametrize("policy", ["keep", "rollback"])
@pytest.mark.parametrize("status", ["started", "unknown"])
@pytest.mark.parametrize(
    ("compensates", "handles_unknown", "expected"),
    [(True, True, "undo"), (True, False, "ask"), (False, True, "ask"), (False, False, "ask")],
)
def test_an_unknown_effect_is_undone_only_by_what_handles_that(
    undoing: Undoing, policy: Policy, status: Status, compensates: bool, handles_unknown: bool, expected: str
) -> None:
    """Whatever the policy: a doubt never stays."""
    call = row(status=status)
    means = Means(policy=policy, compensates=compensates, handles_unknown=handles_unknown)
    why = "unknown" if expected == "ask" else ""
    (only,) = plan(call, means=means, undoing=undoing)
    assert (only.row, only.kind, only.why) == (call, expected, why)


@pytest.mark.contract("E4", "E10")
@pytest.mark.parametrize(
    ("rows", "means", "final", "expected"),
    [
        ([], UNDOES, True, False),
        ([row()], UNDOES, True, True),
        ([row()], Means(policy="keep", compensates=True), True, False),
        ([row(effect="irreversible")], Means(policy="rollback"), True, True),
        ([row(effect="irreversible")], Means(policy="rollback"), False, False),
        ([row(undo="succeeded")], UNDOES, True, False),
        ([row("car", effect="irreversible"), row(step=2)], Means(policy="rollback"), False, True),
    ],
)
def test_a_run_is_cleaned_up_only_when_something_has_to_be_undone(
    rows: list[Row], means: Means, final: bool, expected: bool
) -> None:
    """What the policy leaves alone needs no cleanup."""
    assert has_to_undo(rows, lambda each: means, "policy", final=final) is expected
    assert not has_to_undo(rows, lambda each: means, "none", final=final)


# --- rolling back -----------------------------------------------------------------------------------------------------


def resource(key: str, *, seq: int, tool: str = "hotel", generation: int = 1, done: bool = False) -> Resource:
    call_key = call_key_of(tool, "ann", 1) if tool else ""
    return Resource(key, "path", f"/{key}", seq, call_key, generation, done)


def rollback(
    *resources: Resource,
    rows: Sequence[Row],
    tool: Policy = "keep",
    agent: Policy = "keep",
    undoing: Undoing = "policy",
) -> list[str]:
    means = Means(policy=tool)
    return [each.key for each in plan_rollback(resources, rows, lambda _: means, agent, undoing)]


@pytest.mark.contract("E2", "E3")
def test_resources_are_rolled_back_newest_first() -> None:
    """The later one may stand on the earlier one; what is done is not done again."""
    made = [resource("b", seq=2), resource("a", seq=1), resource("x", seq=4, done=True), resource("c", seq=3)]
    assert rollback(*made, rows=[row()], tool="rollback") == ["c", "b", "a"]


@pytest.mark.contract("E4", "E2")
@pytest.mark.parametrize(
    ("status", "tool", "undoing", "goes"),
    [
        ("succeeded", "keep", "policy", False),
        ("succeeded", "rollback", "policy", True),
        ("succeeded", "keep", "all", True),
        ("succeeded", "rollback", "none", False),
        ("failed", "keep", "policy", True),
        ("failed", "keep", "all", True),
        ("failed", "keep", "none", False),
        ("started", "keep", "policy", True),
        ("unknown", "keep", "policy", True),
        ("aborted_before_dispatch", "keep", "policy", True),
    ],
)
def test_what_a_call_declared_goes_unless_the_call_succeeded_and_its_tool_keeps(
    status: Status, tool: Policy, undoing: Undoing, goes: bool
) -> None:
    """Nobody finished what the resources of another call are part of; the agent's policy does not count."""
    made = resource("a", seq=1)
    for agent in ("keep", "rollback"):
        assert (
            rollback(made, rows=[row(status=status)], tool=tool, agent=agent, undoing=undoing) == ["a"] * goes
        )


@pytest.mark.contract("E4", "E2")
@pytest.mark.parametrize(
    ("agent", "undoing", "goes"),
    [
        ("keep", "policy", False),
        ("rollback", "policy", True),
        ("keep", "all", True),
        ("rollback", "none", False),
    ],
)
def test_what_a_run_declared_before_its_first_step_follows_the_agent(
    agent: Policy, undoing: Undoing, goes: bool
) -> None:
    """Also what a call declared that the journal does not hold: under that name or in that generation."""
    orphans = [
        resource("a", seq=1, tool=""),
        resource("b", seq=2, tool="car"),
        resource("c", seq=3, generation=2),
    ]
    expected = ["c", "b", "a"] if goes else []
    assert rollback(*orphans, rows=[row()], agent=agent, undoing=undoing) == expected

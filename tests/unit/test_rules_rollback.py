"""Rolling back never destroys what a later call has finished on the same thing (CONTRACT E2, E4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from makegood.tasks.rules.cleaning import Means, Policy, Resource, Undoing, plan_rollback
from makegood.tasks.rules.rows import Row, Status
from makegood.tasks.rules.rows import Undo as UndoStatus

FILE = "/srv/report.csv"


def call(tool: str, status: Status, *, generation: int = 1, undo: UndoStatus | None = None) -> Row:
    return Row(
        call_key=tool,
        tool=tool,
        attempt=1,
        step=1,
        index=0,
        status=status,
        effect="idempotent",
        identity_digest="",
        request_digest="",
        args={},
        generation=generation,
        undo=undo,
    )


def declared(
    seq: int,
    by: str,
    *,
    generation: int = 1,
    kind: str = "path",
    id: str = FILE,  # noqa: A002
    done: bool = False,
) -> Resource:
    """By "": the snapshot of an attempt."""
    return Resource(f"{seq}", kind, id, seq, by or "snapshot", generation if by else 0, done)


def rolled_back(
    *resources: Resource,
    rows: Sequence[Row],
    keeps: Mapping[str, Policy],
    agent: Policy = "keep",
    undoing: Undoing = "policy",
) -> list[int]:
    def means(row: Row) -> Means:
        return Means(policy=keeps.get(row.tool, agent))

    return [each.seq for each in plan_rollback(resources, rows, means, agent, undoing)]


@pytest.mark.contract("E2", "E4")
@pytest.mark.parametrize("first", ["failed", "unknown", "aborted_before_dispatch"])
def test_the_finished_work_of_a_later_call_stays_under_keep(first: Status) -> None:
    """The first try declared the file and failed, the second wrote it: the first prior state does not come back."""
    rows = [call("one", first), call("two", "succeeded")]
    both = [declared(1, "one"), declared(2, "two")]
    assert rolled_back(*both, rows=rows, keeps={}) == []
    assert rolled_back(*reversed(both), rows=rows, keeps={}) == []
    assert rolled_back(*both, rows=rows, keeps={}, undoing="all") == [2, 1]
    assert rolled_back(*both, rows=rows, keeps={}, agent="rollback") == [2, 1]


@pytest.mark.contract("E2", "E4")
@pytest.mark.parametrize(
    ("older", "agent", "tool"),
    [("", "rollback", "rollback"), ("one", "keep", "rollback"), ("one", "rollback", "rollback")],
)
def test_what_a_tool_keeps_stays_whoever_declared_it_before(older: str, agent: Policy, tool: Policy) -> None:
    """The snapshot of an agent that rolls back, or a tool that does, under a tool of its own policy."""
    rows = [call("one", "succeeded"), call("two", "succeeded")]
    keeps: dict[str, Policy] = {"one": tool, "two": "keep"}
    both = [declared(1, older), declared(2, "two")]
    assert rolled_back(*both, rows=rows, keeps=keeps, agent=agent) == []
    assert rolled_back(*both, rows=rows, keeps={**keeps, "two": "rollback"}, agent=agent) == [2, 1]


@pytest.mark.contract("E2")
@pytest.mark.parametrize(
    ("resources", "rows", "expected"),
    [
        # Another thing, of another kind or id, is not protected.
        ([declared(1, "one"), declared(2, "two", id="/srv/other")], ["failed", "succeeded"], [1]),
        ([declared(1, "one"), declared(2, "two", kind="table")], ["failed", "succeeded"], [1]),
        # The finished call came first: what is newer goes, to the state in which that call left it.
        ([declared(1, "one"), declared(2, "two")], ["succeeded", "failed"], [2]),
        # Neither has finished.
        ([declared(1, "one"), declared(2, "two")], ["failed", "failed"], [2, 1]),
        # Finished in between: only what came later goes.
        ([declared(1, "two"), declared(2, "one"), declared(3, "two")], ["succeeded", "failed"], [3]),
        # A later one of two is enough.
        ([declared(1, "one"), declared(2, "two"), declared(3, "two")], ["failed", "succeeded"], []),
        ([declared(1, "one"), declared(3, "two"), declared(2, "two")], ["failed", "succeeded"], []),
        ([declared(2, "one"), declared(3, "two"), declared(1, "two")], ["failed", "succeeded"], []),
        # What was rolled back since protects nothing.
        ([declared(1, "one"), declared(2, "two", done=True)], ["failed", "succeeded"], [1]),
        # Nor does what an attempt only announced.
        ([declared(1, "one"), declared(2, "")], ["failed", "succeeded"], [1]),
        # Nor a generation that is not the one that succeeded.
        ([declared(1, "one"), declared(2, "two", generation=2)], ["failed", "succeeded"], [1]),
    ],
)
def test_only_a_newer_declaration_of_the_same_thing_protects(
    resources: list[Resource], rows: list[Status], expected: list[int]
) -> None:
    """By kind and id, of a call that succeeded and stays."""
    known = [call("one", rows[0]), call("two", rows[1])]
    assert rolled_back(*resources, rows=known, keeps={}) == expected


@pytest.mark.contract("E2", "E11")
@pytest.mark.parametrize("undoing", ["policy", "all"])
def test_what_a_person_has_accepted_stays(undoing: Undoing) -> None:
    """With its resources, and with what they stand on; what only could not be undone is still to be rolled back."""
    both = [declared(1, "one"), declared(2, "two")]
    for undo, expected in (("kept", []), ("failed", [2, 1]), ("succeeded", [2, 1])):
        rows = [call("one", "failed"), call("two", "succeeded", undo=undo)]  # type: ignore[arg-type]
        assert rolled_back(*both, rows=rows, keeps={}, agent="rollback", undoing=undoing) == expected

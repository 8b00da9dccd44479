"""A call of the same attempt that is still under way is not in doubt: another one like it is meant (J29)."""

from __future__ import annotations

import pytest

from makegood.tasks.rules.callkeys import call_key_of
from makegood.tasks.rules.matching import Call, Fresh, RepeatUnknown, match_step
from makegood.tasks.rules.rows import Row, Status

BOOK = Call("book", "ann", "ann", "idempotent")


def row(status: Status, attempt: int) -> Row:
    """An earlier call of the same tool with the same arguments."""
    return Row(call_key_of("book", "ann", 1), "book", attempt, 1, 0, status, "idempotent", "ann", "ann", {})


def test_a_call_beside_one_that_is_under_way_is_a_call_of_its_own() -> None:
    """A continued attempt sees its own `started` row from the journal, claimed by it or not."""
    for claimed in (frozenset[str](), frozenset({row("started", 1).call_key})):
        (match,) = match_step([BOOK], [row("started", 1)], claimed, frozenset(), attempt=1).decisions
        assert match == Fresh(2)


@pytest.mark.parametrize(("status", "attempt"), [("unknown", 2), ("unknown", 1), ("started", 1)])
def test_a_call_whose_outcome_is_open_is_repeated(status: Status, attempt: int) -> None:
    """What nobody knows the outcome of is never made under a second key: `unknown`, or `started` by an earlier attempt."""
    earlier = row(status, attempt)
    (match,) = match_step([BOOK], [earlier], frozenset({earlier.call_key}), frozenset(), attempt=2).decisions
    assert match == RepeatUnknown(earlier, same_args=True)

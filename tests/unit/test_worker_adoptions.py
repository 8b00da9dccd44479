"""Which runs a process takes up that the store says it holds, and how often."""

from __future__ import annotations

from makegood.workers.adoptions import MAX_ADOPTIONS, REMEMBERED, Adoptions


def test_a_run_is_taken_up_when_two_heartbeats_in_a_row_have_found_it() -> None:
    """The first one may have looked while a claim was on its way; while one is, nothing is taken up."""
    adoptions = Adoptions()
    assert adoptions.due({"a"}, claiming=False) == set()
    assert adoptions.due({"a", "b"}, claiming=False) == {"a"}
    assert adoptions.due({"a", "b"}, claiming=True) == set()
    assert adoptions.due({"b"}, claiming=False) == {"b"}
    assert adoptions.due(set(), claiming=False) == set()
    assert adoptions.due({"b"}, claiming=False) == set()


def test_a_run_that_is_being_taken_up_is_not_taken_up_again() -> None:
    """Until that is over."""
    adoptions = Adoptions()
    adoptions.due({"a"}, claiming=False)
    assert adoptions.due({"a"}, claiming=False) == {"a"}
    assert adoptions.due({"a"}, claiming=False) == set()
    adoptions.over("a")
    assert adoptions.due({"a"}, claiming=False) == {"a"}


def test_claims_are_counted_and_a_new_one_counts_anew() -> None:
    """The bound is of one claim: a run that comes back under another fence is another matter."""
    adoptions = Adoptions()
    assert [adoptions.count("a", "1:x") for _ in range(MAX_ADOPTIONS + 1)] == [1, 2, 3, 4]
    assert adoptions.count("b", "1:x") == 1
    assert adoptions.count("a", "2:y") == 1
    assert adoptions.count("a", "2:y") == 2


def test_the_numbers_do_not_grow_without_bound() -> None:
    """The oldest are forgotten."""
    adoptions = Adoptions()
    for number in range(REMEMBERED + 10):
        adoptions.count(f"run-{number}", "1:x")
    assert adoptions.count(f"run-{REMEMBERED}", "1:x") == 2
    assert adoptions.count("run-0", "1:x") == 1

"""Policies: their defaults, and the values they refuse with one sentence."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from makegood.errors import DeclarationError, NotBuilt
from makegood.tasks.policies import BreakerPolicy, Budgets, RetryPolicy, Timeouts, check_on_failure

TIMEOUT_FIELDS = (
    "call",
    "step",
    "run",
    "total",
    "model",
    "first_token",
    "idle",
    "connect",
    "cleanup",
    "compensation",
)
ALL_FIELDS: list[tuple[Any, str]] = [
    *((Timeouts, name) for name in TIMEOUT_FIELDS),
    *((RetryPolicy, name) for name in ("retries", "backoff", "max_backoff", "jitter", "assumed_cost")),
    *((BreakerPolicy, name) for name in ("failures", "window", "open_for")),
    *(
        (Budgets, name)
        for name in (
            "run_tokens",
            "session_tokens",
            "tool_seconds",
            "steps",
            "subagents",
            "subagent_steps",
            "depth",
            "cost",
            "session_cost",
        )
    ),
]


@pytest.mark.contract("A1")
def test_defaults_are_those_of_the_interface() -> None:
    """Every default is the documented number."""
    assert [getattr(Timeouts(), each) for each in TIMEOUT_FIELDS] == [
        10,
        60,
        300,
        None,
        60,
        15,
        20,
        5,
        60,
        10,
    ]
    retry = RetryPolicy()
    assert (retry.retries, retry.backoff, retry.max_backoff) == (5, 0.5, 10)
    assert (retry.jitter, retry.assumed_cost) == (0.1, 10)
    breaker = BreakerPolicy()
    assert (breaker.failures, breaker.window, breaker.open_for) == (8, 60, 30)
    budgets = Budgets()
    assert (budgets.run_tokens, budgets.session_tokens, budgets.tool_seconds) == (100_000, 200_000, 120)
    assert (budgets.steps, budgets.subagents, budgets.subagent_steps, budgets.depth) == (20, 3, 10, 2)
    assert (budgets.cost, budgets.session_cost) == (None, None)


@pytest.mark.parametrize("value", [-1, -0.5, math.nan, math.inf, True, "10", [1], 10**400])
@pytest.mark.parametrize(("policy", "field"), ALL_FIELDS)
def test_what_is_no_usable_number_is_refused_naming_the_field(policy: Any, field: str, value: Any) -> None:
    """Negative, infinite, not a number, a bool, a text: one sentence that names the field."""
    with pytest.raises(DeclarationError, match=rf"{policy.__name__}\.{field} is ") as caught:
        policy(**{field: value})
    assert len(str(caught.value)) < 200
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        *((Timeouts, name) for name in ("call", "step", "run")),
        (RetryPolicy, "retries"),
        (RetryPolicy, "backoff"),
        (RetryPolicy, "jitter"),
        (BreakerPolicy, "failures"),
        (BreakerPolicy, "window"),
        (BreakerPolicy, "open_for"),
    ],
)
def test_none_is_refused_where_a_limit_must_exist(policy: Any, field: str) -> None:
    """call, step and run always exist (A1); amounts and counts of a policy are no limits to leave out."""
    with pytest.raises(DeclarationError, match=rf"{policy.__name__}\.{field} is None"):
        policy(**{field: None})


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        *(
            (Timeouts, name)
            for name in ("total", "model", "first_token", "idle", "connect", "cleanup", "compensation")
        ),
        (RetryPolicy, "max_backoff"),
        (RetryPolicy, "assumed_cost"),
        (Budgets, "steps"),
    ],
)
def test_none_is_no_limit_elsewhere(policy: Any, field: str) -> None:
    """The other limits may be left out."""
    assert getattr(policy(**{field: None}), field) is None


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (Timeouts, "first_token"),
        (Timeouts, "idle"),
        (RetryPolicy, "retries"),
        (RetryPolicy, "backoff"),
        (RetryPolicy, "jitter"),
    ],
)
def test_zero_is_accepted_where_it_means_something(policy: Any, field: str) -> None:
    """0 switches a clock off, means no retry, no wait, no jitter."""
    assert getattr(policy(**{field: 0}), field) == 0


@pytest.mark.parametrize("field", ["subagents", "depth"])
def test_zero_subagents_and_depth_are_valid_but_not_built(field: str) -> None:
    """0 is a valid value of these two, so what refuses it is the missing capability."""
    with pytest.raises(NotBuilt, match=rf"Budgets\.{field} is not built yet"):
        Budgets(**{field: 0})


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        *((Timeouts, each) for each in TIMEOUT_FIELDS if each not in ("first_token", "idle")),
        (RetryPolicy, "max_backoff"),
        (RetryPolicy, "assumed_cost"),
        *((BreakerPolicy, each) for each in ("failures", "window", "open_for")),
        *((Budgets, each) for each in ("run_tokens", "tool_seconds", "steps", "subagent_steps", "cost")),
    ],
)
def test_any_other_zero_is_refused(policy: Any, field: str) -> None:
    """A limit of 0 would allow nothing; it is a mistake."""
    with pytest.raises(DeclarationError, match=rf"{policy.__name__}\.{field} is 0"):
        policy(**{field: 0})


def test_a_limit_below_one_millisecond_is_refused() -> None:
    """The clocks count milliseconds, so that would be a 0 in disguise."""
    with pytest.raises(DeclarationError, match="one millisecond"):
        Timeouts(call=0.0001)
    assert Timeouts(call=0.02).call == 0.02


@pytest.mark.parametrize(
    ("policy", "field"), [(RetryPolicy, "retries"), (BreakerPolicy, "failures"), (Budgets, "steps")]
)
def test_counts_are_whole_numbers(policy: Any, field: str) -> None:
    """2.5 retries are refused."""
    with pytest.raises(DeclarationError, match="whole number"):
        policy(**{field: 2.5})


def test_jitter_is_a_share() -> None:
    """More than 1 would give negative waits."""
    with pytest.raises(DeclarationError, match="from 0 to 1"):
        RetryPolicy(jitter=1.5)
    assert RetryPolicy(jitter=1).jitter == 1


def test_a_limit_above_its_parents_is_allowed() -> None:
    """The smaller one applies later; declaring it is no error."""
    assert Timeouts(call=120, step=60).call == 120


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_tokens", 5),
        ("session_tokens", None),
        ("tool_seconds", 1.5),
        ("subagents", 1),
        ("subagent_steps", 4),
        ("depth", 1),
        ("cost", 0.5),
        ("session_cost", 2),
    ],
)
def test_budgets_other_than_steps_are_not_built(field: str, value: Any) -> None:
    """A parameter of an unbuilt capability is refused with a sentence that names it and its default."""
    default = getattr(Budgets(), field)
    with pytest.raises(NotBuilt) as caught:
        Budgets(**{field: value})
    assert str(caught.value) == f"Budgets.{field} is not built yet; leave it at its default ({default!r})."
    assert Budgets(**{field: default}) == Budgets()


@pytest.mark.contract("G6")
def test_steps_are_built() -> None:
    """The step limit can be set."""
    assert Budgets(steps=3).steps == 3


def test_the_limits_of_cleanup_can_be_set() -> None:
    """A pass, and a single compensation in it."""
    assert Timeouts(compensation=20).compensation == 20
    assert Timeouts(cleanup=5).cleanup == 5


def test_policies_are_frozen() -> None:
    """A policy shared by agents cannot change under them."""
    with pytest.raises(FrozenInstanceError):
        Timeouts().call = 5  # type: ignore[misc]


def test_no_cap_is_infinite() -> None:
    """Rules compute with numbers, so no cap is an infinite one."""
    assert RetryPolicy(max_backoff=None).cap_s == math.inf
    assert RetryPolicy(max_backoff=16).cap_s == 16


@pytest.mark.contract("E4")
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("rollback", "rollback"),
        ("rollback_on_fail", "rollback"),
        ("keep", "keep"),
        ("commit_on_complete", "keep"),
    ],
)
def test_on_failure_has_aliases(given: str, meant: str) -> None:
    """Both spellings are accepted and become one."""
    assert check_on_failure("on_failure", given) == meant


@pytest.mark.parametrize("given", ["commit", "", None, True, ["keep"], "x" * 10_000])
def test_another_on_failure_is_refused(given: Any) -> None:
    """One sentence with both choices."""
    with pytest.raises(DeclarationError, match='give "rollback" or "keep"') as caught:
        check_on_failure("on_failure", given)
    assert len(str(caught.value)) < 200

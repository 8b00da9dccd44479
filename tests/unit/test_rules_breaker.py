"""The breaker: when it opens, who may probe, and what closes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makegood.tasks.policies import BreakerPolicy
from makegood.tasks.rules.breaker import (
    Admitted,
    BreakerState,
    Rejected,
    admit,
    close,
    from_fields,
    hold_open,
    on_failure,
    on_neutral,
    on_success,
    to_fields,
)

POLICY = BreakerPolicy()
SECOND = 1000
T0 = 1_700_000_000_000
LEASE = 20 * SECOND


def failed(state: BreakerState, *at_ms: int, owner: str = "t") -> BreakerState:
    for at in at_ms:
        state = on_failure(state, POLICY, T0 + at, owner=owner)
    return state


def opened() -> BreakerState:
    """Opened at T0, until T0 + 30 s."""
    return failed(BreakerState(), *[0] * 8)


def ask(state: BreakerState, at_ms: int, owner: str = "p") -> tuple[BreakerState, Admitted | Rejected]:
    return admit(state, T0 + at_ms, owner=owner, lease_ms=LEASE)


@pytest.mark.contract("J22")
@pytest.mark.contract("C9")
@pytest.mark.parametrize(
    ("times_s", "state"),
    [
        ([0, 1, 2, 3, 4, 5, 6], "closed"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "open"),
        ([0, 10, 20, 30, 40, 50, 55, 60], "open"),
        ([0, 10, 20, 30, 40, 50, 55, 61], "closed"),
        ([0, 0, 10, 20, 30, 40, 50, 61, 62], "closed"),
        ([0, 0, 10, 20, 30, 40, 50, 61, 62, 63], "open"),
    ],
)
def test_eight_failures_within_a_minute_open_it(times_s: list[int], state: str) -> None:
    """Seven do not, nor eight over 61 s; the window slides, so that later ones may."""
    assert failed(BreakerState(), *[at * SECOND for at in times_s]).state == state


@pytest.mark.contract("J22")
def test_a_success_breaks_the_row() -> None:
    """Seven failures, a success, one more: closed, with one failure on record."""
    state = on_success(failed(BreakerState(), *range(7)), owner="t")
    assert state == BreakerState()
    assert failed(state, 8) == BreakerState(failures_ms=(T0 + 8,))


@pytest.mark.contract("C9")
def test_what_does_not_count_neither_adds_nor_breaks_the_row() -> None:
    """A 4xx between seven failures and the eighth changes nothing."""
    state = failed(BreakerState(), *range(7))
    assert on_neutral(state, owner="t") == state
    assert failed(on_neutral(state, owner="t"), 8).state == "open"


@pytest.mark.contract("J22")
@pytest.mark.contract("C9")
def test_the_ninth_call_is_rejected_with_a_time_until_30_s_have_passed() -> None:
    """Open for 30 s from the eighth failure on."""
    state = opened()
    for at_ms in (0, 29_999):
        assert ask(state, at_ms) == (state, Rejected(T0 + 30 * SECOND))
    assert ask(state, 30_000)[1] == Admitted(probe=True)


@pytest.mark.contract("C9")
def test_one_probe_at_a_time_passes() -> None:
    """The second asker waits for the end of the first one's lease; the first gets its answer again."""
    state, _ = ask(opened(), 30_000, "p1")
    assert (state.state, state.probe_owner) == ("half_open", "p1")
    assert ask(state, 30_001, "p2") == (state, Rejected(T0 + 50 * SECOND))
    assert ask(state, 30_001, "p1") == (state, Admitted(probe=True))


@pytest.mark.contract("C9")
def test_the_probe_of_a_dead_worker_is_taken_over() -> None:
    """After its lease the next asker probes, and the old one's outcome no longer counts."""
    state, _ = ask(opened(), 30_000, "p1")
    assert ask(state, 49_999, "p2")[1] == Rejected(T0 + 50 * SECOND)
    state, answer = ask(state, 50_000, "p2")
    assert (answer, state.probe_owner, state.probe_until_ms) == (Admitted(probe=True), "p2", T0 + 70 * SECOND)
    assert on_success(state, owner="p1") == state
    assert failed(state, 50_001, owner="p1") == state


@pytest.mark.contract("C9")
def test_the_probe_decides() -> None:
    """Success closes it, failure opens it for 30 s again, a 4xx or a cancel leaves the place to the next."""
    state, _ = ask(opened(), 31_000, "p1")
    assert on_success(state, owner="p1") == BreakerState()
    again = failed(state, 32_000, owner="p1")
    assert (again.state, again.open_until_ms) == ("open", T0 + 62 * SECOND)
    free = on_neutral(state, owner="p1")
    assert free.state == "half_open"
    assert ask(free, 31_001, "p2")[1] == Admitted(probe=True)
    assert on_neutral(state, owner="p2") == state


@pytest.mark.parametrize("at_ms", [1, 31_000])
def test_calls_that_began_before_it_opened_change_nothing(at_ms: int) -> None:
    """A late failure does not prolong it, a late success does not close it."""
    state = opened()
    assert failed(state, at_ms) == state
    assert on_success(state, owner="late") == state
    assert on_neutral(state, owner="late") == state
    assert on_success(state, owner="") == state


def test_a_half_open_breaker_without_a_probe_is_closed_by_nobody() -> None:
    """An empty name is no probe."""
    state = on_neutral(ask(opened(), 30_000, "p1")[0], owner="p1")
    assert on_success(state, owner="") == state


def test_an_operator_opens_it_until_an_operator_closes_it() -> None:
    """No time, no probe and no success ends it."""
    held = hold_open(T0)
    assert ask(held, 10**9) == (held, Rejected(None))
    assert held.seen_at(T0 + 10**9) == "open"
    assert on_success(held, owner="t") == held
    assert failed(held, 5) == held
    assert ask(close(), 0)[1] == Admitted()


def test_a_closed_breaker_admits_without_a_write() -> None:
    """Nothing is written while all is well."""
    assert ask(BreakerState(), 0) == (BreakerState(), Admitted())
    assert BreakerState().untouched
    assert not failed(BreakerState(), 0).untouched
    assert not opened().untouched


def test_it_shows_half_open_once_its_time_is_over() -> None:
    """Also before anyone asked for the probe."""
    assert [opened().seen_at(T0 + at) for at in (29_999, 30_000)] == ["open", "half_open"]


@given(
    st.builds(
        BreakerState,
        state=st.sampled_from(["closed", "open", "half_open"]),
        failures_ms=st.lists(st.integers(0, 2**53), max_size=8).map(tuple),
        opened_at_ms=st.integers(0, 2**53),
        open_until_ms=st.integers(0, 2**53),
        probe_owner=st.text(),
        probe_until_ms=st.integers(0, 2**53),
        held=st.booleans(),
    )
)
def test_a_state_survives_its_flat_strings(state: BreakerState) -> None:
    """What the store holds is what the rule reads."""
    assert from_fields(to_fields(state)) == state


def test_no_fields_are_a_new_breaker_and_unknown_states_are_refused() -> None:
    """A breaker that was never written is closed."""
    assert from_fields({}) == BreakerState()
    with pytest.raises(ValueError, match="ajar"):
        from_fields({"state": "ajar"})


@pytest.mark.contract("C9")
def test_a_probe_that_does_not_count_leaves_no_trace_of_itself() -> None:
    """The next one finds the place as free as it was before the first."""
    probing, _ = ask(opened(), 30_000, "p1")
    free = on_neutral(probing, owner="p1")
    assert (free.state, free.probe_owner, free.probe_until_ms) == ("half_open", "", 0)


@pytest.mark.contract("C9")
def test_it_is_known_since_when_a_breaker_is_open() -> None:
    """Whoever opened it: the eighth failure, a probe, an operator."""
    assert (opened().opened_at_ms, opened().held) == (T0, False)
    again = failed(ask(opened(), 31_000, "p1")[0], 32_000, owner="p1")
    assert again.opened_at_ms == T0 + 32_000
    assert hold_open(T0) == BreakerState("open", opened_at_ms=T0, held=True)

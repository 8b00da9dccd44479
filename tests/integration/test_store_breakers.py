"""The breaker's Lua and its Python twin run the same tables and the same random sequences (CONTRACT C9, J22)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from makegood.store.ops import breakers as ops
from makegood.store.ops.breakers import read_breakers
from makegood.tasks.policies import BreakerPolicy
from makegood.tasks.rules import breaker as rules
from makegood.tasks.rules.breaker import Admitted, BreakerState, Rejected, from_fields
from support.store import World, fake_world

T0 = 1_700_000_000_000
LEASE_MS = 20_000
POLICY = BreakerPolicy()


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens to a breaker: `admit`, `failure`, `success` or `neutral`, of a try, after a pause."""

    what: str
    owner: str
    after_ms: int


def by_rule(state: BreakerState, act: Act, policy: BreakerPolicy, now_ms: int) -> tuple[BreakerState, object]:
    """What the Python twin says."""
    if act.what == "admit":
        return rules.admit(state, now_ms, owner=act.owner, lease_ms=LEASE_MS)
    if act.what == "failure":
        return rules.on_failure(state, policy, now_ms, owner=act.owner), None
    turn = rules.on_success if act.what == "success" else rules.on_neutral
    return turn(state, owner=act.owner), None


def by_lua(
    world: World, name: str, act: Act, policy: BreakerPolicy, now_ms: int
) -> tuple[BreakerState, object]:
    """What the script says, asked twice: the repetition must give the first answer."""
    if act.what == "admit":
        op = ops.admit(name, act.owner, LEASE_MS, now_ms)
        answer = world.do(op)
        assert world.do(op) == answer
        made = Admitted(answer.probe) if answer.admitted else Rejected(answer.until_ms)
        return from_fields(answer.fields), made
    report = ops.report(
        name,
        act.owner,
        act.what,  # type: ignore[arg-type]
        failures=policy.failures,
        window_ms=round(policy.window * 1000),
        open_for_ms=round(policy.open_for * 1000),
        now_ms=now_ms,
    )
    told = world.do(report)
    assert world.do(report) == told
    return from_fields(told.after), None


def play(world: World, name: str, acts: list[Act], policy: BreakerPolicy = POLICY) -> BreakerState:
    """Play a sequence on both sides and compare after every act; a try reports once, under its own name."""
    state, now_ms = BreakerState(), T0
    reported: set[str] = set()
    for act in acts:
        now_ms += act.after_ms
        if act.what != "admit":
            if act.owner in reported:
                continue
            reported.add(act.owner)
        before = state
        state, answer = by_rule(state, act, policy, now_ms)
        assert by_lua(world, name, act, policy, now_ms) == (state, answer), (before, act)
        stored = world.do(read_breakers()).get(name)
        assert from_fields(stored or {}) == state
    return state


def failures(n: int, every_ms: int = 1000) -> list[Act]:
    """Failures in a row, each of a try of its own."""
    return [Act("failure", f"t{every_ms}-{number}", every_ms) for number in range(n)]


TABLE: dict[str, tuple[list[Act], str]] = {
    "seven failures": (failures(7), "closed"),
    "eight within a minute": (failures(8), "open"),
    "eight over 60 s": (failures(8, 60_000 // 7), "open"),
    "eight over 61 s": (failures(8, 8_715), "closed"),
    "seven, a success, one more": ([*failures(7), Act("success", "s", 1), Act("failure", "f", 1)], "closed"),
    "seven, a 4xx, one more": ([*failures(7), Act("neutral", "n", 1), Act("failure", "f", 1)], "open"),
    "rejected while open": ([*failures(8), Act("admit", "p", 29_999)], "open"),
    "a probe after 30 s": ([*failures(8), Act("admit", "p", 30_000)], "half_open"),
    "a probe that succeeds": ([*failures(8), Act("admit", "p", 30_000), Act("success", "p", 1)], "closed"),
    "a probe that fails": ([*failures(8), Act("admit", "p", 30_000), Act("failure", "p", 1)], "open"),
    "a second asker waits": (
        [*failures(8), Act("admit", "p", 30_000), Act("admit", "q", 1), Act("admit", "p", 1)],
        "half_open",
    ),
    "a cancelled probe leaves its place": (
        [
            *failures(8),
            Act("admit", "p", 30_000),
            Act("neutral", "p", 1),
            Act("admit", "q", 1),
            Act("success", "q", 1),
        ],
        "closed",
    ),
    "a dead probe is replaced": (
        [*failures(8), Act("admit", "p", 30_000), Act("admit", "q", 20_000), Act("success", "p", 1)],
        "half_open",
    ),
    "late failures change nothing": (
        [*failures(8), Act("failure", "late", 1), Act("success", "late2", 1)],
        "open",
    ),
}


@pytest.mark.contract("C9")
@pytest.mark.contract("J22")
@pytest.mark.parametrize("name", TABLE)
def test_lua_and_python_agree_on_the_table(world: World, name: str) -> None:
    """Every case, on fakeredis and on a real server, through both doors."""
    acts, state = TABLE[name]
    assert play(world, "tickets", acts).state == state


acts = st.lists(
    st.builds(
        Act,
        st.sampled_from(["admit", "failure", "failure", "failure", "success", "neutral"]),
        st.text("abcdefghij", min_size=1, max_size=2),
        st.sampled_from([0, 1, 500, 9_999, 10_000, 10_001, 19_999, 20_000]),
    ),
    max_size=25,
)


@pytest.mark.contract("C9")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(acts, st.integers(1, 4))
def test_lua_and_python_agree_on_any_sequence(sequence: list[Act], threshold: int) -> None:
    """Random tries with a low threshold and a short window, so that all states are reached."""
    world = fake_world("sync")
    try:
        play(world, "tickets", sequence, BreakerPolicy(failures=threshold, window=20, open_for=10))
    finally:
        world.door.close()


def test_breakers_do_not_know_of_each_other(world: World) -> None:
    """Eight failures of one leave the other closed."""
    play(world, "tickets", failures(8))
    play(world, "mail", [Act("failure", "m", 0)])
    states = {name: from_fields(fields).state for name, fields in world.do(read_breakers()).items()}
    assert states == {"tickets": "open", "mail": "closed"}


def test_a_report_is_counted_once_also_after_later_ones(world: World) -> None:
    """A lost reply does not bring the breaker nearer to opening, nor does it undo what came after."""
    given = {"failures": 3, "window_ms": 60_000, "open_for_ms": 1000}
    ok = ops.report("b", "ok", "success", **given)  # type: ignore[arg-type]
    bad = [ops.report("b", f"bad-{number}", "failure", **given) for number in range(2)]  # type: ignore[arg-type]
    first = [world.do(op) for op in (ok, *bad)]
    assert [world.do(op) for op in (ok, *bad)] == first
    stored = from_fields(world.do(read_breakers())["b"])
    assert (stored.state, len(stored.failures_ms)) == ("closed", 2)


def test_what_an_operator_did_stands_in_the_audit_log_once(world: World) -> None:
    """Also when the reply was lost and the command is sent again, after someone else has closed it."""
    op = ops.set_breaker("b", "open", "ada", "maintenance")
    first = world.do(op)
    world.do(ops.set_breaker("b", "close", "bob", "done"))
    assert world.do(op) == first
    assert len(world.raw.xrange(ops.AUDIT)) == 2
    assert from_fields(world.do(read_breakers())["b"]) == BreakerState()


def test_an_operator_opens_and_closes(world: World) -> None:
    """Held open whatever is reported, until it is closed; both stand in the audit log."""
    assert from_fields(world.do(ops.set_breaker("b", "open", "ada", "maintenance"))).held
    answer = world.do(ops.admit("b", "t", LEASE_MS, T0 + 10**11))
    assert (answer.admitted, answer.until_ms) == (False, None)
    world.do(ops.report("b", "t", "success", failures=8, window_ms=1, open_for_ms=1))
    assert from_fields(world.do(read_breakers())["b"]).held
    assert from_fields(world.do(ops.set_breaker("b", "close", "bob", "done"))) == BreakerState()
    assert world.do(ops.admit("b", "t2", LEASE_MS)).admitted
    entries = [fields for _, fields in world.raw.xrange(ops.AUDIT)]
    assert [(fields[b"action"], fields[b"actor"], fields[b"reason"]) for fields in entries] == [
        (b"breaker_open", b"ada", b"maintenance"),
        (b"breaker_close", b"bob", b"done"),
    ]


def test_the_server_tells_the_time_unless_a_test_does(world: World) -> None:
    """Without a given time the server's clock counts."""
    told = world.do(ops.report("b", "t", "failure", failures=1, window_ms=60_000, open_for_ms=30_000))
    assert abs(told.now_ms - world.now_ms()) < 60_000
    assert from_fields(told.after).open_until_ms == told.now_ms + 30_000
    answer = world.do(ops.admit("b", "p", LEASE_MS))
    assert (answer.admitted, answer.until_ms) == (False, told.now_ms + 30_000)

"""The closed table of transitions: every pair of states through Python, through Lua and through the operations."""

from __future__ import annotations

import itertools

import pytest

from makegood.errors import Conflict
from makegood.store import keys
from makegood.store.ops.review import decide_review, request_cleanup
from makegood.store.ops.runs import cancel_run
from makegood.store.ops.sweep import sweep_expired, sweep_parked
from makegood.store.states import SETTLED, TERMINAL, TRANSITIONS, State, lua_table, may_go
from makegood.store.sync_store import SyncStore
from support.store import PREFIX, World, fake_world
from support.store_ops import Held, end, note, release

PAIRS = list(itertools.product(State, State))

TABLE = {
    "queued": "running parked cleaning failed timed_out cancelled expired",
    "parked": "queued cleaning failed timed_out cancelled expired",
    "running": "queued parked stopping cleaning succeeded failed timed_out cancelled",
    "stopping": "queued cleaning succeeded failed timed_out cancelled",
    "cleaning": "cleaning queued succeeded failed timed_out cancelled requires_manual_review",
    "requires_manual_review": "cleaning queued resolved",
    "succeeded": "cleaning",
    "failed": "cleaning",
    "timed_out": "cleaning",
    "cancelled": "cleaning",
    "expired": "cleaning",
    "resolved": "",
}
"""Written down a second time, so that a slip in the one table that stands in the code is seen."""


def test_the_table_is_closed_and_as_designed() -> None:
    """Every state has its row; every pair is as written above."""
    assert set(TRANSITIONS) == set(State)
    for source, target in PAIRS:
        assert may_go(source, target) == (str(target) in TABLE[source].split()), (source, target)


def test_terminal_states_are_left_for_cleaning_only() -> None:
    """Terminal is what can only go to cleaning, or nowhere; a wait ends there, or in review."""
    assert {state for state in State if TRANSITIONS[state] <= {State.CLEANING}} == TERMINAL
    assert {*TERMINAL, State.REVIEW} == SETTLED


@pytest.mark.parametrize("server", ["fake", "valkey"])
def test_lua_reads_the_same_table(server: str, request: pytest.FixtureRequest) -> None:
    """All pairs and all terminal states, asked inside a script."""
    store = fake_world("sync").door if server == "fake" else SyncStore(request.getfixturevalue("store_url"))
    assert isinstance(store, SyncStore)
    source = (
        lua_table() + "local reply = {}\n"
        "for i = 1, #ARGV, 2 do reply[#reply + 1] = ALLOWED[ARGV[i] .. '>' .. ARGV[i + 1]] and 1 or 0 end\n"
        "for i = 1, #ARGV, 2 do reply[#reply + 1] = TERMINAL[ARGV[i]] and 1 or 0 end\n"
        "return reply"
    )
    answers = store.redis.eval(source, 0, *[str(state) for pair in PAIRS for state in pair])
    allowed, terminal = answers[: len(PAIRS)], answers[len(PAIRS) :]
    store.close()
    for (source_state, target), yes, ends in zip(PAIRS, allowed, terminal, strict=True):
        assert bool(yes) == may_go(source_state, target), (source_state, target)
        assert bool(ends) == (source_state in TERMINAL), source_state


def in_state(world: World, state: State) -> Held:
    """A run in that state, of an agent of its own, whose fence is still known."""
    held = world.running(agent=world.op())
    if state != State.RUNNING:
        world.put_in_state(held.run_id, state)
    return held


def agrees(world: World, held: Held, source: State, target: State, attempt: object) -> None:
    """The operation does what the table says, and when it refuses it writes nothing."""
    before = world.dump()
    try:
        world.do(attempt)  # type: ignore[arg-type]
    except Conflict:
        assert not may_go(source, target), (source, target)
        assert world.dump() == before
    else:
        assert may_go(source, target), (source, target)
        assert world.state(held.run_id) == target
        version = int(str(before[keys.run_key(held.run_id)][1][b"version"], "ascii"))
        assert world.number(held.run_id, "version") == version + 1


@pytest.mark.parametrize("source", list(State), ids=str)
def test_the_end_of_a_run_keeps_to_the_table(fake: World, source: State) -> None:
    """From every state to every state: only what is allowed, and only to an end."""
    for target in State:
        held = in_state(fake, source)
        if target in TERMINAL:
            agrees(fake, held, source, target, end(held, fake.op(), target))
            continue
        before = fake.dump()
        with pytest.raises(Conflict):
            fake.do(end(held, fake.op(), target))
        assert fake.dump() == before


@pytest.mark.parametrize("source", list(State), ids=str)
def test_letting_go_of_a_run_keeps_to_the_table(fake: World, source: State) -> None:
    """From every state to every state: only what is allowed, and only to where a run waits."""
    for target in State:
        held = in_state(fake, source)
        if target in (State.QUEUED, State.PARKED):
            agrees(fake, held, source, target, release(held, fake.op(), str(target)))
            continue
        before = fake.dump()
        with pytest.raises(Conflict):
            fake.do(release(held, fake.op(), str(target)))
        assert fake.dump() == before


@pytest.mark.parametrize("source", list(State), ids=str)
def test_stopping_keeps_to_the_table(fake: World, source: State) -> None:
    """Only a running run becomes stopping; one that is stopping stays so."""
    held = in_state(fake, source)
    if source == State.STOPPING:
        fake.do(note(held, fake.op(), stopping=True))
        assert fake.state(held.run_id) == State.STOPPING
        return
    agrees(fake, held, source, State.STOPPING, note(held, fake.op(), stopping=True))


@pytest.mark.parametrize("source", list(State), ids=str)
def test_cancelling_keeps_to_the_table(fake: World, source: State) -> None:
    """A waiting run becomes cancelled, a working or cleaning one is told, an ended one stays as it is."""
    held = in_state(fake, source)
    op = cancel_run(run_id=held.run_id, cause="user", actor="ada", reason="")
    if source in (State.RUNNING, State.STOPPING, State.CLEANING) or source in TERMINAL:
        assert fake.do(op).state == fake.state(held.run_id) == source
        return
    if source is State.REVIEW:
        with pytest.raises(Conflict):
            fake.do(op)
        return
    agrees(fake, held, source, State.CANCELLED, op)


@pytest.mark.parametrize(
    ("action", "target"),
    [
        ("retry", State.CLEANING),
        ("resume", State.QUEUED),
        ("resolve", State.RESOLVED),
        ("cleanup", State.CLEANING),
    ],
)
@pytest.mark.parametrize("source", list(State), ids=str)
def test_what_operators_decide_keeps_to_the_table(
    fake: World, source: State, action: str, target: State
) -> None:
    """A decision moves a run out of review and nothing else; a cleanup is asked for once the run has ended."""
    held = in_state(fake, source)
    who = {"run_id": held.run_id, "actor": "ada", "reason": "r"}
    if action == "cleanup":
        fake.raw.hset(keys.run_key(held.run_id), "fx_committed", 1)
        answer = fake.do(request_cleanup(**who, undo_succeeded=True))  # type: ignore[arg-type]
        assert (answer.result == "requested") == (source in TERMINAL and may_go(source, target))
        assert fake.state(held.run_id) == (target if answer.result == "requested" else source)
        return
    op = decide_review(**who, action=action)  # type: ignore[arg-type]
    if source is State.REVIEW:
        agrees(fake, held, source, target, op)
        return
    with pytest.raises(Conflict):
        fake.do(op)
    assert fake.state(held.run_id) == source


@pytest.mark.parametrize("source", [state for state in State if state != State.QUEUED], ids=str)
def test_only_a_queued_run_is_claimed(fake: World, source: State) -> None:
    """Also when a queue still names one that is in another state."""
    run_id = fake.enqueue()
    fake.put_in_state(run_id, source)
    before = fake.dump()
    assert fake.try_claim() is None
    assert fake.dump() == before


@pytest.mark.parametrize("source", list(State), ids=str)
def test_sweeps_move_only_what_waits(fake: World, source: State) -> None:
    """Lists may name a run that has gone on; the sweeper drops the entry and leaves the run alone."""
    held = in_state(fake, source)
    fake.raw.zadd(f"{PREFIX}due", {held.run_id: 1})
    woken = fake.do(sweep_parked(PREFIX))
    assert woken == ([held.run_id] if source == State.PARKED else [])
    now = State.QUEUED if source == State.PARKED else source
    assert fake.state(held.run_id) == now
    fake.raw.zadd(f"{PREFIX}expires", {held.run_id: 1})
    ended = fake.do(sweep_expired(PREFIX))
    assert ended == ([held.run_id] if now == State.QUEUED else [])
    assert fake.state(held.run_id) == (State.EXPIRED if ended else now)
    assert fake.raw.zcard(f"{PREFIX}due") == fake.raw.zcard(f"{PREFIX}expires") == 0

"""Steps and journal rows: the decision is durable first, steps follow each other, effects are counted (invariants 1, 2)."""

from __future__ import annotations

import itertools

import orjson
import pytest

from makegood.store.codes import OutOfOrder, Unsettled
from makegood.store.ops import reads, steps
from makegood.store.ops.args import NewEvent, Spent
from makegood.store.ops.runs import cancel_run
from makegood.store.states import State
from support.store import World
from support.store_ops import end, intent, note, outcome, release, start


def test_an_intent_writes_decision_usage_rows_and_events_at_once(world: World) -> None:
    """One operation, and a reader sees either nothing of it or all."""
    held = world.running()
    rows = [
        steps.RowIntent("mail:1", b'{"n":1}', "started", True),
        steps.RowIntent("read:1", b'{"n":2}', "started", False),
        steps.RowIntent("mail:2", b'{"n":3}', "planned", True),
    ]
    op = intent(
        held,
        "op-i",
        decision=b'{"message":"m"}',
        rows=rows,
        new_events=[
            NewEvent("step.started", {"x": 1}, 1, spent=Spent(100, 20, 0.5, True)),
            NewEvent("tool.started", {}, 1, "mail:1"),
        ],
    )
    assert abs(world.do(op).now_ms - world.now_ms()) < 60_000
    record = world.record(held.run_id)
    wanted = {
        "step": "1",
        "ended_step": "0",
        "steps": "1",
        "calls": "2",
        "fx_open": "1",
        "prompt_tokens": "100",
    }
    wanted |= {
        "completion_tokens": "20",
        "cost_usd": "0.5",
        "estimated": "1",
        "sends": "0",
        "l2_used_ms": "0",
    }
    assert {name: record[name] for name in wanted} == wanted
    assert world.do(reads.read_steps(held.run_id)) == {"1:1": b'{"message":"m"}'}
    journal = world.do(reads.read_journal(held.run_id))
    assert [journal[row.row_id] for row in rows] == [row.body for row in rows]
    assert [journal[f"{row.row_id}.s"].split(b"|")[0] for row in rows] == [b"started", b"started", b"planned"]
    page = world.do(reads.read_events(held.run_id, "0"))
    assert [
        (event["type"], event["step"], event["call_key"], event["attempt"]) for event in page.events[-2:]
    ] == [
        ("step.started", 1, None, 1),
        ("tool.started", 1, "mail:1", 1),
    ]
    assert page.events[-2]["data"] == {"x": 1}


def test_an_intent_waits_for_the_end_of_the_step_it_builds_on(world: World) -> None:
    """Refused while that end is missing, with nothing written; accepted once it is there."""
    held = world.in_step()
    before = world.dump()
    with pytest.raises(OutOfOrder, match=held.run_id):
        world.do(intent(held, world.op(), step=2))
    assert world.dump() == before
    world.do(outcome(held, world.op(), "a", "b", ends=1))
    world.do(intent(held, world.op(), step=2))
    assert world.number(held.run_id, "step") == 2


@pytest.mark.parametrize(("step", "base"), [(1, 0), (3, 2), (3, 1), (0, 0), (-1, 0), (2, 0), (2, 2)])
def test_an_intent_out_of_place_is_refused(world: World, step: int, base: int) -> None:
    """A step that is there already, one that skips a step, one before the first, one on another base."""
    held = world.in_step([("a", "started")])
    world.do(outcome(held, world.op(), "a", ends=1))
    before = world.dump()
    with pytest.raises(OutOfOrder):
        world.do(intent(held, world.op(), step=step, base=base))
    assert world.dump() == before


def test_a_step_is_decided_once(world: World) -> None:
    """A second decision for the same step is refused, also in a coroutine agent, whose steps may come in any order."""
    held = world.running()
    world.do(intent(held, world.op(), step=2, base=-1, decision=b'{"first":1}', rows=[]))
    world.do(intent(held, world.op(), step=1, base=-1, rows=[]))
    before = world.dump()
    for step, base in ((1, -1), (2, -1), (1, 0)):
        with pytest.raises(OutOfOrder):
            world.do(intent(held, world.op(), step=step, base=base, decision=b'{"second":1}'))
    assert world.dump() == before
    assert world.number(held.run_id, "step") == 2


def test_a_continued_attempt_finds_the_decision_and_may_not_replace_it(world: World) -> None:
    """The next worker takes what is stored; asking the model again would be refused."""
    held = world.in_step()
    world.do(release(held, world.op()))
    again = world.claim(worker="worker-2")
    assert "1:1" in world.do(reads.read_steps(held.run_id))
    with pytest.raises(OutOfOrder):
        world.do(intent(again, world.op(), decision=b'{"other":1}'))
    world.do(outcome(again, world.op(), "a", ends=1))
    world.do(intent(again, world.op(), step=2))


def test_a_new_attempt_begins_with_step_one(world: World) -> None:
    """Its steps are kept apart from those of the earlier attempt."""
    held = world.settled()
    world.do(release(held, world.op(), continued=False))
    again = world.claim()
    world.do(intent(again, world.op(), decision=b'{"second":1}', rows=[]))
    assert sorted(world.do(reads.read_steps(held.run_id))) == ["1:1", "2:1"]


@pytest.mark.parametrize("order", list(itertools.permutations("xyz")))
def test_identical_parallel_calls_keep_their_rows(fake: World, order: tuple[str, ...]) -> None:
    """Three equal calls end in any order: each outcome stands in the row of its own call."""
    held = fake.running()
    fake.do(intent(held, fake.op(), rows=[(name, "started") for name in "xyz"]))
    for number, name in enumerate(order):
        fake.do(outcome(held, fake.op(), name, ends=1 if number == 2 else 0))
    for name in "xyz":
        status, body = fake.row(held.run_id, name)
        assert (status, orjson.loads(body)) == ("succeeded", {"of": name})
    assert fake.number(held.run_id, "fx_committed") == 3


def test_planned_calls_start_by_one_more_operation(world: World) -> None:
    """Until then nothing is open; they cannot start twice, and not after their end."""
    held = world.in_step([("b", "planned"), ("c", "planned")])
    assert (world.number(held.run_id, "fx_open"), world.number(held.run_id, "calls")) == (0, 0)
    world.do(start(held, world.op(), "b", "c"))
    assert (world.number(held.run_id, "fx_open"), world.number(held.run_id, "calls")) == (2, 2)
    before = world.dump()
    with pytest.raises(OutOfOrder):
        world.do(start(held, world.op(), "b"))
    assert world.dump() == before
    world.do(outcome(held, world.op(), "b", "c", ends=1))
    with pytest.raises(OutOfOrder):
        world.do(start(held, world.op(), "b"))
    assert world.row(held.run_id, "b")[0] == "succeeded"


def test_the_first_outcome_of_a_call_stands(world: World) -> None:
    """A late one of another operation is dropped (CONTRACT F9)."""
    held = world.in_step()
    world.do(outcome(held, world.op(), "a", status="unknown"))
    world.do(outcome(held, world.op(), "a", status="succeeded"))
    assert world.row(held.run_id, "a")[0] == "unknown"
    assert (world.number(held.run_id, "fx_unknown"), world.number(held.run_id, "fx_committed")) == (1, 0)


def test_the_end_of_an_earlier_position_still_counts(world: World) -> None:
    """Two model calls of a coroutine agent at once: the first one ends last, its duration and events are kept."""
    held = world.running()
    for position in (1, 2):
        world.do(intent(held, world.op(), step=position, base=-1, rows=[]))
    for position in (2, 1):
        op = outcome(
            held, f"end-{position}", ends=position, new_events=[NewEvent("step.ended", {}, position)]
        )
        world.do(op)
        world.do(op)
    page = world.do(reads.read_events(held.run_id, "0"))
    assert [event["step"] for event in page.events if event["type"] == "step.ended"] == [2, 1]
    assert world.number(held.run_id, "ended_step") == 2


EFFECTS = ("fx_open", "fx_committed", "fx_unknown", "fx_not_started")


def effects(world: World, run_id: str) -> tuple[int, ...]:
    """Open, committed, unknown, not started."""
    return tuple(world.number(run_id, name) for name in EFFECTS)


@pytest.mark.parametrize(
    ("status", "after"),
    [
        ("succeeded", (0, 1, 0, 0)),
        ("failed", (0, 0, 0, 0)),
        ("unknown", (0, 0, 1, 0)),
        ("aborted_before_dispatch", (0, 0, 0, 1)),
    ],
)
def test_an_outcome_closes_its_effect(world: World, status: str, after: tuple[int, ...]) -> None:
    """One call with an effect: open while it runs, then counted where its outcome says."""
    held = world.in_step([("a", "started")])
    assert effects(world, held.run_id) == (1, 0, 0, 0)
    world.do(outcome(held, world.op(), "a", status=status))
    assert effects(world, held.run_id) == after


def test_calls_without_effects_count_nowhere(world: World) -> None:
    """Reads."""
    held = world.running()
    world.do(intent(held, world.op(), rows=[("r", "started"), ("s", "started")], effect=False))
    world.do(outcome(held, world.op(), "r", effect=False))
    world.do(outcome(held, world.op(), "s", status="failed", effect=False))
    assert effects(world, held.run_id) == (0, 0, 0, 0)
    assert world.number(held.run_id, "calls") == 2


def test_a_planned_call_that_never_started_had_no_effect(world: World) -> None:
    """Its breaker was open: not started, and never open."""
    held = world.in_step([("b", "planned")])
    world.do(outcome(held, world.op(), "b", status="aborted_before_dispatch"))
    assert effects(world, held.run_id) == (0, 0, 0, 1)


@pytest.mark.parametrize(
    ("left", "before"),
    [("unknown", (0, 0, 1, 0)), ("aborted_before_dispatch", (0, 0, 0, 1)), ("started", (1, 0, 0, 0))],
)
def test_a_repeat_under_the_same_key_takes_the_place_of_the_first_try(
    world: World, left: str, before: tuple[int, ...]
) -> None:
    """A later step repeats a call: in the end one effect is committed, and nothing is unknown."""
    held = world.in_step([("a", "started")])
    if left != "started":
        world.do(outcome(held, world.op(), "a", status=left))
    world.do(outcome(held, world.op(), ends=1))
    assert effects(world, held.run_id) == before
    began = world.do(reads.read_journal(held.run_id))["a.s"].split(b"|")[1]
    world.wait_until_ms(int(began))
    world.do(intent(held, world.op(), step=2, rows=[("a", "started")]))
    assert effects(world, held.run_id) == (1, 0, 0, 0)
    key_since = world.do(reads.read_journal(held.run_id))["a.s"].split(b"|")[1]
    assert (key_since == began) == (left != "aborted_before_dispatch")
    assert world.row(held.run_id, "a") == ("started", "")
    world.do(outcome(held, world.op(), "a", ends=2))
    assert world.do(end(held, world.op())) == State.SUCCEEDED
    assert effects(world, held.run_id) == (0, 1, 0, 0)


@pytest.mark.parametrize("left", ["started", "unknown"])
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.TIMED_OUT, State.CANCELLED])
def test_a_run_does_not_end_and_does_not_begin_anew_with_an_open_effect(
    world: World, left: str, state: State
) -> None:
    """Whatever its worker thinks: it is cleaned up first."""
    held = world.in_step([("a", "started"), ("c", "started"), ("b", "planned")])
    world.do(outcome(held, world.op(), "c"))
    if left == "unknown":
        world.do(outcome(held, world.op(), "a", status="unknown"))
    before = world.dump()
    with pytest.raises(Unsettled):
        world.do(release(held, world.op(), continued=False))
    assert world.dump() == before
    assert world.do(end(held, world.op(), state)) == world.state(held.run_id) == State.CLEANING
    assert effects(world, held.run_id) == ((1, 1, 0, 0) if left == "started" else (0, 1, 1, 0))
    assert "run.ended" not in world.events(held.run_id)
    assert not [name for name in world.counters() if name.startswith("runs_finished_total")]


def test_every_reply_tells_of_a_cancel(world: World) -> None:
    """A worker hears of it with whatever it writes next."""
    held = world.in_step()
    world.do(cancel_run(run_id=held.run_id, cause="user", actor="ada", reason=""))
    ops = [
        note(held, "n"),
        start(held, "s", "b"),
        outcome(held, "o", "a", "b", ends=1),
        intent(held, "i", step=2),
    ]
    for op in ops:
        assert world.do(op).cancel == "user"
        assert world.do(op).cancel == "user"


def test_an_activity_can_be_seen_and_cleared(world: World) -> None:
    """What the run waits for, from outside; the next intent clears it too."""
    held = world.running()
    world.do(note(held, world.op()))
    assert world.record(held.run_id)["activity"] == '{"activity":"backing_off"}'
    assert world.record(held.run_id)["sends"] == "2"
    world.do(note(held, world.op(), activity=b"", sends=None))
    assert "activity" not in world.record(held.run_id)
    assert world.record(held.run_id)["sends"] == "2"
    world.do(note(held, world.op()))
    world.do(intent(held, world.op()))
    assert "activity" not in world.record(held.run_id)


def test_a_cost_that_is_no_number_is_an_unknown_cost(world: World) -> None:
    """A script that failed at its last write would keep its earlier ones."""
    held = world.running()
    world.do(intent(held, world.op(), new_events=[NewEvent("x", spent=Spent(1, 1, float("nan")))]))
    assert "cost_usd" not in world.record(held.run_id)

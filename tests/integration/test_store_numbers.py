"""What the scripts count beside their work: waits, recoveries, messages that came in vain, breakers, living workers."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from makegood.errors import StaleFence
from makegood.store import keys
from makegood.store.buckets import CALL_S, COUNTS, HOURS_KEPT, RUN_S, STEP_S, bound_text
from makegood.store.ops import breakers, cleanup, numbers, runs
from makegood.store.ops.args import NewEvent, Sample, Spent
from makegood.store.ops.leases import lose_worker
from makegood.store.ops.numbers import WorkerFacts
from makegood.store.ops.review import request_cleanup
from makegood.store.states import State
from makegood.workers.heartbeat import Heartbeat
from support.store import AGENT, PREFIX, World
from support.store_ops import Held, end, intent, note, outcome, release


def totals(world: World, series: str) -> dict[str, int]:
    """Counters and histograms of a series."""
    return world.do(numbers.read_totals(PREFIX, series))


def buckets(world: World, series: str, name: str) -> dict[str, int]:
    """The filled buckets of a histogram, by bound."""
    found = {field.rpartition("|"): n for field, n in totals(world, series).items()}
    return {bound: n for (label, _, bound), n in found.items() if label == name and bound != "sum"}


def hours(world: World) -> dict[str, int]:
    """What was counted in the hours that the shard holds."""
    found: dict[str, int] = {}
    for key in world.raw.keys(f"{PREFIX}h:*"):
        for name, n in world.do(numbers.read_hour(PREFIX, int(key.decode().rpartition(":")[2]))).items():
            found[name] = found.get(name, 0) + n
    return found


def oldest(world: World) -> dict[str, float | None]:
    """Since when some run has been in each state, where one is."""
    found = {state: world.do(numbers.oldest_in(PREFIX, state)) for state in numbers.WAITING}
    return {state: since for state, since in found.items() if since is not None}


# --- histograms -----------------------------------------------------------------------------------------------------


@pytest.mark.contract("A7")
@pytest.mark.parametrize(
    ("series", "into", "name", "bounds"),
    [
        ("tool:act", "tool:act", "call_duration_seconds|ok", CALL_S),
        ("step:a", "agent:a", "step_duration_seconds", STEP_S),
    ],
)
def test_a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed(
    world: World, series: str, into: str, name: str, bounds: tuple[float, ...]
) -> None:
    """Every bound, a millisecond more than it, and what is above them all; the sum is of all."""
    held = world.running()
    result = "ok" if series.startswith("tool:") else ""
    given = [round(bound * 1000) + more for bound in bounds for more in (0, 1)]
    world.do(note(held, world.op(), latencies=[Sample(series, 1, ms, result) for ms in given]))
    names = [bound_text(bound) for bound in bounds]
    assert buckets(world, into, name) == {names[0]: 1, **dict.fromkeys(names[1:], 2), "inf": 1}
    assert totals(world, into)[f"{name}|sum"] == sum(given)
    assert into in world.do(numbers.read_series(PREFIX))


def test_a_latency_that_is_no_histogram_stays_a_latency(world: World) -> None:
    """Attempts and model requests have percentiles only."""
    held = world.running()
    world.do(note(held, world.op(), latencies=[Sample("run:a", 1, 5), Sample("model:m", 1, 5)]))
    assert [each for each in world.do(numbers.read_series(PREFIX)) if not each.startswith("queue:")] == []


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("I2")
def test_a_run_is_measured_once_however_often_it_ends(world: World) -> None:
    """Steps, calls, requests, duration: at its first end, also when an operator has it cleaned up and it ends again."""
    held = world.running()
    asked = NewEvent("llm.attempt", {"model": "m"})
    world.do(note(held, world.op(), new_events=[asked]))
    world.do(intent(held, world.op(), new_events=[asked, asked]))
    world.do(outcome(held, world.op(), "a", ends=1))
    world.do(end(held, world.op()))
    assert world.number(held.run_id, "requests") == 3
    steps, calls = world.number(held.run_id, "steps"), world.number(held.run_id, "calls")

    def measured() -> dict[str, int]:
        names = ("run_steps", "run_calls|tool", "run_calls|model", "run_duration_seconds|succeeded")
        return {name: sum(buckets(world, f"agent:{AGENT}", name).values()) for name in names}

    assert set(measured().values()) == {1}
    found = totals(world, f"agent:{AGENT}")
    assert (found["run_steps|sum"], found["run_calls|tool|sum"]) == (steps, calls)
    assert found["run_calls|model|sum"] == 3
    assert hours(world)[f"run_calls|{AGENT}|model|sum"] == 3
    clean_again(world, held.run_id)
    assert world.state(held.run_id) == State.SUCCEEDED
    assert sum(buckets(world, f"agent:{AGENT}", "cleanup_duration_seconds").values()) == 1
    assert set(measured().values()) == {1}


def clean_again(world: World, run_id: str) -> None:
    """An operator has a run cleaned up, and it ends as before."""
    world.do(request_cleanup(run_id=run_id, undo_succeeded=True, actor="ada", reason="test"))
    claim = claim_cleanup(world, run_id)
    world.do(cleanup.end_cleanup(run_id=run_id, fence=claim.fence, op=world.op(), target=State.SUCCEEDED))


def claim_cleanup(world: World, hint: str = "", nonce: str | None = None) -> Any:
    """The cleanup that is due."""
    claim = world.do(
        cleanup.claim_cleanup(
            shard_prefix=PREFIX, nonce=nonce or world.op(), worker="worker-1", agents=[AGENT], hint=hint
        )
    )
    assert claim is not None
    return claim


def test_a_run_that_never_began_has_no_duration(world: World) -> None:
    """It counts as finished, with no step."""
    run_id = world.enqueue()
    world.do(runs.cancel_run(run_id=run_id, cause="user", actor="ada", reason=""))
    assert world.counters()[f"runs_finished_total|{AGENT}|cancelled"] == 1
    found = totals(world, f"agent:{AGENT}")
    assert {name for name in found if name.startswith("run_duration")} == set()
    assert buckets(world, f"agent:{AGENT}", "run_steps") == {bound_text(COUNTS[0]): 1}


def test_the_wait_in_the_queue_is_measured_at_the_first_claim(world: World) -> None:
    """Not again after a hand-over, whose wait is free."""
    held = world.running()
    world.do(release(held, world.op()))
    world.claim()
    assert sum(buckets(world, "queue:runs", "run_queue_wait_seconds").values()) == 1


def test_a_recovery_is_measured_from_the_last_sign_of_life(world: World) -> None:
    """A death that its supervisor reports: from then; a lease that ran out: from the last heartbeat."""
    held = world.running()
    world.raw.hset(keys.run_key(held.run_id), "claimed_at", world.now_ms() - 40_000)
    world.raw.hset(f"{PREFIX}beats", "worker-1", world.now_ms() - 35_000)
    world.raw.zadd(f"{PREFIX}lease", {"worker-1": 1})
    world.do(lose_worker(PREFIX, "worker-1", only_expired=True, death=False))
    again = world.claim()
    assert buckets(world, "all:", "recovery_seconds") == {bound_text(STEP_S[8]): 1}, "30 to 60 s"
    assert hours(world)["recovery_seconds|sum_ms"] >= 30_000
    assert world.do(lose_worker(PREFIX, "worker-1", only_expired=False, death=True)).run_ids == (
        again.run_id,
    )
    world.claim()
    assert sum(buckets(world, "all:", "recovery_seconds").values()) == 2
    assert totals(world, "all:")["recovery_seconds|sum"] < 60_000
    assert max(RUN_S) > 60


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.contract("I2")
def test_a_message_that_comes_again_is_counted_by_what_became_of_it(world: World) -> None:
    """Its run has ended: done; somebody has it: fenced; it only waits for others: nothing. A repetition adds nothing."""

    def told() -> dict[str, int]:
        found = world.counters()
        return {name.rpartition("|")[2]: n for name, n in found.items() if name.startswith("redeliveries")}

    ended = world.running()
    world.do(end(ended, world.op()))
    held = world.running()
    for _ in range(2):  # the second time is the client's repetition
        assert world.try_claim(hint=ended.run_id, nonce="again-1") is None
    assert told() == {"done": 1}
    assert world.try_claim(hint=held.run_id) is None
    assert told() == {"done": 1, "fenced": 1}
    waiting = world.enqueue(agent="other")
    assert world.try_claim(hint=waiting) is None
    assert world.try_claim(hint=keys.new_run_id(7)) is None, "a run that is not there"
    world.do(release(held, world.op()))
    assert world.claim(hint=held.run_id).run_id == held.run_id
    assert told() == {"done": 1, "fenced": 1, "resumed": 1}


# --- counters that travel with events --------------------------------------------------------------------------------


@pytest.mark.contract("I2")
def test_counters_travel_with_their_event_and_count_once(world: World) -> None:
    """For ever, in the hour, or in a series of their own; sent twice, they count once; refused, not at all."""
    held = world.running()
    event = NewEvent(
        "tool.retry",
        {},
        1,
        "k",
        ("retries_total|tool|X", "@tool:act>calls_total|aborted", "timeouts_total|a|call"),
    )
    op = note(held, world.op(), new_events=[event])
    for _ in range(2):
        world.do(op)
    stale = Held(held.run_id, "9:x")
    with pytest.raises(StaleFence):
        world.do(note(stale, world.op(), new_events=[event]))
    counted = {name: n for name, n in world.counters().items() if not name.startswith("runs_")}
    assert counted == {"retries_total|tool|X": 1, "timeouts_total|a|call": 1}
    assert {name: hours(world)[name] for name in counted} == counted
    assert totals(world, "tool:act") == {"calls_total|aborted": 1}


def test_the_hours_go_by_themselves(world: World) -> None:
    """After 15 days; a window reaches 14."""
    world.enqueue()
    (hour,) = world.raw.keys(f"{PREFIX}h:*")
    assert 14 * 86_400 < world.raw.ttl(hour) <= HOURS_KEPT * 3600


@pytest.mark.parametrize("priced", [True, False])
def test_tokens_and_cost_are_counted_by_model(world: World, priced: bool) -> None:
    """Cost in billionths, so that sums are exact; a model without a price has none."""
    held = world.running()
    spent = Spent(10, 3, 0.25 if priced else None, model="openai/gpt-5-mini")
    world.do(intent(held, world.op(), new_events=[NewEvent("llm.attempt", spent=spent)]))
    want = {"tokens_total|prompt": 10, "tokens_total|completion": 3}
    assert totals(world, "model:openai/gpt-5-mini") == want | (
        {"cost_nano_usd": 250_000_000} if priced else {}
    )


# --- since when -----------------------------------------------------------------------------------------------------


def test_the_store_knows_since_when_a_run_is_in_its_state(world: World) -> None:
    """Through every move, and no longer than it is there."""
    began_ms = world.now_ms()
    held = world.running()
    assert set(oldest(world)) == {"running"}
    world.do(note(held, world.op(), stopping=True))
    assert set(oldest(world)) == {"stopping"}
    world.do(release(held, world.op()))
    assert set(oldest(world)) == {"queued"}
    held = world.claim()
    world.do(release(held, world.op(), "parked", due_in_ms=1000))
    (since_ms,) = oldest(world).values()
    assert set(oldest(world)) == {"parked"}
    assert since_ms is not None
    assert since_ms >= began_ms
    world.do(runs.cancel_run(run_id=held.run_id, cause="user", actor="ada", reason=""))
    assert oldest(world) == {}


# --- breakers and workers -------------------------------------------------------------------------------------------


def test_a_breaker_counts_its_changes(world: World) -> None:
    """Open, half open, closed; a repetition adds nothing, and neither does what changes nothing."""
    limits: dict[str, Any] = {"failures": 1, "window_ms": 1000, "open_for_ms": 1000}
    opening = breakers.report("b", "t1", "failure", **limits, now_ms=1000)
    for _ in range(2):
        world.do(opening)
    for _ in range(2):
        world.do(breakers.admit("b", "t2", 1000, now_ms=3000))
    world.do(breakers.report("b", "t2", "success", **limits, now_ms=3001))
    for action in ("open", "open", "close"):
        world.do(breakers.set_breaker("b", action, "ada", ""))  # type: ignore[arg-type]
    assert world.do(numbers.read_breaker_counters()) == {
        "breaker_transitions_total|b|open": 2,
        "breaker_transitions_total|b|half_open": 1,
        "breaker_transitions_total|b|closed": 2,
        "operator_actions_total|breaker_open|done": 2,
        "operator_actions_total|breaker_close|done": 1,
    }


def test_a_worker_counts_as_alive_until_it_ends_or_falls_silent(world: World) -> None:
    """What it said last is what is known of it."""
    busy, silent = WorkerFacts("w1", "runs", 100, 0.01, 2), WorkerFacts("w2", "cleanup", 10, 0.0, 0)
    world.do(numbers.tell_worker(WorkerFacts("w1", "runs", 1, 0.0, 0), 60_000))
    world.do(numbers.tell_worker(busy, 60_000))
    world.do(numbers.tell_worker(silent, 1))
    world.wait_until_ms(world.now_ms() + 1)
    assert world.do(numbers.read_workers()) == [busy]
    world.do(numbers.tell_worker(busy, 60_000))
    assert world.raw.hlen(f"{keys.WORKERS}facts") == 1, "who fell silent is forgotten by the next who speaks"
    world.do(numbers.forget_worker("w1"))
    assert world.do(numbers.read_workers()) == []


def test_what_another_version_says_of_a_worker_is_no_hindrance(world: World) -> None:
    """More than we know is passed over, less than we need is left out."""
    world.do(numbers.tell_worker(WorkerFacts("w1", "runs", 100, 0.5, 2), 60_000))
    for worker, said in (("w2", b'{"queue":"runs","slots":1,"lag_s":0,"stuck":0,"more":1}'), ("w3", b"{}")):
        world.raw.zadd(f"{keys.WORKERS}until", {worker: world.now_ms() + 60_000})
        world.raw.hset(f"{keys.WORKERS}facts", worker, said)
    assert [each.worker for each in world.do(numbers.read_workers())] == ["w1", "w2"]


def test_a_full_server_costs_a_number_and_no_lease(real: World, store_url: str) -> None:
    """What a worker says of itself takes memory; the renewal of its lease must not fail with it."""
    beaten = threading.Event()
    heart = Heartbeat(
        store_url,
        "worker-1",
        10,
        30,
        held=dict,
        loop_answered_s=time.monotonic,
        on_beat=lambda _: beaten.set(),
        facts=lambda: WorkerFacts("worker-1", "runs", 1, 0.0, 0),
    )
    real.raw.config_set("maxmemory", 1)
    try:
        heart.start()
        assert beaten.wait(60)
        assert real.do(numbers.read_workers()) == []
    finally:
        real.raw.config_set("maxmemory", 0)
        heart.stop()

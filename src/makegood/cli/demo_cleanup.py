"""Scenes of `makegood demo` about what a run leaves behind: undone by itself, or by a person after a repair."""

from __future__ import annotations

import itertools

from makegood.cli import demo_agents as agents
from makegood.cli.demo_play import WAIT_S, Scene, code_of, ended, play, tries
from makegood.cli.demo_world import World
from makegood.tasks.client import Run
from makegood.tasks.records import Result
from makegood.tasks.rules.cleaning import TRIES, WAITS_S
from makegood.testing.shop import ShopRequest

REPAIRED = "The hotel's system is repaired."


def undone_timeout(world: World) -> Scene:
    """Two bookings, then nothing until L3: both are cancelled, and the run ends timed out."""
    scene = Scene(
        "A run times out, what it did is undone",
        f"A flight and a hotel are booked, then the shop does not answer any more: the run's limit (L3) of {agents.TRIP_RUN_S:g} s"
        " cuts it.",
    )
    world.shop.lose_answer("/cars", times=None)
    run, result = play(world, scene, "trips", "Please book a trip to Oslo for Ada.")
    world.shop.heal("/cars")
    booked, cancelled = booked_by(world, run), cancelled_by(world, run)
    undone = {row["tool"]: row for row in run.journal() if row["compensation"]}
    held = [*world.shop.flights, *world.shop.hotels]
    scene.lines += show_requests(cancelled)
    scene.facts |= {
        "booked": len(booked),
        "cancelled": [each.path for each in cancelled],
        "held": held,
        "undo_keys": [each.key for each in cancelled],
    }
    outcome = (result.state, code_of(result), result.attempts)
    scene.claim(
        "the run ended timed_out (RUN_TIMEOUT), in its only attempt",
        outcome == ("timed_out", "RUN_TIMEOUT", 1),
    )
    scene.claim(
        "the shop was asked for two bookings and holds neither any more", len(booked) == 2 and not held
    )
    paths = [each.path.partition("-")[0] for each in cancelled]
    scene.claim("each was cancelled once, the newest first", paths == ["/hotels/H", "/flights/F"])
    expected = [
        f"{undone[name]['idempotency_key']}:undo" for name in ("book_hotel", "book_flight") if name in undone
    ]
    scene.claim(
        "under a key of its own, that of the call with :undo", [each.key for each in cancelled] == expected
    )
    scene.claim(
        "the run's verdict: two effects compensated, none left, none unknown", effects_of(result) == (2, 0, 0)
    )
    return scene


def failed_undo(world: World) -> Scene:
    """The hotel cannot be cancelled: a person is asked, repairs the cause, and lets cleanup go on."""
    scene = Scene(
        "An undo fails, a person is asked",
        "The shop has no car, so the run fails; and it answers status 500 whenever a hotel is cancelled.",
    )
    world.shop.fail("/cars", 500)
    world.shop.fail("/hotels/", 500)
    text = "Please book a trip to Rome for Grace."
    run, waits = play(world, scene, "holidays", text)
    shown = command(world, scene, "review", "show", run.id)
    before = cancelled_by(world, run)
    hotels = [each for each in before if each.path.startswith("/hotels/")]
    scene.lines += [
        f"Now the hotel's system is repaired. {len(hotels)} requests have reached it:",
        *show_requests(hotels),
    ]
    claim_review(world, scene, run, waits, shown)
    world.shop.heal("/hotels/")
    command(world, scene, "review", "retry", run.id, "--actor", "demo", "--reason", REPAIRED)
    result = run.wait(WAIT_S)
    undone = [
        row["compensation"] for row in run.journal() if row["tool"] == "book_hotel" and row["compensation"]
    ]
    scene.lines += [f"The compensation of book_hotel -> {undo['status']}, {tries(undo)}" for undo in undone]
    scene.lines.append(ended(result))
    scene.facts["runs"].append(result.to_dict())
    claim_repair(world, scene, run, result, before)
    world.shop.heal("/cars")
    return scene


def claim_review(world: World, scene: Scene, run: Run, waits: Result, shown: str) -> None:
    """What is known while the run waits for a person."""
    journal = {row["tool"]: row for row in run.journal()}
    asked = [
        (item["kind"], item["call_key"])
        for review in world.client.reviews()
        if review["run_id"] == run.id
        for item in review["items"]
    ]
    before = cancelled_by(world, run)
    flights = [each for each in before if each.path.startswith("/flights/")]
    hotels = [each for each in before if each.path.startswith("/hotels/")]
    gaps_s = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(hotels)]
    scene.facts |= {
        "hotel_requests": {"before": len(hotels)},
        "gaps_s": [round(gap_s, 2) for gap_s in gaps_s],
    }
    key = journal["book_hotel"]["call_key"] if "book_hotel" in journal else ""
    scene.claim("the run waits for a person, and the only question names the call that booked the hotel",
                waits.state == "requires_manual_review" and asked == [("compensation", key)] and key in shown)  # fmt: skip
    scene.claim(
        f"it was tried {TRIES} times under one key, with waits of {' and '.join(f'{wait_s:g}' for wait_s in WAITS_S)} s,"
        " and not a fourth time",
        len(hotels) == TRIES
        and len({each.key for each in hotels}) == 1
        and all(gap_s >= wait_s - 0.01 for gap_s, wait_s in zip(gaps_s, WAITS_S, strict=True)),
    )
    scene.claim("the flight was cancelled all the same", len(flights) == 1 and not world.shop.flights)
    scene.claim(
        "the hotel is still booked, and the verdict says so",
        len(world.shop.hotels) == 1 and effects_of(waits) == (1, 1, 0),
    )


def claim_repair(world: World, scene: Scene, run: Run, result: Result, before: list[ShopRequest]) -> None:
    """What the person's decision led to."""
    later = cancelled_by(world, run)[len(before) :]
    scene.facts["hotel_requests"]["after"] = len(later)
    scene.claim(
        "after the repair the retry cancelled the hotel with one request, and the flight not again",
        [each.path.partition("-")[0] for each in later] == ["/hotels/H"] and not world.shop.hotels,
    )
    scene.claim("the run ended failed, with the error that it had, and two effects compensated",
                (result.state, code_of(result), effects_of(result)) == ("failed", "TOOL_RETRIES", (2, 0, 0)))  # fmt: skip
    audited = [(each["action"], each["actor"], each["reason"]) for each in world.client.audit(run.id)]
    scene.facts["audit"] = world.client.audit(run.id)
    scene.claim("the audit log says who decided, and why", audited == [("retry", "demo", REPAIRED)])


def command(world: World, scene: Scene, *words: str) -> str:
    """Run a command of the real command line, and show it with what it printed."""
    done = world.command(*words)
    shown = " ".join(f'"{word}"' if " " in word else word for word in words)
    scene.lines += ["", f"$ makegood {shown}", *f"{done.stdout}{done.stderr}".splitlines(), ""]
    return done.stdout


def booked_by(world: World, run: Run) -> list[ShopRequest]:
    """The bookings that a run has asked for."""
    seen = [*world.shop.seen("POST", "/flights"), *world.shop.seen("POST", "/hotels")]
    return [each for each in seen if each.run_id == run.id]


def cancelled_by(world: World, run: Run) -> list[ShopRequest]:
    """The cancellations that a run has asked for, in their order."""
    return [each for each in world.shop.seen("DELETE", "/") if each.run_id == run.id]


def show_requests(requests: list[ShopRequest]) -> list[str]:
    """One line each."""
    return [f"  {each.method} {each.path}  Idempotency-Key {each.key}" for each in requests]


def effects_of(result: Result) -> tuple[int, int, int]:
    """How many effects were undone, stand, are unknown."""
    return result.effects.compensated, result.effects.committed, result.effects.unknown

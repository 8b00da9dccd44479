"""The scenes of `makegood demo`: each plays something real, shows what came of it, and checks every claim it makes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from makegood.cli import demo_agents as agents
from makegood.cli.breakers import all_breakers
from makegood.cli.demo_cleanup import failed_undo, undone_timeout
from makegood.cli.demo_model import asked_for
from makegood.cli.demo_numbers import numbers
from makegood.cli.demo_play import WAIT_S, Scene, code_of, conclude, play
from makegood.cli.demo_world import LEASE_S, World
from makegood.errors import WaitTimeout
from makegood.tasks.client import Run
from makegood.tasks.records import Result
from makegood.testing.shop import ShopRequest

LOOK_S = 0.005
"""How often the shop's books are looked at while a scene waits for an order."""

SUPPLIER_DELAY_S = 20.0


def scenes(world: World) -> Iterator[Scene]:
    """All scenes, in order; each is played when it is asked for."""
    yield success(world)
    yield lost_answer(world)
    yield killed_worker(world)
    yield open_breaker(world)
    yield skipped_retry(world)
    yield undone_timeout(world)
    yield failed_undo(world)
    yield numbers(world)


def success(world: World) -> Scene:
    """Two tools, three steps, one order."""
    scene = Scene("A run that succeeds", "The model calls two tools over the shop's API, then answers.")
    text = "Please order a lamp for Ada."
    _, result = play(world, scene, "clerk", text)
    asked = requests_for(world, text)
    scene.lines.append(f"The model was asked {asked} times over HTTP, through LiteLLM.")
    scene.facts |= {"model_requests": asked, "orders": world.shop.orders}
    scene.claim(
        "the run succeeded in 3 steps with 2 calls",
        (result.state, result.steps, result.calls) == ("succeeded", 3, 2),
    )
    scene.claim(
        "the shop holds exactly one order, the one the answer names", answer_names(result, world.shop.orders)
    )
    scene.claim("the model got one request per step", asked == result.steps)
    return scene


def lost_answer(world: World) -> Scene:
    """The ticket is made, the answer is lost, the retry carries the same key."""
    scene = Scene(
        "An answer is lost, its effect is not doubled",
        f"The shop creates the ticket and then stalls: the tool's limit of {agents.TICKET_LIMIT_S:g} s cuts the first try.",
    )
    world.shop.lose_answer("/tickets")
    run, result = play(world, scene, "support", "The lamp is broken.")
    journal = run.journal()
    keys = world.shop.keys("POST", "/tickets")
    scene.lines += [
        f"Requests for a ticket that reached the shop: {len(keys)}, with the Idempotency-Key",
        *(f"  {key}" for key in keys),
    ]
    scene.facts |= {"tickets": world.shop.tickets, "idempotency_keys": keys}
    scene.claim(
        "the run succeeded, and its answer names the ticket", answer_names(result, world.shop.tickets)
    )
    scene.claim("the shop holds exactly one ticket", len(world.shop.tickets) == 1)
    tries = [(row["status"], row["tries"]) for row in journal]
    scene.claim("the journal has one call with two tries, succeeded", tries == [("succeeded", 2)])
    scene.claim(
        "the shop saw the journal's key twice", keys == [row["idempotency_key"] for row in journal] * 2
    )
    return scene


def killed_worker(world: World) -> Scene:
    """The order is made, its answer is held; the process that waits for it is killed, the next one asks again."""
    scene = Scene(
        "A worker is killed in the middle of a tool, its run is continued",
        "The shop makes the order and holds its answer; the worker process that waits for it gets SIGKILL.",
    )
    world.shop.lose_answer("/orders")
    text = "Please order a lamp for Grace."
    run = world.client.enqueue("clerk", text)
    pid = int(held_request(world, run, "Grace").headers["x-worker-pid"])
    killed_at_s, killed_s = time.time(), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    result = conclude(scene, run, "clerk", text)
    requests = order_requests(world, run)
    show_continuation(scene, run, pid, killed_at_s, requests[-1].at_s - killed_s)
    orders = [each for each in world.shop.orders if each["customer"] == "Grace"]
    asked, keys = requests_for(world, text), [each.key for each in requests]
    scene.facts |= {"model_requests": asked, "orders": orders, "idempotency_keys": keys}
    outcome = (result.state, result.attempts, result.crashes)
    scene.claim("the run succeeded in its first attempt, after one crash", outcome == ("succeeded", 1, 1))
    journal = [row["idempotency_key"] for row in run.journal() if row["tool"] == "place_order"]
    scene.claim(
        "the shop was asked twice, under the journal's key for the call",
        keys == journal * 2 and len(journal) == 1,
    )
    scene.claim(
        "it holds exactly one order for Grace, the one the answer names", answer_names(result, orders)
    )
    scene.claim("the model got one request per step, for no step a second", asked == result.steps == 3)
    return scene


def show_continuation(scene: Scene, run: Run, pid: int, killed_at_s: float, repeated_after_s: float) -> None:
    """Who went on after the kill, and how soon, by the store's events (its clock is this machine's)."""
    events = list(run.events())
    workers = [each["data"]["worker"] for each in events if each["type"] == "run.claimed"]
    times = [each["at"] for each in events if each["type"] == "run.continued"]
    took_s = datetime.fromisoformat(times[0]).timestamp() - killed_at_s if times else WAIT_S
    scene.lines += [
        f"Process {pid} is killed. {took_s * 1000:.0f} ms later the run is continued by the process that takes its place;",
        f"{repeated_after_s * 1000:.0f} ms after the kill its request is at the shop.",
    ]
    scene.facts |= {
        "workers": workers,
        "continued_after_s": round(took_s, 3),
        "repeated_after_s": round(repeated_after_s, 3),
    }
    scene.claim("another process continued it", len(times) == 1 and len(set(workers)) == len(workers) == 2)
    scene.claim(f"nobody had to wait for the end of the lease ({LEASE_S} s)", took_s < WAIT_S)


def open_breaker(world: World) -> Scene:
    """Four failed tries open the breaker; the fifth call does not reach the network."""
    scene = Scene("A breaker opens", "The shop answers every question about its stock with status 500.")
    world.shop.fail("/stock", 500)
    runs_needed = agents.WAREHOUSE.failures // agents.STOCK_TRIES
    failed = [play(world, scene, "stock", "How many lamps are left?")[1] for _ in range(runs_needed)]
    before = len(world.shop.seen("GET", "/stock"))
    breaker = next((each for each in all_breakers(world.client) if each["name"] == "warehouse"), {})
    scene.lines.append(
        f"After {before} answers 500 the breaker 'warehouse' is {breaker.get('state')} until {breaker.get('open_until')}."
    )
    run, told = play(world, scene, "stock", "How many lamps are left?")
    after = len(world.shop.seen("GET", "/stock"))
    scene.lines.append(
        f"Requests for stock that reached the shop: {before} before that run, {after} after it."
    )
    scene.facts |= {"breaker": breaker, "stock_requests": {"before": before, "after": after}}
    scene.claim(
        f"{runs_needed} runs failed with TOOL_RETRIES",
        [code_of(each) for each in failed] == ["TOOL_RETRIES"] * runs_needed,
    )
    scene.claim(
        f"{agents.WAREHOUSE.failures} failed tries opened it",
        before == agents.WAREHOUSE.failures and breaker.get("state") == "open",
    )
    rows = [(row["status"], (row["error"] or {}).get("code"), row["tries"]) for row in run.journal()]
    scene.claim(
        "the next call ended at once with BREAKER_OPEN, without a try",
        rows == [("aborted_before_dispatch", "BREAKER_OPEN", 0)],
    )
    scene.claim("it did not reach the network", before == after)
    heard = " ".join(world.model.requests[-1].results.values())
    scene.claim(
        "the model was told that the breaker is open, and the run succeeded without the call",
        told.state == "succeeded" and "breaker warehouse is open" in heard,
    )
    return scene


def skipped_retry(world: World) -> Scene:
    """A retry that cannot end in time is not begun."""
    scene = Scene(
        "A retry is skipped, because it does not fit what is left of the run's limit (L3)",
        f"The supplier needs {SUPPLIER_DELAY_S:g} s; the tool's limit is {agents.QUOTE_LIMIT_S:g} s, that of the run"
        f" {agents.QUOTE_RUN_S:g} s.",
    )
    world.shop.slow("/quotes", SUPPLIER_DELAY_S)
    run, result = play(world, scene, "buyer", "What does a lamp cost?")
    skipped = [event for event in run.events() if event["type"] == "tool.retry_skipped"]
    data: Mapping[str, Any] = skipped[0]["data"] if skipped else {}
    needed_s, left_s = data.get("needed_s") or 0.0, data.get("left_s") or 0.0
    scene.lines.append(
        f"A retry needs {needed_s:.2f} s ({agents.QUOTE_BACKOFF_S:g} s wait, up to {agents.QUOTE_LIMIT_S:g} s for the try);"
        f" {left_s:.2f} s of {agents.QUOTE_RUN_S:g} s are left."
    )
    took_s = (
        (result.ended_at - result.started_at).total_seconds()
        if result.ended_at and result.started_at
        else 0.0
    )
    requests = [each for each in world.shop.seen("GET", "/quotes") if each.run_id == run.id]
    scene.facts |= {
        "needed_s": needed_s,
        "left_s": left_s,
        "level": data.get("level"),
        "seconds": round(took_s, 3),
    }
    scene.claim(
        "one retry was skipped, with an event that has both numbers",
        len(skipped) == 1 and 0 < left_s < needed_s,
    )
    scene.claim("what was too short is L3", data.get("level") == "run")
    scene.claim("the supplier got exactly one request", len(requests) == 1)
    scene.claim(f"the run ended failed (TOOL_RETRIES) after {took_s:.1f} s, before its {agents.QUOTE_RUN_S:g} s were over",
                code_of(result) == "TOOL_RETRIES" and took_s < agents.QUOTE_RUN_S)  # fmt: skip
    return scene


def requests_for(world: World, text: str) -> int:
    """How many requests the model got for runs with this input."""
    return sum(asked_for(each) == text for each in world.model.requests)


def order_requests(world: World, run: Run) -> list[ShopRequest]:
    """The requests for an order that a run has sent."""
    return [each for each in world.shop.seen("POST", "/orders") if each.run_id == run.id]


def held_request(world: World, run: Run, customer: str) -> ShopRequest:
    """The request whose order is made and whose answer the shop holds. Raises WaitTimeout."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        if any(each["customer"] == customer for each in world.shop.orders):
            return order_requests(world, run)[0]
        time.sleep(LOOK_S)
    raise WaitTimeout(f"Run {run.id} has ordered nothing within {WAIT_S:g} s.")


def answer_names(result: Result, members: list[dict[str, Any]]) -> bool:
    """Whether the run succeeded and its answer names the only member of a collection of the shop."""
    return result.state == "succeeded" and len(members) == 1 and members[0]["id"] in str(result.output)

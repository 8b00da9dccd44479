"""What the runs of the soak do, who decides about those that wait for a person, and how many have come to rest."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import redis

from makegood import Client, Conflict, MakegoodError, StoreUnreachable
from makegood.store import keys
from makegood.store.ops.reads import read_counters
from makegood.store.states import TERMINAL, State
from support.crash import AGENT, Field
from support.made_good import ANEW, CALM, MEND

DEAD = {"POISON", "CRASHED"}
"""Reviews of runs and cleanups that lost every process: here it was not their fault."""

LOOK_S = 0.3
"""How often the operator looks at the runs that may come to a person."""

REVIEW = str(State.REVIEW)


@dataclass(frozen=True, slots=True)
class Planned:
    """A run: its kind, agent, calls by step, and the states in which it comes to rest.

    `struck`: those in which it may, too, when its worker was lost. A call that hangs once does not in another process; one
    that may not be repeated ends its run; what came after an outcome and was not recorded (a step that was too late, a bug)
    is not known to the next worker.
    """

    kind: str
    agent: str
    plan: tuple[tuple[str, ...], ...]
    ends: frozenset[str]
    struck: frozenset[str] = frozenset()

    def allows(self, state: str, crashes: int) -> bool:
        """Whether such a run may come to rest so."""
        return state in self.ends or (crashes > 0 and state in self.struck)


def kind(name: str, agent: str, ends: str, *steps: str, struck: str = "") -> Planned:
    """`"flight hotel"` is a step with two calls."""
    plan = tuple(tuple(step.split()) for step in steps)
    return Planned(name, agent, plan, frozenset(ends.split()), frozenset(struck.split()))


SHARES = {
    kind("trip", CALM, "succeeded", "flight hotel", "flight"): 6,
    kind("late", MEND, "timed_out", "flight hotel", "hang", struck="succeeded"): 6,
    kind("anew", ANEW, "succeeded timed_out", "flight hotel", "hang_first", "flight"): 5,
    kind("found", MEND, "timed_out", "flight found", struck="succeeded failed"): 6,
    kind("again", MEND, "timed_out", "hotel again", struck="succeeded"): 6,
    kind("missed", MEND, "timed_out", "flight missed", struck="succeeded failed"): 4,
    kind("lost", MEND, f"{REVIEW} timed_out", "flight lost"): 4,
    kind("note", CALM, "failed", "note flight", "give_up", struck="succeeded"): 5,
    kind("clutch", CALM, "succeeded", "clutch flight"): 5,
    kind("stuck", CALM, "failed", "flight stuck", "give_up", struck="succeeded"): 3,
    kind("mail", CALM, REVIEW, "mail flight", "give_up", struck="succeeded"): 2,
}
"""Of a hundred runs."""

CHARGES = 3
"""Of a hundred: a plain run whose last call must not be repeated; lost in flight, a person is asked about it."""


def a_deck(rnd: random.Random) -> Iterator[Planned]:
    """Runs without end: every hundred has each kind as often as it should, in random order."""
    while True:
        cards: list[Planned | None] = [each for each, share in SHARES.items() for _ in range(share)]
        cards += [None] * (100 - len(cards))
        rnd.shuffle(cards)
        charges = CHARGES
        for card in cards:
            if card is None:
                yield plain(rnd, charge=charges > 0)
                charges -= 1
            else:
                yield card


def plain(rnd: random.Random, *, charge: bool) -> Planned:
    """One to three steps of one to three calls, under keep."""
    tools = ("ticket", "late_ticket", "sync_ticket", "look")
    plan = [tuple(rnd.choices(tools, k=rnd.randint(1, 3))) for _ in range(rnd.randint(1, 3))]
    if charge:
        plan[-1] = ("charge",)
    struck = frozenset({REVIEW} if charge else ())
    return Planned("charge" if charge else "plain", AGENT, tuple(plan), frozenset({"succeeded"}), struck)


@dataclass
class Operator:
    """Somebody who finds out why a compensation failed, mends it and lets the cleanup be tried again.

    Attributes:
        pending: runs that will come to a person and have not ended yet, with what they do.
        crashes: how many losses each had seen when it first came to a person.
    """

    ground: Field
    pending: dict[str, dict[str, Any]] = field(default_factory=dict)
    crashes: dict[str, int] = field(default_factory=dict)
    retried: int = 0

    def work(self, finished: threading.Event) -> None:
        """Look at each now and then."""
        while not finished.wait(LOOK_S):
            for run_id, task in list(self.pending.items()):
                with suppress(StoreUnreachable):
                    self.look_at(run_id, task)

    def look_at(self, run_id: str, task: dict[str, Any]) -> None:
        """Mend, and retry; what has ended needs nothing more."""
        result = self.ground.client.get(run_id).result()
        if result.state in TERMINAL:
            del self.pending[run_id]
        if result.state != State.REVIEW:
            return
        for number, step in enumerate(task["plan"]):
            for place, tool in enumerate(step):
                if tool == "stuck":
                    (self.ground.plan.folder / f"{task['name']}.{number}.{place}.open").touch()
        self.retry(run_id, result.crashes, "the strike is over")

    def retry(self, run_id: str, crashes: int, reason: str) -> None:
        """Let its cleanup be tried again."""
        self.crashes.setdefault(run_id, crashes)
        with suppress(Conflict):  # the answer to an earlier one was lost
            self.ground.client.retry_cleanup(run_id, actor="operator", reason=reason)
            self.retried += 1

    def has_work(self) -> bool:
        """Whether something is still to be decided once all runs have come to rest."""
        try:
            return bool(self.pending) or self.retry_dead() > 0
        except StoreUnreachable:
            return True

    def retry_dead(self) -> int:
        """Those that were struck once too often are tried again; returns how many."""
        client = self.ground.client
        dead = [each["run_id"] for each in client.reviews(limit=100_000) if each["code"] in DEAD]
        for run_id in dead:
            self.retry(run_id, client.get(run_id).result().crashes, "nobody strikes any more")
        return len(dead)


class Settled:
    """How many runs have ended or wait for a person."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._raw = redis.Redis.from_url(client.url)

    def count(self) -> int:
        """0 while the store is away."""
        with suppress(MakegoodError, redis.RedisError):
            found = self._client.store.do_all([read_counters(prefix) for prefix in keys.all_prefixes()])
            ended = sum(
                n for each in found for name, n in each.items() if name.startswith("runs_finished_total")
            )
            pipeline = self._raw.pipeline(transaction=False)
            for prefix in keys.all_prefixes():
                for agent in (AGENT, MEND, ANEW, CALM):
                    pipeline.zcard(keys.state_index(prefix, agent, REVIEW))
            return int(ended + sum(pipeline.execute()))
        return 0

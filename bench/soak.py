"""Many runs under seeded random faults, and one question at the end: is anything lost, doubled or left over?

    python -m bench.soak --runs 10000 --seed 7

Processes for runs and for cleanups are killed and frozen, at random and at every fault point in turn, their supervisors
are killed, connections to store and broker are cut, and both servers are killed once and come back with their data. Half
of the runs leave something behind (`bench.soak_runs`); an operator retries cleanups that failed. Exit code 0 means that
`assert_made_good` of the crash tests found nothing, that a kill landed on every fault point, and that nearly all runs
ended as planned.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from bench.report import Outcome, machine
from bench.soak_runs import Operator, Planned, Settled, a_deck
from makegood import BrokerUnreachable, StoreUnreachable
from makegood.store.faults import POINTS
from makegood.testing import Behaviour, RequestRecord
from makegood.workers.embedded import EmbeddedServer
from support.crash import Field, Worker, open_field, play, the_nursery
from support.gate import Gate
from support.made_good import CLEANUP_AGENTS, assert_made_good

LEASE_S = 3
IN_FLIGHT = 150

PAUSE_S = (0.2, 1.6)
"""Between two faults."""

IDLE_S = 120.0
"""So long may nothing end before the soak gives up."""

SAY_S = 10.0
"""Between two signs of life."""

WEIGHTS = {
    "kill_process": 4,
    "kill_at_point": 8,
    "freeze_process": 2,
    "kill_supervisor": 1,
    "cut_store": 6,
    "cut_broker": 2,
}
FIRST_NTH = 4
"""At the start every point is planned to be struck, at one of its first passings."""


@dataclass
class Soak:
    """One soak: where it takes place, and what was done to it."""

    ground: Field
    stores: tuple[EmbeddedServer, EmbeddedServer]
    gates: tuple[Gate, Gate]
    runs: int
    rnd: random.Random
    planned: dict[str, Planned] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    landed: Counter[str] = field(default_factory=Counter)
    workers: list[Worker] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    operator: Operator = field(init=False)
    settled: Settled = field(init=False)

    def __post_init__(self) -> None:
        self.operator = Operator(self.ground)
        self.settled = Settled(self.ground.client)
        self._points = self._in_turn()

    # --- load -----------------------------------------------------------------------------------------------------

    def enqueue_all(self) -> None:
        """Enqueue everything, never more than so many ahead."""
        deck = a_deck(random.Random(self.rnd.random()))
        for number in range(self.runs):
            while number - self.settled.count() > IN_FLIGHT and not self.over.is_set():
                time.sleep(0.05)
            planned = next(deck)
            task = {"name": f"s{number}", "plan": planned.plan}
            run_id = self.enqueue(planned.agent, task, f"s{number}")
            self.ground.tasks[run_id] = task
            self.planned[run_id] = planned
            if planned.kind == "stuck":
                self.operator.pending[run_id] = task

    def enqueue(self, agent: str, task: dict[str, Any], key: str) -> str:
        """What the errors tell a producer to do: the same again."""
        while True:
            try:
                return self.ground.client.enqueue(agent, task, key=key).id
            except BrokerUnreachable:
                self.done["enqueue: broker away"] += 1
            except StoreUnreachable:
                self.done["enqueue: store away"] += 1
            time.sleep(0.05)

    # --- faults ---------------------------------------------------------------------------------------------------

    def strike_until_over(self) -> None:
        """Faults at random moments, and each server's death once."""
        servers_at = {self.runs // 3: self.kill_store, 2 * self.runs // 3: self.kill_broker}
        while not self.over.wait(self.rnd.uniform(*PAUSE_S)):
            name = self.rnd.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            act: Callable[[], None] = getattr(self, name)
            act()
            self.done[name] += 1
            for due in [each for each in servers_at if self.settled.count() >= each]:
                servers_at.pop(due)()

    def a_process(self) -> int | None:
        """A random worker process."""
        found = [pid for worker in self.workers for pid in worker.children()]
        return self.rnd.choice(sorted(found)) if found else None

    def kill_process(self) -> None:
        """SIGKILL of a worker process."""
        signal_to(self.a_process(), signal.SIGKILL)

    def kill_at_point(self) -> None:
        """Plan the death of whoever passes the next point whose last one has come true."""
        for _ in POINTS:
            point = next(self._points)
            if not self.waits(point):
                self.plan_kill(point, 1)
                return

    def plan_kill(self, point: str, nth: int) -> None:
        """SIGKILL at the nth passing from now on; counts the one that was planned before."""
        self.landed[point] += self.ground.plan.fired(point) is not None
        self.ground.plan.set(point, "kill", nth=nth)

    def waits(self, point: str) -> bool:
        """Whether a planned kill has not happened yet."""
        return (self.ground.plan.folder / f"{point}.trap").exists()

    def _in_turn(self) -> Iterator[str]:
        while True:
            yield from sorted(POINTS)

    def freeze_process(self) -> None:
        """SIGSTOP of a worker process; its supervisor finds out."""
        signal_to(self.a_process(), signal.SIGSTOP)

    def kill_supervisor(self) -> None:
        """SIGKILL of a whole worker; another one is started in its place."""
        place = self.rnd.randrange(len(self.workers))
        signal_to(self.workers[place].pid, signal.SIGKILL)
        self.workers[place] = self.start_worker()

    def cut_store(self) -> None:
        """Reset every connection between workers and store."""
        self.gates[0].cut()

    def cut_broker(self) -> None:
        """Reset every connection between workers and broker."""
        self.gates[1].cut()

    def kill_store(self) -> None:
        """SIGKILL of the store, which comes back with its data."""
        restart(self.stores[0])
        self.done["kill_store"] += 1

    def kill_broker(self) -> None:
        """SIGKILL of the broker."""
        restart(self.stores[1])
        self.done["kill_broker"] += 1

    def stop_striking(self) -> None:
        """No further fault; those that are planned and did not happen are called off."""
        self.over.set()
        for trap in self.ground.plan.folder.glob("*.trap"):
            trap.unlink(missing_ok=True)

    # --- all of it ------------------------------------------------------------------------------------------------

    def start_worker(self) -> Worker:
        """A worker with two processes for runs and one for cleanups, behind the gates."""
        return self.ground.worker(
            2,
            cleaners=1,
            agents=CLEANUP_AGENTS,
            constants={"workers.supervisor.RESTART_MAX_S": 0.2},
            lease_s=LEASE_S,
            redis_url=self.gates[0].url,
            broker_url=self.gates[1].url,
            log_level="ERROR",
        )

    def run(self) -> None:
        """Load and faults until every run has ended or waits for a person, then the check."""
        for point in sorted(POINTS):
            self.plan_kill(point, self.rnd.randint(1, FIRST_NTH))
        self.workers = [self.start_worker(), self.start_worker()]
        for worker in self.workers:
            worker.ready()
        work = (self.enqueue_all, self.strike_until_over, lambda: self.operator.work(self.finished))
        threads = [threading.Thread(target=each) for each in work]
        for thread in threads:
            thread.start()
        try:
            self.await_ends()
        finally:
            self.stop_striking()
            self.finished.set()
            for thread in threads:
                thread.join()
        for point in POINTS:
            self.landed[point] += self.ground.plan.fired(point) is not None
        assert_made_good(self.ground, crashes=self.operator.crashes)
        missed = sorted(point for point in POINTS if not self.landed[point])
        assert not missed, f"no fault has landed on {', '.join(missed)}"

    def await_ends(self) -> None:
        """Wait for the last run; the faults end when few runs are left, so that the last ones are not struck for ever."""
        last, since_s = -1, time.monotonic()
        began_s = said_s = since_s
        while (ended := self.settled.count()) < self.runs or self.operator.has_work():
            now_s = time.monotonic()
            if ended != last:
                last, since_s = ended, now_s
            if ended >= self.runs * 0.97 and not self.over.is_set():
                self.stop_striking()
            if now_s - since_s > IDLE_S:
                raise AssertionError(f"nothing has ended for {IDLE_S:g} s; {ended} of {self.runs} have")
            if now_s - said_s > SAY_S:
                said_s = now_s
                print(f"  {ended} after {now_s - began_s:.0f} s", flush=True)
            time.sleep(0.1)


def slow_play(request: RequestRecord) -> Behaviour:
    """The scripted model, with a little time to be struck in."""
    reply = play(request)
    object.__setattr__(reply, "delay_s", 0.02 + 0.06 * random.random())
    return reply


def signal_to(pid: int | None, number: int) -> None:
    """Send a signal to a process that may be gone."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def restart(server: EmbeddedServer) -> None:
    """SIGKILL, and start again with the data."""
    signal_to(server.pid, signal.SIGKILL)
    server.wait(timeout_s=30)
    server.start()


def soak(runs: int, seed: int, folder: Path) -> int:
    """Run one soak and print what happened; returns how many runs did not end as planned. Raises AssertionError."""
    print(f"soak: {runs} runs, seed {seed}", flush=True)
    with ExitStack() as stack:
        servers = [EmbeddedServer(folder / name, ephemeral=False) for name in ("store", "broker")]
        store, broker = (stack.enter_context(server) for server in servers)
        gates = Gate(store.url), Gate(broker.url)
        for gate in gates:
            stack.callback(gate.close)
        ground = open_field(the_nursery(), folder / "field", store.url, broker.url, slow_play)
        stack.callback(ground.close)
        made = Soak(ground, (store, broker), gates, runs, random.Random(seed))
        began_s = time.monotonic()
        try:
            made.run()
        finally:
            summary(made, time.monotonic() - began_s)
        return report_ends(made)


def summary(made: Soak, took_s: float) -> None:
    """What was done to it, how often each fault point was passed, and how many kills landed on it."""
    print(f"took {took_s:.1f} s; faults: {dict(sorted(made.done.items()))}")
    print(f"cleanups that the operator let be tried again: {made.operator.retried}")
    plan = made.ground.plan
    print("fault points: kills that landed / times passed")
    for point in sorted(POINTS):
        print(f"  {point}: {made.landed[point]} / {plan.count(point)}")
    sys.stdout.flush()


def report_ends(made: Soak) -> int:
    """How the runs ended, by what was planned."""
    results = [made.ground.client.get(run_id).result() for run_id in made.ground.tasks]
    ends: dict[str, Counter[str]] = {}
    odd = []
    for result in results:
        planned = made.planned[result.run_id]
        ends.setdefault(planned.kind, Counter())[result.state] += 1
        if not planned.allows(result.state, result.crashes):
            odd.append((planned.kind, result))
    for kind, states in sorted(ends.items()):
        print(f"  {kind}: {dict(states)}")
    print(f"losses seen by runs: {dict(sorted(Counter(result.crashes for result in results).items()))}")
    shop = made.ground.shop
    print(f"requests to the shop: {len(shop.requests)}, to the model: {len(made.ground.model.requests)}")
    for kind, result in odd[:5]:
        print(f"not as planned ({kind}): {result}")
    print(
        "clean: none lost, none doubled, every unknown outcome settled or in review, each undone once, no lock left, "
        "histories balanced, counters equal a recount",
        flush=True,
    )
    return len(odd)


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--no-machine", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="makegood-soak-") as folder:
        odd = soak(options.runs, seed, Path(folder))
    met = odd <= options.runs // 100
    if options.json is not None:
        outcome = Outcome("soak", f"{options.runs} runs under random faults, seed {seed}; all clean.")
        outcome.add("runs that did not end as planned", odd, "", "<= 1 %", met)
        facts = {} if options.no_machine else machine()
        options.json.write_text(json.dumps({"machine": facts, "outcomes": [asdict(outcome)]}, indent=1))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

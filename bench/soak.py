"""Many runs under seeded random faults, and one question at the end: is anything lost, doubled or left over?

    python -m bench.soak --runs 10000 --seed 7

Workers are killed and frozen, their supervisors are killed, connections to store and broker are cut, and both servers
are killed once and come back with their data. Every run makes tickets in a shop that counts what each key and each
name did. Exit code 0 means that `assert_clean` of the crash tests found nothing.
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
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from bench.report import Outcome, machine
from makegood import BrokerUnreachable, StoreUnreachable
from makegood.store.keys import all_prefixes
from makegood.store.ops.reads import read_counters
from makegood.testing import Behaviour, RequestRecord
from makegood.workers.embedded import EmbeddedServer
from support.crash import AGENT, Field, Worker, assert_clean, open_field, play, the_nursery
from support.gate import Gate

LEASE_S = 3
IN_FLIGHT = 150
CHARGES = 0.05
"""Share of runs with a tool that must not be repeated; these may end as failed, with an unknown effect."""

PAUSE_S = (0.1, 0.8)
"""Between two faults."""

IDLE_S = 120.0
"""So long may nothing end before the soak gives up."""

WEIGHTS = {"kill_process": 8, "freeze_process": 2, "kill_supervisor": 1, "cut_store": 6, "cut_broker": 2}


@dataclass
class Soak:
    """One soak: where it takes place, and what was done to it."""

    ground: Field
    stores: tuple[EmbeddedServer, EmbeddedServer]
    gates: tuple[Gate, Gate]
    runs: int
    rnd: random.Random
    done: Counter[str] = field(default_factory=Counter)
    workers: list[Worker] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    # --- load -----------------------------------------------------------------------------------------------------

    def enqueue_all(self) -> None:
        """Enqueue everything, never more than so many ahead."""
        rnd = random.Random(self.rnd.random())
        for number in range(self.runs):
            while number - self.finished() > IN_FLIGHT and not self.over.is_set():
                time.sleep(0.05)
            task = a_task(rnd, f"s{number}")
            self.ground.tasks[self.enqueue(task, f"s{number}")] = task

    def enqueue(self, task: dict[str, Any], key: str) -> str:
        """What the errors tell a producer to do: the same again."""
        while True:
            try:
                return self.ground.client.enqueue(AGENT, task, key=key).id
            except BrokerUnreachable:
                self.done["enqueue: broker away"] += 1
            except StoreUnreachable:
                self.done["enqueue: store away"] += 1
            time.sleep(0.05)

    def finished(self) -> int:
        """How many runs have ended."""
        store = self.ground.client.store
        with suppress(StoreUnreachable):
            found = store.do_all([read_counters(prefix) for prefix in all_prefixes()])
            return sum(
                n for each in found for name, n in each.items() if name.startswith("runs_finished_total")
            )
        return 0

    # --- faults ---------------------------------------------------------------------------------------------------

    def strike_until_over(self) -> None:
        """Faults at random moments, and each server's death once."""
        servers_at = {self.runs // 3: self.kill_store, 2 * self.runs // 3: self.kill_broker}
        while not self.over.wait(self.rnd.uniform(*PAUSE_S)):
            name = self.rnd.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            act: Callable[[], None] = getattr(self, name)
            act()
            self.done[name] += 1
            for due in [each for each in servers_at if self.finished() >= each]:
                servers_at.pop(due)()

    def a_process(self) -> int | None:
        """A random worker process."""
        found = [pid for worker in self.workers for pid in worker.children()]
        return self.rnd.choice(sorted(found)) if found else None

    def kill_process(self) -> None:
        """SIGKILL of a worker process."""
        signal_to(self.a_process(), signal.SIGKILL)

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

    # --- all of it ------------------------------------------------------------------------------------------------

    def start_worker(self) -> Worker:
        """A worker with two processes behind the gates."""
        return self.ground.worker(
            2,
            constants={"workers.supervisor.RESTART_MAX_S": 0.2},
            lease_s=LEASE_S,
            redis_url=self.gates[0].url,
            broker_url=self.gates[1].url,
            log_level="ERROR",
        )

    def run(self) -> None:
        """Load and faults until every run has ended, then the check."""
        self.workers = [self.start_worker(), self.start_worker()]
        for worker in self.workers:
            worker.ready()
        threads = [threading.Thread(target=work) for work in (self.enqueue_all, self.strike_until_over)]
        for thread in threads:
            thread.start()
        self.await_ends()
        for thread in threads:
            thread.join()
        assert_clean(self.ground.client, self.ground.shop, self.ground.model, self.ground.tasks)

    def await_ends(self) -> None:
        """Wait for the last run; the faults end when few runs are left, so that the last ones are not struck for ever."""
        last, since_s = -1, time.monotonic()
        while (ended := self.finished()) < self.runs:
            if ended != last:
                last, since_s = ended, time.monotonic()
            if ended >= self.runs * 0.97:
                self.over.set()
            if time.monotonic() - since_s > IDLE_S:
                self.over.set()
                raise AssertionError(f"nothing has ended for {IDLE_S:g} s; {ended} of {self.runs} have")
            time.sleep(0.1)
        self.over.set()


def a_task(rnd: random.Random, name: str) -> dict[str, Any]:
    """One to three steps of one to three calls; now and then one that must not be repeated."""
    tools = ("ticket", "late_ticket", "sync_ticket", "look")
    plan = [[rnd.choice(tools) for _ in range(rnd.randint(1, 3))] for _ in range(rnd.randint(1, 3))]
    if rnd.random() < CHARGES:
        plan[-1] = ["charge"]
    return {"name": name, "plan": plan}


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
    """Run one soak and print what happened; returns how many runs did not succeed. Raises AssertionError."""
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
    """What was done to it, and how often each fault point was passed."""
    print(f"took {took_s:.1f} s; faults: {dict(sorted(made.done.items()))}")
    plan = made.ground.plan
    points = sorted(path.stem for path in plan.folder.glob("*.count"))
    print(f"fault points passed: { {point: plan.count(point) for point in points} }", flush=True)


def report_ends(made: Soak) -> int:
    """How the runs ended."""
    results = [made.ground.client.get(run_id).result() for run_id in made.ground.tasks]
    ends = Counter((result.state, result.error.code if result.error else "") for result in results)
    print(f"ends: { {' '.join(end).strip(): count for end, count in ends.items()} }")
    print(
        f"worker losses seen by runs: {dict(sorted(Counter(result.crashes for result in results).items()))}"
    )
    print(
        f"tickets: {len(made.ground.shop.tickets)}, requests for them: {len(made.ground.shop.requests)}, model requests: {len(made.ground.model.requests)}"
    )
    plain = [
        r
        for r in results
        if r.state != "succeeded" and "charge" not in str(made.ground.tasks[r.run_id]["plan"])
    ]
    for result in plain[:5]:
        print(f"not succeeded: {result}")
    print("clean: none lost, none doubled, histories balanced, counters equal a recount", flush=True)
    return len(plain)


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
        failed = soak(options.runs, seed, Path(folder))
    if options.json is not None:
        met = failed <= options.runs // 100
        outcome = Outcome("soak", f"{options.runs} runs under random faults, seed {seed}; all clean.")
        outcome.add("runs that had no reason to fail and did", failed, "", "<= 1 %", met)
        facts = {} if options.no_machine else machine()
        options.json.write_text(json.dumps({"machine": facts, "outcomes": [asdict(outcome)]}, indent=1))
    return 0 if failed <= options.runs // 100 else 1


if __name__ == "__main__":
    sys.exit(main())

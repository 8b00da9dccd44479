"""Real workers on real servers, and the one question at the end of every crash test: is everything clean?

`field` gives a test a store, a shop, a scripted model, a plan of faults and workers. A run's input says what it does:
`{"name": "r1", "plan": [["ticket"], ["ticket", "look"]]}` is two steps with one and two calls, then an answer.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from makegood import Client, Result
from makegood.store import keys
from makegood.store.states import TERMINAL
from makegood.tasks.client import Run
from makegood.tasks.wakeup import CLEANUP_QUEUE, RUNS_QUEUE
from makegood.testing import Behaviour, Provider, Reply, RequestRecord
from makegood.testing.faults import FaultPlan
from makegood.testing.shop import Shop
from support.engine import assert_balanced, eventually
from support.recount import assert_counts, event_counters, series_counters

PATIENCE_S = 60.0
"""Bound of every wait; many times what is needed."""

AGENT = "crash"
AGENTS_DIR = Path(__file__).parent.parent / "crash"
FINAL = {"succeeded", "failed", "unknown", "aborted_before_dispatch"}


# --- what runs do ---------------------------------------------------------------------------------------------------


def asks(*steps: Sequence[str], name: str) -> dict[str, Any]:
    """The input of a run that calls these tools, step by step."""
    return {"name": name, "plan": [list(step) for step in steps]}


def titles(task: dict[str, Any]) -> list[str]:
    """The tickets that a run has to make."""
    makes = ("ticket", "late_ticket", "sync_ticket", "boxed_ticket", "charge")
    steps = enumerate(task["plan"])
    return [f"{task['name']}.{n}.{i}" for n, step in steps for i, tool in enumerate(step) if tool in makes]


def place_of(request: RequestRecord) -> tuple[dict[str, Any], int]:
    """Whose request it is, and for which step (from 0)."""
    task = next(json.loads(each["content"]) for each in request.messages if each["role"] == "user")
    return task, sum(1 for each in request.messages if each.get("tool_calls"))


def play(request: RequestRecord) -> Behaviour:
    """The model: the calls of the step that is next, then an answer. The same history gets the same reply."""
    task, step = place_of(request)
    if step == len(task["plan"]):
        return Reply(f"done {task['name']}")
    calls = [
        (tool, {"name": f"{task['name']}.{step}.{i}"}, f"call_{step}_{i}")
        for i, tool in enumerate(task["plan"][step])
    ]
    return Reply(tool_calls=calls)


# --- workers --------------------------------------------------------------------------------------------------------


class Nursery:
    """Starts workers by forking a process that has everything imported."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            bufsize=0,
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._lock = threading.Lock()
        self.codes: dict[int, int] = {}
        threading.Thread(target=self._listen, name="nursery", daemon=True).start()
        self._answers.get(timeout=120)

    def start(self, order: dict[str, Any]) -> int:
        """Start what is ordered; returns its pid."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            return int(self._answers.get(timeout=PATIENCE_S)["started"])

    def close(self) -> None:
        """End it, and with it everything that still runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "ended" in said:
                self.codes[said["ended"]] = said["code"]
            else:
                self._answers.put(said)


@dataclass
class Worker:
    """A started `makegood worker`, or a lone worker process."""

    pid: int
    nursery: Nursery
    log_path: Path
    is_ready: Callable[[], bool]

    @property
    def log(self) -> str:
        """What it has written."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def code(self) -> int | None:
        """Its exit code once it has ended."""
        return self.nursery.codes.get(self.pid)

    def ready(self) -> Worker:
        """Wait until it consumes."""
        eventually(lambda: self.is_ready() or self.code is not None, "the worker is ready", PATIENCE_S)
        assert self.code is None, f"the worker ended with {self.code}:\n{self.log}"
        return self

    def children(self) -> list[int]:
        """The pids of its processes."""
        with suppress(psutil.NoSuchProcess):
            return [
                each.pid
                for each in psutil.Process(self.pid).children()
                if each.status() != psutil.STATUS_ZOMBIE
            ]
        return []

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Its exit code when it ends."""
        eventually(lambda: self.code is not None, f"process {self.pid} ends; its log:\n{self.log}", within_s)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        """SIGKILL, and wait until it and its processes are gone."""
        below = self.children()
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.wait()
        eventually(lambda: not any(alive(pid) for pid in below), "its processes die with it", PATIENCE_S)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# --- the field ------------------------------------------------------------------------------------------------------


@dataclass
class Field:
    """Where crash tests take place."""

    nursery: Nursery
    folder: Path
    url: str
    broker_url: str
    client: Client
    shop: Shop
    model: Provider
    plan: FaultPlan
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)

    def env(self, **settings: Any) -> dict[str, str]:
        """The environment of a worker: `lease_s=2` is MAKEGOOD_LEASE_S=2."""
        chosen = {
            "agents": "crash_agents",
            "redis_url": self.url,
            "broker_url": self.broker_url,
            "loop_lag_ms": 10_000,
            "grace_s": 20,
            **settings,
        }
        named = {f"MAKEGOOD_{name.upper()}": str(value) for name, value in chosen.items()}
        return {
            **named,
            "SHOP_URL": self.shop.url,
            "MODEL_URL": self.model.url,
            "FAULTS": str(self.plan.folder),
        }

    def worker(
        self,
        processes: int = 1,
        *,
        cleaners: int = 0,
        concurrency: int = 20,
        constants: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> Worker:
        """Start a supervised worker with this many processes for runs and for cleanups.

        `constants` are set by their names below makegood.
        """
        log_path = self.folder / f"worker-{len(self.workers)}.log"
        order = {
            "kind": "supervisor",
            "slots": [
                *([RUNS_QUEUE, concurrency, number] for number in range(processes)),
                *([CLEANUP_QUEUE, concurrency, number] for number in range(cleaners)),
            ],
            "constants": dict(constants or {}),
            "env": self.env(**settings),
            "log": str(log_path),
            "path": [str(AGENTS_DIR)],
        }
        pid = self.nursery.start(order)
        worker = Worker(pid, self.nursery, log_path, lambda: "ready queues" in worker.log)
        self.workers.append(worker)
        return worker

    def process(self, *, concurrency: int = 20, **settings: Any) -> Worker:
        """Start a worker process without a supervisor (`python -m makegood.workers.process`)."""
        number = len(self.workers)
        log_path, pulse = self.folder / f"process-{number}.log", self.folder / f"process-{number}.pulse"
        order = {
            "kind": "process",
            "constants": {},
            "queue": RUNS_QUEUE,
            "concurrency": concurrency,
            "boot_id": f"lone{number}",
            "pulse": str(pulse),
            "env": self.env(**settings),
            "log": str(log_path),
            "path": [str(AGENTS_DIR)],
        }
        pid = self.nursery.start(order)
        worker = Worker(pid, self.nursery, log_path, lambda: pulse.exists() and b"r" in pulse.read_bytes())
        self.workers.append(worker)
        return worker

    def enqueue(
        self, *steps: Sequence[str], name: str | None = None, agent: str = AGENT, **options: Any
    ) -> Run:
        """Enqueue a run that calls these tools, step by step."""
        task = asks(*steps, name=name or f"r{len(self.runs)}")
        run = self.client.enqueue(agent, task, **options)
        self.tasks[run.id] = task
        self.runs.append(run)
        return run

    def requests_for(self, run: Run) -> Counter[int]:
        """How often the model was asked for each step of a run."""
        name = self.tasks[run.id]["name"]
        places = [place_of(request) for request in self.model.requests]
        return Counter(step for task, step in places if task["name"] == name)

    def assert_clean(self, *, only: Iterable[str] = ("succeeded",)) -> None:
        """Everything that was enqueued ended in one of these states, and nothing is lost, doubled or left over."""
        results = [run.wait(PATIENCE_S) for run in self.runs]
        states = Counter(result.state for result in results)
        assert set(states) <= set(only), [result for result in results if result.state not in set(only)]
        assert_clean(self.client, self.shop, self.model, self.tasks)

    def close(self) -> None:
        """Kill what still runs, stop the servers."""
        for worker in self.workers:
            if worker.code is None:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
        for worker in self.workers:
            worker.wait()
        self.client.close()
        self.model.stop()
        self.shop.stop()

    def logs(self) -> str:
        """What all workers have written."""
        return "\n".join(f"--- {each.log_path.name} (code {each.code})\n{each.log}" for each in self.workers)


def assert_clean(
    client: Client,
    shop: Shop,
    model: Provider,
    tasks: dict[str, dict[str, Any]],
    *,
    within_s: float = PATIENCE_S,
) -> None:
    """Every run has ended, no effect is lost or doubled, every history is balanced, and all counts are right."""
    results = {run_id: client.get(run_id).wait(within_s) for run_id in tasks}
    assert all(result.state in TERMINAL for result in results.values())
    assert_effects(shop, tasks, results)
    for request in model.requests:
        assert_balanced(request.messages)
    assert_store(client, tasks)


def assert_effects(shop: Shop, tasks: dict[str, dict[str, Any]], results: dict[str, Result]) -> None:
    """A run that succeeded has made each of its tickets once; no other has made one twice."""
    made = Counter(ticket["title"] for ticket in shop.tickets)
    assert not [name for name, count in made.items() if count > 1], f"doubled effects: {made.most_common(5)}"
    keys_of: dict[str, set[str]] = {}
    for request in shop.seen("POST", "/tickets"):
        if request.body is not None:  # else its sender died in the middle of it, and it had no effect
            keys_of.setdefault(request.body["title"], set()).add(request.key)
    assert all(len(found) == 1 for found in keys_of.values()), "an effect was asked for under two keys"
    for run_id, task in tasks.items():
        if results[run_id].state == "succeeded":
            missing = [name for name in titles(task) if made[name] != 1]
            assert not missing, f"lost effects of {run_id}: {missing}"


def assert_store(client: Client, tasks: Iterable[str]) -> None:
    """The store's indexes and counters agree with a recount of its records and journals."""
    raw = redis.Redis.from_url(client.url, decode_responses=True)
    want: Counter[str] = Counter()
    series: Counter[str] = Counter()
    found: set[str] = set()
    for prefix in keys.all_prefixes():
        ids = [name.split(":run:")[1] for name in raw.scan_iter(f"{glob(prefix)}run:*", count=1000)]
        found.update(ids)
        states = {}
        for run_id in ids:
            states[run_id] = recount(client, raw, run_id, want, series)
        assert_indexes(raw, prefix, states)
    assert set(tasks) <= found, f"runs that the store does not have: {set(tasks) - found}"
    assert_counts(raw, want, series)
    raw.close()


def recount(client: Client, raw: Any, run_id: str, want: Counter[str], series: Counter[str]) -> str:
    """Check one record against its journal, and add to the counters what it stands for; returns its state."""
    record = raw.hgetall(keys.run_key(run_id))
    agent, state = record["agent"], str(record["state"])
    run = client.get(run_id)
    events = run.events()
    assert isinstance(events, list)
    rows = run.journal()
    gave_up = record.get("error_code") == "CRASHED" or state == "cancelled"
    left = {row["status"] for row in rows} - FINAL - ({"started", "planned"} if gave_up else set())
    assert not left, f"{run_id} is {state} with rows {left}"
    effects = Counter(row["status"] for row in rows if row["effect"] != "read")
    numbers = {
        name: int(record.get(name) or 0)
        for name in ("fx_committed", "fx_unknown", "fx_not_started", "fx_open", "open_calls")
    }
    assert numbers == {
        "fx_committed": effects["succeeded"],
        "fx_unknown": effects["unknown"] + effects["started"],
        "fx_not_started": effects["aborted_before_dispatch"],
        "fx_open": 0,
        "open_calls": 0,
    }, f"{run_id}: {numbers} against rows {effects}"
    assert sum(event["type"] == "run.ended" for event in events) == 1, f"{run_id} ended more than once"
    want.update(event_counters(events, rows, agent))
    journal = raw.hgetall(keys.journal_key(run_id))
    tool_of = {row["call_key"]: row["tool"] for row in rows}
    series.update(series_counters(events, record, agent, tool_of, journal))
    want[f"runs_enqueued_total|{agent}"] += 1
    want[f"runs_finished_total|{agent}|{state}"] += 1
    if int(record.get("attempt", 0)) > 1 or int(record.get("crashes", 0)) > 0:
        want[f"retried_runs_total|{agent}|{state}"] += 1
    want["recoveries_total|continued"] += sum(
        event["type"] == "run.continued" and event["data"].get("after") == "lost" for event in events
    )
    kinds = [(event["type"], event["data"].get("code")) for event in events]
    want["recoveries_total|restarted"] += kinds[:-2].count(
        ("attempt.ended", "CRASHED")
    )  # the last one is the end
    return state


def assert_indexes(raw: Any, prefix: str, states: dict[str, str]) -> None:
    """Each run stands in the gauge of its state and nowhere else; nothing waits, is held or has a time to come."""
    for name in raw.scan_iter(f"{glob(prefix)}*", count=1000):
        rest = name[len(prefix) :]
        if rest.startswith("st:"):
            state = rest.rpartition(":")[2]
            wrong = [each for each in raw.zrange(name, 0, -1) if states.get(each) != state]
            assert not wrong, f"{name} holds {wrong}"
        elif rest.startswith(("queued:", "suspects:")) or rest in ("due", "expires"):
            assert not raw.zrange(name, 0, -1), f"{name} is not empty"
        elif rest.startswith("held:"):
            assert not raw.smembers(name), f"{name} is not empty"
        elif rest == "cancels":
            assert not raw.hgetall(name), f"{name} is not empty"
    total = sum(raw.zcard(name) for name in raw.scan_iter(f"{glob(prefix)}st:*", count=1000))
    assert total == len(states), f"{prefix}: {total} places in gauges for {len(states)} runs"


def glob(prefix: str) -> str:
    """A prefix as a pattern."""
    return prefix.replace("[", "\\[")


def open_field(
    nursery: Nursery,
    folder: Path,
    url: str,
    broker_url: str,
    model: Callable[[RequestRecord], Behaviour] = play,
) -> Field:
    """A field with a shop and a model of its own."""
    (folder / "faults").mkdir(parents=True)
    client = Client(url, broker_url=broker_url)
    plan = FaultPlan(folder / "faults")
    return Field(nursery, folder, url, broker_url, client, Shop().start(), Provider(model).start(), plan)


# --- fixtures -------------------------------------------------------------------------------------------------------


@cache
def the_nursery() -> Nursery:
    """One for all folders of tests."""
    made = Nursery()
    atexit.register(made.close)
    return made


@pytest.fixture
def nursery() -> Nursery:
    """The session's nursery."""
    return the_nursery()


MakeField = Callable[..., Field]


@pytest.fixture
def make_field(nursery: Nursery, tmp_path: Path) -> Iterator[MakeField]:
    """A factory of fields on a store (and broker) of the test's choice."""
    made: list[Field] = []

    def make(url: str, broker_url: str | None = None) -> Field:
        made.append(open_field(nursery, tmp_path / f"field-{len(made)}", url, broker_url or url))
        return made[-1]

    yield make
    for each in made:
        each.close()
        print(each.logs())


@pytest.fixture
def ground(make_field: MakeField, store_url: str) -> Field:
    """A field on the session's Valkey."""
    return make_field(store_url)


__all__ = ["Field", "MakeField", "Nursery", "Worker", "alive", "asks", "assert_clean", "ground", "make_field", "nursery", "play"]  # fmt: skip

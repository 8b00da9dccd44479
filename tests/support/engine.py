"""A worker in this process: the real Runtime on a real Valkey, a scripted provider behind LiteLLM, a real HTTP server for tools.

`worker` makes such workers; wake-ups go to them through a `Pump` in place of Celery's queue. Its servers are those of
support.providers, which can be imported from here.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from makegood import Agent, Client, Result, RetryPolicy, Timeouts
from makegood.settings import Settings
from makegood.store.keys import all_prefixes
from makegood.store.ops.reads import read_counters
from makegood.tasks.client import Run
from makegood.tasks.engine.env import AlertKind
from makegood.tasks.model import litellm_setup
from makegood.tasks.model.adapter import ModelAdapter
from makegood.tasks.model.litellm_adapter import LiteLLMAdapter
from makegood.tasks.wakeup import CLEANUP_QUEUE, RUNS_QUEUE
from makegood.testing import Provider, Reply, RequestRecord
from makegood.workers.runtime import Runtime
from support.providers import MakeProvider, Shop, assert_balanced, model, shop

T = TypeVar("T")

LONG_S = 30.0
"""Bound of every wait: ten times what is needed on a slow machine, so that it only ends what hangs."""

MODEL = "openai/gpt-5-mini"


def eventually(look: Callable[[], T | None], what: str, within_s: float = LONG_S) -> T:
    """The first truthy thing that `look` sees; for what can only be seen by looking at the store."""
    until_s = time.monotonic() + within_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < until_s, f"not seen within {within_s:g} s: {what}"
        time.sleep(0.01)


def begun_anew(request: RequestRecord) -> bool:
    """Whether a request is of a later attempt: it has the message of facts."""
    return any(m["role"] == "user" and "was begun before" in m["content"] for m in request.messages)


def told(request: RequestRecord) -> dict[str, Any]:
    """The error of the newest tool result in a request."""
    error: dict[str, Any] = json.loads(request.messages[-1]["content"])["error"]
    return error


def calls(*wanted: tuple[Any, ...], text: str = "") -> Reply:
    """A reply that asks for tools: `calls(("look", {"n": 1}))`."""
    return Reply(text, tool_calls=wanted)


def make_agent(provider: Provider, *tools: Any, name: str = "a", **options: Any) -> Agent:
    """An agent of that provider under `keep`, with fast retries unless told otherwise."""
    args = {"api_base": provider.url, "api_key": "k", **options.pop("model_args", {})}
    fast = RetryPolicy(retries=5, backoff=0.01, max_backoff=0.05)
    options = {"on_failure": "keep", "retry": fast, "tool_retry": fast, **options}
    return Agent(name, options.pop("model", MODEL), tools=tools, model_args=args, **options)


def limits(**seconds: Any) -> Timeouts:
    """Timeouts that leave everything else long."""
    return Timeouts(**{"call": LONG_S, "step": LONG_S, "run": 2 * LONG_S, **seconds})


# --- the worker -----------------------------------------------------------------------------------------------------


class _Warm(LiteLLMAdapter):
    """The real adapter; its rehearsal was played once for the whole session."""

    async def warm_up(self) -> None:
        self._litellm = litellm_setup.load()

    async def aclose(self) -> None:
        """What belongs to this loop; LiteLLM closes its helpers on whichever loop used them last."""
        if self._connection is not None:
            await self._connection.aclose()
        helpers = [task for task in asyncio.all_tasks() if "LoggingWorker" in repr(task.get_coro())]
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)


class Pump:
    """Stands where Celery's queues stand: wake-ups go to one of the workers that consume, in a thread per slot.

    `on_cleaning` is told when a run is to be cleaned up: the first time, somebody has to be there for it.
    """

    def __init__(self) -> None:
        self._workers: list[tuple[Runtime, ThreadPoolExecutor]] = []
        self._held: list[tuple[str, str]] = []
        self.on_cleaning: Callable[[], None] = lambda: None
        self.sent: list[str] = []

    def wake(self, run_id: str, queue: str = RUNS_QUEUE) -> None:
        """What `Publisher.wake` does."""
        self.sent.append(run_id)
        if queue == CLEANUP_QUEUE:
            self.on_cleaning()
        taking = [pair for pair in self._workers if pair[0].queue == queue and not pair[0].takes_nothing]
        if not taking:
            self._held.append((run_id, queue))
            return
        runtime, slots = taking[0]
        slots.submit(runtime.perform, run_id)

    def queue_length(self, queue: str = RUNS_QUEUE) -> int:
        """What `Publisher.queue_length` does."""
        return sum(1 for _, name in self._held if name == queue)

    def close(self) -> None:
        """Nothing to close."""

    def attach(self, runtime: Runtime, slots: int) -> None:
        """A worker begins to consume."""
        self._workers.append((runtime, ThreadPoolExecutor(slots)))
        held, self._held = self._held, []
        for run_id, queue in held:
            self.wake(run_id, queue)

    def detach(self, runtime: Runtime) -> None:
        """A worker no longer consumes; what it handles goes on."""
        for pair in [each for each in self._workers if each[0] is runtime]:
            self._workers.remove(pair)
            pair[1].shutdown(wait=False)


@dataclass
class Workers:
    """Makes workers on one store, and the client that enqueues for them."""

    url: str
    client: Client
    pump: Pump
    runtimes: list[Runtime] = field(default_factory=list)
    cleaners: list[Runtime] = field(default_factory=list)
    served: dict[str, Agent] = field(default_factory=dict)
    cleans: bool = True
    alerts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    stuck: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    recycled: threading.Event = field(default_factory=threading.Event)
    _first: threading.Lock = field(default_factory=threading.Lock)

    def start(self, *agents: Agent, slots: int = 8, **settings: Any) -> Runtime:
        """A worker that serves these agents."""
        self.served |= {agent.name: agent for agent in agents}
        runtime = self._make({agent.name: agent for agent in agents}, RUNS_QUEUE, slots, settings)
        self.runtimes.append(runtime)
        self.pump.attach(runtime, slots)
        return runtime

    def start_cleaner(self, *, slots: int = 8, **settings: Any) -> Runtime:
        """A cleanup worker for everything that is served; the first one comes by itself when a run is to be cleaned up."""
        runtime = self._make(dict(self.served), CLEANUP_QUEUE, slots, settings)
        self.cleaners.append(runtime)
        self.pump.attach(runtime, slots)
        return runtime

    def first_cleaner(self) -> None:
        """One, unless the test wants none or there is one."""
        with self._first:
            if self.cleans and not self.cleaners:
                self.start_cleaner()

    def end(self) -> None:
        """Stop them all; from now on none comes by itself."""
        with self._first:
            self.cleans = False
        everyone = [*self.runtimes, *self.cleaners]
        for runtime in everyone:
            self.pump.detach(runtime)
        for runtime in everyone:
            runtime.stop()

    def _make(
        self, served: Mapping[str, Agent], queue: str, slots: int, settings: Mapping[str, Any]
    ) -> Runtime:
        adapter: Callable[[], ModelAdapter] = _Warm
        chosen = Settings.load(redis_url=self.url, broker_url=self.url, loop_lag_ms=60_000, **settings)
        runtime = Runtime(
            chosen,
            served,
            adapter=adapter,
            on_recycle=lambda *_: self.recycled.set(),
            queue=queue,
            slots=slots,
            on_alert=self._heard,
        )
        runtime.publisher = self.pump  # type: ignore[assignment]
        runtime.start()
        return runtime

    def _heard(self, kind: AlertKind, message: str, tags: Mapping[str, Any]) -> None:
        (self.alerts if kind == "review" else self.stuck).append((message, dict(tags)))

    def stop(self, runtime: Runtime) -> None:
        """Stop a worker in order: drain, wait for its runs, close."""
        runtime.drain()
        self.pump.detach(runtime)
        eventually(lambda: not runtime.attempts, "the worker lets go of its runs")
        self.runtimes.remove(runtime)
        runtime.stop()

    def enqueue(self, agent: Agent, value: Any = "go", **options: Any) -> Run:
        """Enqueue a run."""
        return self.client.enqueue(agent.name, value, **options)

    def run(self, agent: Agent, value: Any = "go", **options: Any) -> tuple[Result, Run]:
        """Enqueue a run (on a worker of its own if none was started) and wait for its end."""
        if not self.runtimes:
            self.start(agent)
        run = self.enqueue(agent, value, **options)
        return run.wait(LONG_S), run

    def leave(self, agent: Agent, value: Any = "go", **options: Any) -> tuple[Result, Run]:
        """Run it where nobody cleans up, until that is all that is missing: the record is what its attempt left."""
        self.cleans = False
        if not self.runtimes:
            self.start(agent)
        run = self.enqueue(agent, value, **options)
        return self.left(run), run

    def left(self, run: Run) -> Result:
        """The same for a run that is under way."""
        assert not self.cleans
        eventually(lambda: run.status() == "cleaning", "the run is to be cleaned up")
        return run.result()

    def counters(self) -> Counter[str]:
        """All counters of the store, summed over the shards."""
        total: Counter[str] = Counter()
        for prefix in all_prefixes():
            counted: dict[str, int] = self.client.store.do(read_counters(prefix))
            total.update(counted)
        return total


def events_of(run: Run, *kinds: str) -> list[dict[str, Any]]:
    """The run's events of these types, oldest first."""
    return [event for event in run.events() if event["type"] in kinds]


@pytest.fixture(scope="session")
def litellm() -> None:
    """LiteLLM, loaded and rehearsed once."""

    async def rehearse() -> None:
        adapter = LiteLLMAdapter()
        await adapter.warm_up()
        await adapter.aclose()

    asyncio.run(rehearse())


@pytest.fixture
def worker(store_url: str, litellm: None) -> Iterator[Workers]:
    """Workers in this process, on an empty store."""
    with ExitStack() as stack:
        client = stack.enter_context(Client(store_url))
        pump = Pump()
        client.publisher = pump  # type: ignore[assignment]
        workers = Workers(store_url, client, pump)
        pump.on_cleaning = workers.first_cleaner
        yield workers
        workers.end()


__all__ = ["LONG_S", "MakeProvider", "Shop", "Workers", "assert_balanced", "begun_anew", "calls", "events_of", "eventually", "make_agent", "model", "shop", "told", "worker"]  # fmt: skip

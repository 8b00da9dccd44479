"""A small world for the store's conformance suite: one server, one door to it, and runs in known places.

The suite runs over four doors: fakeredis and a real Valkey, each through the blocking and the asyncio store.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import fakeredis
import pytest
import redis

from makegood.store import keys
from makegood.store.async_store import AsyncStore
from makegood.store.ops import runs
from makegood.store.ops.breakers import server_time
from makegood.store.scripts import Op, escaped, load_script, script_names
from makegood.store.states import State
from makegood.store.sync_store import SyncStore
from support.store_ops import Held, intent, outcome

T = TypeVar("T")

AGENT = "support"
SHARD = 7
PREFIX = keys.prefix(SHARD)
DOORS = ("fake-sync", "fake-async", "valkey-sync", "valkey-async")


class Door(Protocol):
    """What both stores can do, seen from a test that is not async."""

    def do(self, op: Op[T]) -> T: ...

    def do_all(self, ops: Sequence[Op[Any]]) -> list[Any]: ...

    def close(self) -> None: ...


class AsyncDoor:
    """The asyncio store on a loop of its own."""

    def __init__(self, make: Callable[[], AsyncStore]) -> None:
        self._runner = asyncio.Runner()
        self.store = self._runner.run(_made(make))

    def do(self, op: Op[T]) -> T:
        """Execute one operation."""
        return self._runner.run(self.store.do(op))

    def do_all(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Execute operations as one pipeline."""
        return self._runner.run(self.store.do_all(ops))

    def close(self) -> None:
        """Close store and loop."""
        self._runner.run(self.store.aclose())
        self._runner.close()


class FakeLine:
    """A line to fakeredis, which answers at once."""

    def __init__(self, server: fakeredis.FakeServer) -> None:
        self._redis: Any = fakeredis.FakeRedis(server=server)

    def send(self, parts: Any, on_reply: Callable[[Any], None]) -> None:
        """Execute a command now; a script that is not known is loaded first."""
        try:
            try:
                reply = self._redis.execute_command(*escaped(parts))
            except redis.exceptions.NoScriptError:
                for name in script_names():
                    self._redis.script_load(load_script(name).source)
                reply = self._redis.execute_command(*escaped(parts))
        except redis.exceptions.ResponseError as error:
            reply = error
        except redis.exceptions.ConnectionError as error:
            reply = ConnectionError(str(error))
        on_reply(reply)

    async def aclose(self) -> None:
        """Nothing is on its way."""
        self._redis.close()


async def _made(make: Callable[[], AsyncStore]) -> AsyncStore:
    return make()


def open_door(kind: str, url: str) -> Door:
    """A door of a kind (`sync` or `async`) to the server at a URL."""
    return SyncStore(url) if kind == "sync" else AsyncDoor(lambda: AsyncStore(url))


@dataclass(slots=True)
class World:
    """One server: `door` is what is tested, `raw` looks at what it did."""

    door: Door
    raw: Any
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def do(self, op: Op[T]) -> T:
        """Execute an operation through the door."""
        return self.door.do(op)

    def op(self) -> str:
        """A fresh operation id."""
        return f"op-{next(self._numbers)}"

    # --- runs in known places -----------------------------------------------------------------------------------

    def enqueue(self, **over: Any) -> str:
        """A queued run; returns its id."""
        given: dict[str, Any] = {
            "run_id": keys.new_run_id(SHARD),
            "agent": AGENT,
            "session": None,
            "key": None,
            "body": b'"hello"',
            "input_digest": "digest-a",
            "expires_in_ms": None,
        } | over
        return self.do(runs.enqueue_run(**given)).run_id

    def try_claim(self, **over: Any) -> runs.Claim | None:
        """Claim what is next."""
        given: dict[str, Any] = {
            "shard_prefix": PREFIX,
            "nonce": f"nonce-{next(self._numbers)}",
            "worker": "worker-1",
            "agents": [AGENT],
        } | over
        return self.do(runs.claim_run(**given))

    def claim(self, **over: Any) -> Held:
        """Claim what is next; there must be something."""
        claim = self.try_claim(**over)
        assert claim is not None
        return Held(claim.run_id, claim.fence)

    def running(self, **over: Any) -> Held:
        """A run that is executed."""
        run_id = self.enqueue(**over)
        held = self.claim(agents=[over.get("agent", AGENT)])
        assert held.run_id == run_id
        return held

    def in_step(self, rows: Sequence[tuple[str, str]] = (("a", "started"), ("b", "planned"))) -> Held:
        """A run in its first step with these rows (name, status), all with effects."""
        held = self.running()
        self.do(intent(held, self.op(), rows=rows))
        return held

    def settled(self) -> Held:
        """A run whose first step has ended: one effect stands, one call never began, nothing is open."""
        held = self.in_step()
        self.do(outcome(held, self.op(), "a"))
        self.do(outcome(held, self.op(), "b", status="aborted_before_dispatch", ends=1))
        return held

    def put_in_state(self, run_id: str, state: State) -> None:
        """Move a run to a state by hand, with its gauges."""
        agent = self.raw.hget(keys.run_key(run_id), "agent").decode()
        now = self.state(run_id)
        self.raw.zrem(keys.state_index(PREFIX, agent, str(now)), run_id)
        self.raw.zadd(keys.state_index(PREFIX, agent, str(state)), {run_id: 1})
        self.raw.hset(keys.run_key(run_id), "state", str(state))

    # --- looking ------------------------------------------------------------------------------------------------

    def state(self, run_id: str) -> State:
        """The run's state; its gauges must agree: the run stands in exactly one of them."""
        record = self.record(run_id)
        state = State(record["state"])
        homes = [each for each in State if self._stands_in(record["agent"], each, run_id)]
        assert homes == [state]
        return state

    def _stands_in(self, agent: str, state: State, run_id: str) -> bool:
        return self.raw.zscore(keys.state_index(PREFIX, agent, str(state)), run_id) is not None

    def record(self, run_id: str) -> dict[str, str]:
        """The run's record."""
        return _texts(self.raw.hgetall(keys.run_key(run_id)))

    def number(self, run_id: str, name: str) -> int:
        """A number of the record; missing is 0."""
        return int(self.record(run_id).get(name, 0))

    def row(self, run_id: str, name: str) -> tuple[str, str]:
        """Status and outcome of a journal row."""
        fields = _texts(self.raw.hgetall(keys.journal_key(run_id)))
        return fields[f"{name}.s"].split("|")[0], fields.get(f"{name}.o", "")

    def events(self, run_id: str) -> list[str]:
        """Types of the run's events, oldest first."""
        return [fields[b"t"].decode() for _, fields in self.raw.xrange(keys.events_key(run_id))]

    def counters(self) -> dict[str, int]:
        """The counters of the shard."""
        return {name: int(value) for name, value in _texts(self.raw.hgetall(f"{PREFIX}counters")).items()}

    def samples(self, series: str) -> int:
        """How many durations a series of the shard holds."""
        days = [_texts(self.raw.hgetall(name)) for name in self.raw.keys(f"{PREFIX}lat:{series}:*")]
        return sum(int(value) for fields in days for name, value in fields.items() if name != "max")

    def now_ms(self) -> int:
        """The server's clock."""
        return self.do(server_time())

    def wait_until_ms(self, moment_ms: int) -> None:
        """Wait until the server's clock has passed a moment."""
        while self.now_ms() <= moment_ms:
            pass

    def dump(self) -> dict[str, Any]:
        """Everything the server holds: key → (whether it expires, content)."""
        return {name.decode(): self._content(name) for name in sorted(self.raw.keys("*"))}

    def dump_of(self, run_id: str) -> dict[str, Any]:
        """Everything that stands under the run's own names."""
        return {name: content for name, content in self.dump().items() if run_id in name}

    def _content(self, name: bytes) -> tuple[bool, Any]:
        kind = self.raw.type(name).decode()
        read: dict[str, Callable[[], Any]] = {
            "string": lambda: self.raw.get(name),
            "hash": lambda: self.raw.hgetall(name),
            "set": lambda: sorted(self.raw.smembers(name)),
            "zset": lambda: self.raw.zrange(name, 0, -1, withscores=True),
            "stream": lambda: self.raw.xrange(name),
        }
        return self.raw.ttl(name) >= 0, read[kind]()

    def shape(self) -> list[str]:
        """The dump without what differs from run to run: ids, nonces, times and durations."""
        lines = []
        for name, (expires, content) in self.dump().items():
            parts = sorted(plain_text(part) for part in (content if isinstance(content, list) else [content]))
            lines.append(f"{plain_text(name)} {expires} {parts}")
        return sorted(lines)


def plain_text(part: Any) -> str:
    """What is left of a stored value when ids, nonces, times and durations are taken out."""
    text = re.sub(r"\d\d-[0-9a-z]{26}", "RUN", repr(part))
    text = re.sub(r"(nonce|op)-\d+", r"\1", text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "TOKEN", text)
    text = re.sub(r"-?(?<!\d)\d{13}(?!\d)(-\d+|\.0)?", "TIME", text)
    text = re.sub(r"'l3_used_ms': b'\d+'", "USED", text)
    measured = r"((?:queue_wait|run_duration|recovery)_seconds(?:\|[a-z_]+)?)"
    text = re.sub(rf"{measured}\|sum(?:_ms)?': b'\d+'", r"\1 MS", text)
    text = re.sub(rf"{measured}\|(?:[\d.]+|inf)': b", r"\1 BUCKET: b", text)
    text = re.sub(r"(\}:h):\d{6}\b", r"\1:HOUR", text)
    return re.sub(r"(lat:[a-z:]+):\d{5}\b", r"\1:DAY", text)


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


@pytest.fixture(params=DOORS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """An empty server behind each of the four doors in turn."""
    server, _, kind = request.param.partition("-")
    made = fake_world(kind) if server == "fake" else real_world(kind, request.getfixturevalue("store_url"))
    yield made
    made.door.close()
    made.raw.close()


@pytest.fixture(params=["sync", "async"])
def real(request: pytest.FixtureRequest, store_url: str) -> Iterator[World]:
    """An empty Valkey behind both doors in turn."""
    made = real_world(request.param, store_url)
    yield made
    made.door.close()
    made.raw.close()


@pytest.fixture
def fake() -> Iterator[World]:
    """An empty fakeredis behind the blocking door."""
    made = fake_world("sync")
    yield made
    made.door.close()


def fake_world(kind: str) -> World:
    """A world on a fakeredis of its own."""
    server = fakeredis.FakeServer()
    raw = fakeredis.FakeRedis(server=server)
    if kind == "sync":
        return World(SyncStore("redis://fake", client=fakeredis.FakeRedis(server=server)), raw)
    return World(AsyncDoor(lambda: AsyncStore("redis://fake", line=FakeLine(server))), raw)


def real_world(kind: str, url: str) -> World:
    """A world on a real server."""
    return World(open_door(kind, url), redis.Redis.from_url(url))

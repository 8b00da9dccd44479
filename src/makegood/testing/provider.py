"""A model provider for tests: a real HTTP server on the loopback whose answers and faults are scripted.

    from makegood.testing import Provider, Reply, Stall, Status

    with Provider([Status(429, headers={"retry-after": "1"}), Reply("hello")]) as provider:
        agent = Agent(name="a", model="openai/any", model_args={"api_base": provider.url, "api_key": "k"})
        ...
        assert len(provider.requests) == 2

It speaks OpenAI's chat completions, Anthropic's messages, Gemini's generateContent and Ollama, streamed and
whole, and picks the interface from the path of the request. The script is a list of behaviours, one per
request in the order of arrival, or a function from the recorded request to a behaviour, which suits a model
that reacts to what it is told. The server has a thread and an event loop of its own, so it serves synchronous
tests and tests with a loop alike, and does not stop when the loop under test does.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import unquote

from makegood.testing.provider_behaviours import Behaviour, Reply, Status
from makegood.testing.provider_plans import End, Pause, Send, Wait, plan
from makegood.testing.provider_records import ConnectionRecord, RequestRecord, Signal

Script: TypeAlias = Iterable[Behaviour] | Callable[[RequestRecord], Behaviour]

_BACKLOG = 1024
_STOP_S = 10.0


class Provider:
    """The server. Use it as a context manager, plain or `async with`, or call `start` and `stop`.

    `script` is a list of behaviours or a function; `then` answers requests beyond the end of a list, whose
    default says so with status 418 (which is no reason to retry). Without a script every request gets
    `Reply("ok")`.
    """

    def __init__(self, script: Script | None = None, *, then: Behaviour | None = None) -> None:
        self._lock = threading.Lock()
        self._function: Callable[[RequestRecord], Behaviour] | None = script if callable(script) else None
        self._list: list[Behaviour] = [] if script is None or callable(script) else list(script)
        self._then = Reply("ok") if script is None else then
        self._arrivals: dict[int, Signal] = {}
        self._open: set[_Connection] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = Signal()
        self.requests: list[RequestRecord] = []
        self.connections: list[ConnectionRecord] = []
        self.port = 0

    @property
    def url(self) -> str:
        """The address for `api_base`, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open right now."""
        return len(self._open)

    def script(self, *behaviours: Behaviour) -> None:
        """Add behaviours at the end of the list."""
        with self._lock:
            self._list.extend(behaviours)

    def arrived(self, count: int = 1) -> Signal:
        """A signal that is set once `count` requests have arrived, counted from the start of the server."""
        with self._lock:
            signal = self._arrivals.setdefault(count, Signal())
            if len(self.requests) >= count:
                signal.set()
            return signal

    def start(self) -> Self:
        """Listen on a free port of 127.0.0.1. Raises `RuntimeError` when that fails within 10 s."""
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="provider", daemon=True
        )
        self._thread.start()
        if not self._started.wait(_STOP_S):
            raise RuntimeError("the scripted provider did not start")
        return self

    def stop(self) -> None:
        """Reset all connections and end the thread."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=_BACKLOG)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopping.wait()
        server.close()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)

    def _accept(self, connection: _Connection) -> ConnectionRecord:
        record = ConnectionRecord(len(self.connections) + 1)
        self.connections.append(record)
        self._open.add(connection)
        return record

    def _gone(self, connection: _Connection) -> None:
        self._open.discard(connection)

    def _behaviour_for(self, record: RequestRecord) -> Behaviour:
        with self._lock:
            self.requests.append(record)
            for count, signal in self._arrivals.items():
                if len(self.requests) >= count:
                    signal.set()
            if self._function is None:
                if self._list:
                    return self._list.pop(0)
                return self._then or Status(418, f"the script is used up: this is request {record.number}")
        return self._function(record)

    def _next_number(self) -> int:
        return len(self.requests) + 1


class _Connection(asyncio.Protocol):
    """One connection: cuts the incoming bytes into requests and answers them one after the other."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._continued = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.record = self._provider._accept(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._answer_next()

    def eof_received(self) -> bool:
        self._lost()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
        self.record.closed.set()
        self._provider._gone(self)

    def abort(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            self._transport.abort()
        self._closed.set()

    def _lost(self) -> None:
        self.record.peer_closed.set()
        self._closed.set()

    def _answer_next(self) -> None:
        if self._task is not None or self._closed.is_set():
            return
        parsed = _parse(bytes(self._buffer))
        if parsed is None:
            return
        length, method, target, headers, raw = parsed
        del self._buffer[:length]
        path, _, query = target.partition("?")
        record = RequestRecord(
            number=self._provider._next_number(),
            method=method,
            path=unquote(path),
            query=query,
            headers=headers,
            raw=raw,
            body=_json(raw),
            at_s=time.monotonic(),
            connection=self.record,
        )
        behaviour = self._provider._behaviour_for(record)
        self._task = asyncio.get_running_loop().create_task(self._act(behaviour, record))

    async def _act(self, behaviour: Behaviour, record: RequestRecord) -> None:
        assert self._transport is not None
        try:
            for act in plan(behaviour, record):
                if self._closed.is_set():
                    return
                match act:
                    case Send(data):
                        self._transport.write(data)
                        record.answering.set()
                    case Pause(seconds):
                        await self._pause(seconds)
                    case Wait():
                        record.reached.set()
                        await self._wait(act)
                    case End(reset):
                        self._end(reset=reset)
        finally:
            record.done.set()
            self._task = None
        self._answer_next()

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    await self._closed.wait()
            except TimeoutError:
                pass

    async def _wait(self, wait: Wait) -> None:
        passed = 0.0
        while not self._closed.is_set() and not (wait.release is not None and wait.release.is_set()):
            await self._pause(0.005 if wait.release is not None else wait.comment_s or 3600.0)
            passed += 0.005
            if (
                wait.comment_s
                and (wait.release is None or passed >= wait.comment_s)
                and not self._closed.is_set()
            ):
                passed = 0.0
                if self._transport is not None:
                    self._transport.write(wait.comment)

    def _end(self, *, reset: bool) -> None:
        assert self._transport is not None
        if not reset:
            self._transport.close()
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # no lingering: the kernel answers with RST instead of FIN
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


_Parsed: TypeAlias = "tuple[int, str, str, dict[str, str], bytes]"


def _parse(data: bytes) -> _Parsed | None:
    """One request at the start of `data`: its length, method, target, headers and body; None while incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    parted = [line.partition(":") for line in lines]
    headers = {name.strip().lower(): value.strip() for name, _, value in parted}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        chunked = _unchunk(data, end + 4)
        return None if chunked is None else (chunked[0], method, target, headers, chunked[1])
    length = end + 4 + int(headers.get("content-length", 0))
    return None if len(data) < length else (length, method, target, headers, data[end + 4 : length])


def _unchunk(data: bytes, start: int) -> tuple[int, bytes] | None:
    """Where a chunked body ends, and the body; None while incomplete."""
    body = b""
    while (line_end := data.find(b"\r\n", start)) >= 0:
        size = int(data[start:line_end].partition(b";")[0], 16)
        start = line_end + 2 + size + 2
        if len(data) < start:
            return None
        body += data[line_end + 2 : line_end + 2 + size]
        if size == 0:
            return start, body
    return None


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None

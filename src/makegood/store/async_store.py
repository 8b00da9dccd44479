"""The asyncio door to the store: operations go out in order over one connection, replies are parsed as they come.

A caller that is cancelled does not take its operation back (it may be on its way).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import redis.asyncio as redis_async
from redis.exceptions import RedisError

from makegood.errors import StoreUnreachable
from makegood.store.connect import refused, unreachable
from makegood.store.link import Link
from makegood.store.scripts import Op, wire

T = TypeVar("T")

PATIENCE_S = 3.0
"""How long a producer's operation waits for a server that is away; workers wait longer."""


class Line(Protocol):
    """What carries commands: `Link`, or a stand-in for tests without a server."""

    def send(self, parts: Sequence[Any]) -> asyncio.Future[Any]:
        """Queue a command; server errors come as values, a lost server as ConnectionError."""

    async def aclose(self) -> None:
        """Wait for what is due, then close."""


class AsyncStore:
    """One per event loop."""

    def __init__(
        self,
        url: str,
        *,
        patience_s: float = PATIENCE_S,
        line: Line | None = None,
        client: redis_async.Redis | None = None,
    ) -> None:
        self.url = url
        self._line: Line = line or (ClientLine(client) if client is not None else Link(url, patience_s))

    async def do(self, op: Op[T]) -> T:
        """Execute one operation. Raises StoreUnreachable, or what the operation's reply stands for."""
        result: T = await asyncio.shield(self.send(op))
        return result

    def send(self, op: Op[T]) -> asyncio.Future[T]:
        """Queue an operation now, in order, without waiting for its reply."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._line.send(wire(op)).add_done_callback(lambda reply: self._answer(op, result, reply))
        return result

    async def do_all(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Execute operations in order; they share a round trip. The first error is raised."""
        replies = [self.send(op) for op in ops]
        return list(await asyncio.shield(asyncio.gather(*replies)))

    async def aclose(self) -> None:
        """Wait for what is on its way, then close the connection."""
        await self._line.aclose()

    def _answer(self, op: Op[Any], result: asyncio.Future[Any], reply: asyncio.Future[Any]) -> None:
        if result.done():
            return
        try:
            result.set_result(self._parsed(op, reply))
        except Exception as error:
            result.set_exception(error)
            result.exception()  # whoever awaits it sees it; nobody else is warned about it

    def _parsed(self, op: Op[T], reply: asyncio.Future[Any]) -> T:
        if reply.cancelled():
            raise StoreUnreachable(f"The connection to the state store was closed before {op.script} was answered.")
        error = reply.exception()
        if error is not None:
            raise unreachable(self.url, error) from error
        value = reply.result()
        if isinstance(value, RedisError):
            raise refused(self.url, value)
        return op.parse(value)


class ClientLine:
    """A line over redis-py's asyncio client."""

    def __init__(self, client: redis_async.Redis) -> None:
        self._client = client
        self._tail: asyncio.Task[Any] | None = None

    def send(self, parts: Sequence[Any]) -> asyncio.Future[Any]:
        """Run the command after those before it."""
        from makegood.spawn import spawn

        before = self._tail
        self._tail = spawn(self._run(before, parts), name="client-line")
        return self._tail

    async def _run(self, before: asyncio.Task[Any] | None, parts: Sequence[Any]) -> Any:
        from redis.exceptions import NoScriptError

        from makegood.store.scripts import load_script, script_names

        if before is not None:
            await asyncio.wait({before})
        try:
            return await self._client.execute_command(*parts)
        except NoScriptError:
            for name in script_names():
                await self._client.script_load(load_script(name).source)
            return await self._client.execute_command(*parts)
        except (ConnectionError, TimeoutError, OSError):
            raise
        except RedisError as error:
            if isinstance(error, (redis_async.ConnectionError, redis_async.TimeoutError)):
                raise ConnectionError(str(error)) from error
            return error

    async def aclose(self) -> None:
        """Wait for the last command, close the client."""
        if self._tail is not None:
            await asyncio.wait({self._tail})
        await self._client.aclose()

"""The asyncio door to the store: operations go out in order over one connection, replies are parsed as they come.

A caller that is cancelled does not take its operation back (it may be on its way).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from redis.exceptions import RedisError

from makegood.store.connect import refused, unreachable
from makegood.store.link import Link, OnReply
from makegood.store.scripts import Op, command

T = TypeVar("T")

PATIENCE_S = 3.0
"""How long a producer's operation waits for a server that is away; workers wait longer."""


class Line(Protocol):
    """What carries commands: `Link`, or a stand-in for tests without a server."""

    def send(self, parts: Sequence[Any], on_reply: OnReply) -> None:
        """Queue a command."""

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
    ) -> None:
        self.url = url
        self._line: Line = line or Link(url, patience_s)

    async def do(self, op: Op[T]) -> T:
        """Execute one operation. Raises StoreUnreachable, or what the operation's reply stands for."""
        return await self.send(op)

    def send(self, op: Op[T]) -> asyncio.Future[T]:
        """Queue an operation now, in order, without waiting for its reply."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Any) -> None:
            if not result.done():
                self._answer(op, result, reply)

        self._line.send(command(op), on_reply)
        return result

    async def do_all(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Execute operations in order; they share a round trip. The first error is raised."""
        return [await reply for reply in [self.send(op) for op in ops]]

    async def aclose(self) -> None:
        """Wait for what is on its way, then close the connection."""
        await self._line.aclose()

    def _answer(self, op: Op[T], result: asyncio.Future[T], reply: Any) -> None:
        try:
            if isinstance(reply, RedisError):
                raise refused(self.url, reply)
            if isinstance(reply, BaseException):
                raise unreachable(self.url, reply) from reply
            result.set_result(op.parse(reply))
        except Exception as error:
            result.set_exception(error)
            result.exception()  # whoever awaits it sees it; nobody else is warned about it

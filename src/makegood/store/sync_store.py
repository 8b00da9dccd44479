"""The blocking door to the store, for producers and commands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import redis
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError

from makegood.store.connect import LOST, open_sync, refused, unreachable
from makegood.store.scripts import Op, load_script, wire

T = TypeVar("T")

READONLY_PAUSES_S = (0.0, 0.1, 0.3, 0.6)


class SyncStore:
    """Executes operations one by one or as one pipeline. Safe to use from several threads."""

    def __init__(self, url: str, *, client: redis.Redis | None = None) -> None:
        self.url = url
        self._redis: Any = client if client is not None else open_sync(url)

    def do(self, op: Op[T]) -> T:
        """Execute one operation. Raises StoreUnreachable, or what the operation's reply stands for."""
        result: T = self.do_all([op])[0]
        return result

    def do_all(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Execute operations in order in one round trip; the first error is raised after all were sent."""
        if not ops:
            return []
        try:
            replies = self._send_to_writer(ops)
        except LOST as error:
            raise unreachable(self.url, error) from error
        except RedisError as error:
            raise refused(self.url, error) from error
        return [self._read(op, reply) for op, reply in zip(ops, replies, strict=True)]

    def _send_to_writer(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """After a failover the connections that are open lead to a server that was demoted: take new ones."""
        for pause_s in READONLY_PAUSES_S:
            try:
                replies = self._send(ops)
            except ReadOnlyError:
                replies = None
            if replies is not None and not any(isinstance(reply, ReadOnlyError) for reply in replies):
                return replies
            self._redis.connection_pool.disconnect()
            time.sleep(pause_s)
        return self._send(ops)

    def _send(self, ops: Sequence[Op[Any]]) -> list[Any]:
        if len(ops) == 1:
            return [self._one(ops[0])]
        # The scripts go ahead: one that the server does not know would be done after those that it knows.
        names = list(dict.fromkeys(op.script for op in ops if op.script is not None))
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.script_load(load_script(name).source)
        for op in ops:
            pipe.execute_command(*wire(op))
        replies = pipe.execute(raise_on_error=False)[len(names) :]
        for index, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                replies[index:] = [self._one(op) for op in ops[index:]]
                break
        return list(replies)

    def _one(self, op: Op[Any]) -> Any:
        try:
            return self._redis.execute_command(*wire(op))
        except NoScriptError:
            if op.script is None:
                raise
            self._redis.script_load(load_script(op.script).source)
            return self._redis.execute_command(*wire(op))

    def _read(self, op: Op[T], reply: Any) -> T:
        if isinstance(reply, RedisError):
            raise refused(self.url, reply)
        return op.parse(reply)

    @property
    def redis(self) -> redis.Redis:
        """The client underneath, for the server check."""
        client: redis.Redis = self._redis
        return client

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()

"""The process in which a tool with `isolation="process"` runs: one call, then it ends.

Reads one JSON object from standard input, writes one to the file descriptor that it names; whatever the tool
prints goes to standard error and never mixes with the answer.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import math
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import orjson
from pydantic_core import to_jsonable_python

from makegood.errors import StaleFence
from makegood.tasks.cancel import CancelView
from makegood.tasks.context import CallLogger, log
from makegood.tasks.http import AttemptHttp, Bridge, CallFacts, async_client, sync_client
from makegood.tasks.lease_page import lease_seen
from makegood.tasks.residue import Owner, Residue
from makegood.tasks.residue_threads import SyncResidue
from makegood.tasks.rules.deadline import Deadline, Level
from makegood.tasks.rules.failures import classify_tool_error
from makegood.tasks.runners import awaited, make_context, returned
from makegood.tasks.tool import Tool

if TYPE_CHECKING:
    from makegood.store.async_store import AsyncStore
    from makegood.store.scripts import Op

T = TypeVar("T")

FATAL = (MemoryError, SystemExit, KeyboardInterrupt)
"""What a tool may not raise without ending its run."""


def main() -> None:
    """Run the call described on standard input."""
    die_with_parent()
    request = orjson.loads(sys.stdin.buffer.read())
    if os.getppid() != request["parent_pid"]:
        return  # the worker died before it could be watched; its run goes on elsewhere
    out = os.fdopen(request["answer_fd"], "wb")
    os.dup2(2, 1)
    out.write(answer(request))
    out.close()


def answer(request: dict[str, Any]) -> bytes:
    """JSON: `{"value": …}`, `{"failure": …}` when the tool raised, `{"stale": …}` when the run is someone else's."""
    try:
        value = asyncio.run(_call(request))
        return orjson.dumps({"value": to_jsonable_python(value, fallback=str)})
    except StaleFence as error:
        return orjson.dumps({"stale": str(error)})
    except BaseException as error:
        failure = classify_tool_error(error, repeat=request["repeat"])
        return orjson.dumps({"failure": asdict(failure), "fatal": isinstance(error, FATAL)})


async def _call(request: dict[str, Any]) -> Any:
    tool = find_tool(request["module"], request["name"])
    pool = AttemptHttp()
    deadline = _deadline(request["until_s"], request["level"])
    may_send = lease_seen(request["lease_fd"])
    facts = CallFacts(request["run_id"], request["idempotency_key"], deadline, may_send)
    where = {key: request[key] for key in ("run_id", "attempt", "step", "call_key")}

    store = LazyStore(request["residue"]["store_url"])
    residue = _residue(request["residue"], store, deadline)
    context = make_context(
        facts,
        where,
        CancelView(),
        CallLogger(log, where),
        lambda: async_client(pool, facts) if tool.is_async else _own_loop_client(facts),
        residue if tool.is_async else SyncResidue(residue, asyncio.get_running_loop()),
    )
    kwargs = tool.bind(request["args"])
    try:
        if tool.is_async:
            return await awaited(tool.fn, context, **kwargs)
        return await asyncio.to_thread(lambda: returned(tool.name, tool.fn(context, **kwargs)))
    finally:
        await pool.aclose()
        await store.aclose()


def _residue(request: dict[str, Any], store: LazyStore, deadline: Deadline) -> Residue:
    return Residue(
        Owner(**request["owner"]),
        store,
        deadline,
        _deadline(request["run_until_s"], "run"),
        {},
        lambda: secrets.token_hex(8),
        lambda: None,
        lambda: False,  # whoever is told to stop here is killed
        tuple(request["secret_fields"]),
        request["kinds"],
        request["prefix"],
    )


def _deadline(at_s: float | None, level: Level) -> Deadline:
    """JSON has no infinity: None is no limit."""
    return Deadline(math.inf if at_s is None else at_s, level)


class LazyStore:
    """The store, connected to when something is declared or locked: most tools do neither."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store: AsyncStore | None = None

    async def do(self, op: Op[T]) -> T:
        """See AsyncStore."""
        return await self._opened().do(op)

    async def do_all(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """See AsyncStore."""
        return await self._opened().do_all(ops)

    def send(self, op: Op[T]) -> asyncio.Future[T]:
        """See AsyncStore."""
        return self._opened().send(op)

    async def aclose(self) -> None:
        """Wait for what is on its way."""
        if self._store is not None:
            await self._store.aclose()

    def _opened(self) -> AsyncStore:
        if self._store is None:
            from makegood.store.async_store import AsyncStore

            self._store = AsyncStore(self.url)
        return self._store


def _own_loop_client(facts: CallFacts) -> httpx.Client:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return sync_client(Bridge(AttemptHttp(), facts, loop))


def find_tool(module: str, name: str) -> Tool[Any, Any]:
    """The tool that a module declares under a qualified name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Tool):
        raise LookupError(f"{module}.{name} is no tool.")
    return found


def die_with_parent() -> None:
    """On Linux the process dies when the worker that started it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()

"""`isolation="process"`: a tool body in a process that can be killed (its whole process group)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from makegood.errors import MakegoodError, StaleFence
from makegood.store.async_store import AsyncStore
from makegood.tasks.http import CallFacts
from makegood.tasks.lease_page import LeasePage
from makegood.tasks.residue import Owner, release_of_dead
from makegood.tasks.resources import registered_resources
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.failures import ToolFailure
from makegood.tasks.runners import TaskRunning
from makegood.tasks.tool import Tool


class ChildFailed(MakegoodError):
    """A tool in a process of its own failed; `failure` is what its exception means, `fatal` that it ends the run."""

    def __init__(self, failure: ToolFailure, *, fatal: bool = False) -> None:
        super().__init__(failure.message)
        self.failure, self.fatal = failure, fatal


@dataclass(frozen=True, slots=True)
class ChildResidue:
    """What a child declares and locks, through a connection of its own; what it holds when it dies is released here."""

    owner: Owner
    store: AsyncStore
    run: Deadline
    secret_fields: tuple[str, ...]
    prefix: str = field(default_factory=lambda: secrets.token_hex(4))

    def wire(self) -> dict[str, Any]:
        """For the request."""
        return {
            "owner": asdict(self.owner),
            "store_url": self.store.url,
            "run_until_s": self.run.at_s,
            "secret_fields": self.secret_fields,
            "kinds": sorted(registered_resources()),
            "prefix": self.prefix,
        }

    async def died(self) -> None:
        """The child is gone and did not answer."""
        await release_of_dead(self.store, self.owner.run_id, self.owner.fence, self.prefix)


class ProcessBody(TaskRunning):
    """One call in a child process, which looks at the lease itself before it sends; `stop()` kills it."""

    def __init__(
        self,
        tool: Tool[Any, Any],
        facts: CallFacts,
        where: Mapping[str, Any],
        args: Mapping[str, Any],
        lease: LeasePage,
        residue: ChildResidue,
        *,
        repeat: bool = False,
    ) -> None:
        self._request = {
            "module": tool.fn.__module__,
            "name": tool.fn.__qualname__,
            "args": args,
            "repeat": repeat,
            "run_id": facts.run_id,
            "idempotency_key": facts.idempotency_key,
            "until_s": facts.deadline.at_s,  # monotonic time is the same for all processes of a host
            "level": facts.deadline.level,
            "attempt": where["attempt"],
            "step": where["step"],
            "call_key": where["call_key"],
            "residue": residue.wire(),
        }
        self._lease, self._residue = lease, residue
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False
        super().__init__(self._run(), f"process-{tool.name}")

    def stop(self) -> None:
        """Kill the process group; the body ends when it is reaped."""
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _run(self) -> Any:
        read_fd, write_fd = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "makegood.tasks.child",
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(write_fd, self._lease.fd),
                process_group=0,  # a group of its own, to be killed alone, in the session that its supervisor kills
                env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        if self._stopped:
            self.stop()
        ways = {"answer_fd": write_fd, "lease_fd": self._lease.fd, "parent_pid": os.getpid()}
        return await self._exchange(orjson.dumps({**self._request, **ways}), read_fd)

    async def _exchange(self, request: bytes, read_fd: int) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb")
        )
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(request)
                await self._process.stdin.drain()
                self._process.stdin.close()
            raw = await reader.read()
            code = await self._process.wait()
        finally:
            transport.close()
        if not raw:
            await self._residue.died()
        return read_answer(raw, code)


def read_answer(raw: bytes, exit_code: int) -> Any:
    """The child's value; raises StaleFence, or ChildFailed with what it reported, or with how its process ended."""
    if not raw:
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        raise ChildFailed(
            ToolFailure("bug", "PROCESS_DIED", f"The tool's process ended with {how} and no answer.")
        )
    answer = orjson.loads(raw)
    if "stale" in answer:
        raise StaleFence(answer["stale"])
    if "failure" in answer:
        raise ChildFailed(ToolFailure(**answer["failure"]), fatal=answer["fatal"])
    return answer["value"]

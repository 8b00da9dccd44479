"""The producer's side: enqueue runs, look at them, wait for them, cancel them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal, NoReturn

from makegood.store.ops import catalog, reads, runs
from makegood.store.states import SETTLED, TERMINAL, State
from makegood.tasks import queries
from makegood.tasks.client_base import (
    check_audited,
    hanging,
    pauses,
    refuse_keep_inbox,
    refuse_later,
    refuse_unbuilt_enqueue,
    waited_out,
)
from makegood.tasks.operators import AsyncOperator, Operator
from makegood.tasks.records import Result


class Client(Operator):
    """The blocking client; safe to share between threads.

    Args:
        url: the state store, `redis://host:6379/0`; None = MAKEGOOD_REDIS_URL.
        broker_url: Celery's broker; None = the same as a given `url` (MAKEGOOD_BROKER_URL is then not looked at), and
            MAKEGOOD_BROKER_URL when `url` is None, too.

    Raises:
        SettingsError: an environment variable is wrong.
        NotBuilt: live_url is given.
    """

    def __init__(
        self, url: str | None = None, *, broker_url: str | None = None, live_url: str | None = None
    ) -> None:
        super().__init__(url, broker_url or (None if url is None else url), live_url)
        from makegood.store.sync_store import SyncStore

        self.store = SyncStore(self.url)

    def enqueue(
        self,
        agent: str,
        input: Any,  # noqa: A002
        *,
        key: str | None = None,
        session: str | None = None,
        stream: bool = False,
        expires_in: float | None = None,
        if_breaker_open: Literal["accept", "delay", "reject"] = "accept",
    ) -> Run:
        """Record a run and announce it. The same key and input give the same run, however often.

        Args:
            input: a text or a JSON object of at most 1 MiB.
            key: unique per agent; makes the request safe to repeat.
            expires_in: seconds the run may wait in the queue before it ends as expired.

        Raises:
            UnknownAgent, InvalidInput, PayloadTooLarge, KeyConflict, NotBuilt: nothing was recorded.
            StoreUnreachable: it is not known whether the run was recorded; repeat with the same key.
            BrokerUnreachable, NotAllowed: the run is recorded but not announced; a worker's sweeper finds it. Repeat
                only with the same key.
        """
        refuse_unbuilt_enqueue(session, stream, if_breaker_open)
        request = queries.checked_request(agent, input, key, expires_in)
        if self._known() is None:
            self._learn(self.store.do(catalog.read_catalog()))
        made = self.run_flow(queries.enqueue(request, self.catalog))
        if made.created or made.state is State.QUEUED:
            self.publisher.wake(made.run_id)
        return Run(self, made.run_id)

    def get(self, run_id: str) -> Run:
        """The run with this id. Raises RunNotFound."""
        self.run_flow(queries.load_state(run_id))
        return Run(self, run_id)

    def runs(self, *, state: str | None = None, agent: str | None = None, limit: int = 100) -> list[Result]:
        """The newest runs, newest first."""
        return self.run_flow(queries.list_runs(state, agent, limit))

    def agents(self) -> dict[str, dict[str, Any]]:
        """What workers have published, by agent name."""
        return self.store.do(catalog.read_catalog())

    def close(self) -> None:
        """Close the connections."""
        self.store.close()
        self.publisher.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Run:
    """A handle on a run."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client, self.id = client, run_id

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def __getattr__(self, name: str) -> NoReturn:
        refuse_later(self, name)

    def status(self) -> str:
        """The run's state."""
        return str(self._client.run_flow(queries.load_state(self.id)))

    def info(self) -> dict[str, Any]:
        """The run's record, and what it does now: `activity` (a word), `activity_detail`, `calling` (call keys)."""
        return self._client.run_flow(queries.load_info(self.id))

    def result(self) -> Result:
        """The run's record as a Result, as it stands."""
        return queries.result_of(self._client.run_flow(queries.load_record(self.id)))

    def journal(self) -> list[dict[str, Any]]:
        """The rows of the run's calls, oldest first."""
        return self._client.run_flow(queries.load_rows(self.id))

    def wait(self, timeout: float | None = None) -> Result:
        """The result once the run has ended or waits for a review. Raises WaitTimeout after `timeout` seconds."""
        until_s = None if timeout is None else time.monotonic() + timeout
        for pause_s in pauses():
            state = self.status()
            if state in SETTLED:
                return self.result()
            if until_s is not None and time.monotonic() >= until_s:
                raise waited_out(self.id, state, timeout or 0)
            time.sleep(pause_s)
        raise AssertionError("pauses() does not end")

    def events(
        self, from_: str = "0", follow: bool = False
    ) -> list[dict[str, Any]] | Iterator[dict[str, Any]]:
        """Events after the id `from_`, oldest first; `follow` goes on until the run has ended."""
        self.status()
        return self._follow(from_) if follow else list(self._pages(from_))

    def cancel(
        self,
        keep_inbox: bool = False,
        wait: bool = False,
        timeout: float | None = None,
        *,
        actor: str = "client",
        reason: str = "",
    ) -> str:
        """Cancel the run; returns its state. With `wait` its work has stopped when this returns.

        Args:
            actor, reason: who and why, for the audit log alone (F2); at most 200 and 2,000 characters.

        Raises StillStopping (names the call that hangs) after `timeout` seconds, Conflict for a run in review,
        InvalidInput for an actor or a reason that cannot be recorded.
        """
        refuse_keep_inbox(keep_inbox)
        check_audited(actor, reason)
        self.status()
        op = runs.cancel_run(run_id=self.id, cause="user", actor=actor, reason=reason)
        told = self._client.store.do(op)
        state = str(told.state)
        if told.accepted and told.state is State.CLEANING:
            self._client.announce(self.id, state)
        if not wait:
            return state
        until_s = None if timeout is None else time.monotonic() + timeout
        for pause_s in pauses():
            state = self.status()
            if state in SETTLED:
                break
            if until_s is not None and time.monotonic() >= until_s:
                raise hanging(self.info())
            time.sleep(pause_s)
        return state

    def _pages(self, after: str) -> Iterator[dict[str, Any]]:
        while True:
            page = self._client.store.do(reads.read_events(self.id, after))
            if not page.events:
                return
            yield from page.events
            after = page.last_id

    def _follow(self, after: str) -> Iterator[dict[str, Any]]:
        for pause_s in pauses():
            ended = self.status() in TERMINAL
            for event in self._pages(after):
                after = event["id"]
                yield event
            if ended:
                return
            time.sleep(pause_s)


class AsyncClient(AsyncOperator):
    """The asyncio client: the same methods, awaited. One per event loop; see Client for arguments and errors."""

    def __init__(
        self, url: str | None = None, *, broker_url: str | None = None, live_url: str | None = None
    ) -> None:
        super().__init__(url, broker_url or (None if url is None else url), live_url)
        from makegood.store.async_store import AsyncStore

        self.store = AsyncStore(self.url)

    async def enqueue(
        self,
        agent: str,
        input: Any,  # noqa: A002
        *,
        key: str | None = None,
        session: str | None = None,
        stream: bool = False,
        expires_in: float | None = None,
        if_breaker_open: Literal["accept", "delay", "reject"] = "accept",
    ) -> AsyncRun:
        """Record a run and announce it; see `Client.enqueue`."""
        refuse_unbuilt_enqueue(session, stream, if_breaker_open)
        request = queries.checked_request(agent, input, key, expires_in)
        if self._known() is None:
            self._learn(await self.store.do(catalog.read_catalog()))
        made = await self.run_flow(queries.enqueue(request, self.catalog))
        if made.created or made.state is State.QUEUED:
            await asyncio.to_thread(self.publisher.wake, made.run_id)
        return AsyncRun(self, made.run_id)

    async def get(self, run_id: str) -> AsyncRun:
        """The run with this id. Raises RunNotFound."""
        await self.run_flow(queries.load_state(run_id))
        return AsyncRun(self, run_id)

    async def runs(
        self, *, state: str | None = None, agent: str | None = None, limit: int = 100
    ) -> list[Result]:
        """The newest runs, newest first."""
        return await self.run_flow(queries.list_runs(state, agent, limit))

    async def agents(self) -> dict[str, dict[str, Any]]:
        """What workers have published, by agent name."""
        return await self.store.do(catalog.read_catalog())

    async def close(self) -> None:
        """Close the connections."""
        await self.store.aclose()
        await asyncio.to_thread(self.publisher.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class AsyncRun:
    """A handle on a run; see Run."""

    def __init__(self, client: AsyncClient, run_id: str) -> None:
        self._client, self.id = client, run_id

    def __repr__(self) -> str:
        return f"<AsyncRun {self.id}>"

    def __getattr__(self, name: str) -> NoReturn:
        refuse_later(self, name)

    async def status(self) -> str:
        """The run's state."""
        return str(await self._client.run_flow(queries.load_state(self.id)))

    async def info(self) -> dict[str, Any]:
        """The run's record, and what it does now: `activity` (a word), `activity_detail`, `calling` (call keys)."""
        return await self._client.run_flow(queries.load_info(self.id))

    async def result(self) -> Result:
        """The run's record as a Result, as it stands."""
        return queries.result_of(await self._client.run_flow(queries.load_record(self.id)))

    async def journal(self) -> list[dict[str, Any]]:
        """The rows of the run's calls, oldest first."""
        return await self._client.run_flow(queries.load_rows(self.id))

    async def wait(self, timeout: float | None = None) -> Result:
        """The result once the run has ended or waits for a review. Raises WaitTimeout after `timeout` seconds."""
        until_s = None if timeout is None else time.monotonic() + timeout
        for pause_s in pauses():
            state = await self.status()
            if state in SETTLED:
                return await self.result()
            if until_s is not None and time.monotonic() >= until_s:
                raise waited_out(self.id, state, timeout or 0)
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses() does not end")

    async def events(
        self, from_: str = "0", follow: bool = False
    ) -> list[dict[str, Any]] | AsyncIterator[dict[str, Any]]:
        """Events after the id `from_`, oldest first; `follow` gives an iterator that ends with the run."""
        await self.status()
        return self._follow(from_) if follow else [event async for event in self._pages(from_)]

    async def cancel(
        self,
        keep_inbox: bool = False,
        wait: bool = False,
        timeout: float | None = None,
        *,
        actor: str = "client",
        reason: str = "",
    ) -> str:
        """Cancel the run; see `Run.cancel`."""
        refuse_keep_inbox(keep_inbox)
        check_audited(actor, reason)
        await self.status()
        op = runs.cancel_run(run_id=self.id, cause="user", actor=actor, reason=reason)
        told = await self._client.store.do(op)
        state = str(told.state)
        if told.accepted and told.state is State.CLEANING:
            await asyncio.to_thread(self._client.announce, self.id, state)
        if not wait:
            return state
        until_s = None if timeout is None else time.monotonic() + timeout
        for pause_s in pauses():
            state = await self.status()
            if state in SETTLED:
                break
            if until_s is not None and time.monotonic() >= until_s:
                raise hanging(await self.info())
            await asyncio.sleep(pause_s)
        return state

    async def _pages(self, after: str) -> AsyncIterator[dict[str, Any]]:
        while True:
            page = await self._client.store.do(reads.read_events(self.id, after))
            if not page.events:
                return
            for event in page.events:
                yield event
            after = page.last_id

    async def _follow(self, after: str) -> AsyncIterator[dict[str, Any]]:
        for pause_s in pauses():
            ended = await self.status() in TERMINAL
            async for event in self._pages(after):
                after = event["id"]
                yield event
            if ended:
                return
            await asyncio.sleep(pause_s)


__all__ = ["AsyncClient", "AsyncRun", "Client", "Run"]

"""The operators' half of both clients: reviews, decisions, marks, cleanup of runs that have ended, the audit log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from makegood.errors import NotAllowed, StoreUnreachable
from makegood.tasks import operate, steering
from makegood.tasks.client_base import Common, check_audited, check_decision
from makegood.tasks.flows import Flow, run_async, run_sync
from makegood.tasks.review import list_reviews, load_audit, load_review

if TYPE_CHECKING:
    from makegood.store.async_store import AsyncStore
    from makegood.store.sync_store import SyncStore

T = TypeVar("T")

APART_S = 1 / operate.CLEANUPS_PER_S


class Operator(Common):
    """What operators do with the blocking client.

    Whoever decides says who he is (`actor`) and why (`reason`), for the audit log. `expected_version` is the version of
    the run that he has looked at: if it has changed since, nothing is done (Conflict); None is not checked.
    """

    store: SyncStore

    def run_flow(self, flow: Flow[T]) -> T:
        """Run store work that is written as a flow."""
        return run_sync(self.store, flow)

    def reviews(self, agent: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest runs that wait for a person, the one that came there last first; each with its open questions."""
        return self.run_flow(list_reviews(agent, limit))

    def review(self, run_id: str) -> dict[str, Any]:
        """Everything that a person needs to decide about a run. Raises RunNotFound, Conflict (it has no review)."""
        return self.run_flow(load_review(run_id))

    def audit(self, run_id: str) -> list[dict[str, Any]]:
        """Who asked for what about the run, oldest first: id, at, action, actor, reason, detail. Raises RunNotFound."""
        return self.run_flow(load_audit(run_id))

    def retry_cleanup(
        self, run_id: str, *, actor: str, reason: str, expected_version: int | None = None
    ) -> dict[str, Any]:
        """Clean a run in review up once more; every compensation has its tries again.

        Returns run_id, state and version. Raises RunNotFound, Conflict, InvalidInput.
        """
        return self._decide(run_id, "retry", actor, reason, expected_version)

    def resume(
        self, run_id: str, *, actor: str, reason: str, expected_version: int | None = None
    ) -> dict[str, Any]:
        """Give a run in review a new attempt; what stands stays, resources too.

        Returns run_id, state and version. Raises RunNotFound, InvalidInput, and Conflict: also while a call is unknown, an
        undo was begun and not finished, or a lock is held.
        """
        return self._decide(run_id, "resume", actor, reason, expected_version)

    def resolve(
        self, run_id: str, *, actor: str, reason: str, expected_version: int | None = None
    ) -> dict[str, Any]:
        """End a run in review as it stands, for good. Raises RunNotFound, Conflict, InvalidInput."""
        return self._decide(run_id, "resolve", actor, reason, expected_version)

    def mark(
        self,
        run_id: str,
        call_key: str,
        outcome: Literal["done", "undone"],
        *,
        actor: str,
        reason: str,
        expected_version: int | None = None,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """Say what became of a call of a run in review.

        One whose outcome is unknown took effect ("done") or did not ("undone"). The effect of one that succeeded, or whose
        undo was begun, may stay ("done") or was undone by hand ("undone"). Without `generation` it is the newest row of that
        call key. A resource has no mark: repair the cause and retry; to leave it as it stands, resume or resolve.

        Returns run_id, call_key, generation, version, and what it `became`: succeeded, failed, kept, undone.
        Raises RunNotFound, Conflict, InvalidInput.
        """
        check_decision(actor, reason, expected_version)
        return self.run_flow(
            operate.mark(run_id, call_key, outcome, generation, actor, reason, expected_version)
        )

    def timeouts(self) -> list[dict[str, Any]]:
        """The limits that are set by hand: level, name, limit_s."""
        return self.run_flow(steering.list_timeouts())

    def timeout_changes(self) -> list[dict[str, Any]]:
        """Who set which limit, oldest first: at, level, name, from_s, to_s, actor, reason."""
        return self.run_flow(steering.list_timeout_changes())

    def set_timeout(
        self, level: str, name: str, seconds: float | None, *, actor: str, reason: str = ""
    ) -> dict[str, Any]:
        """Set the limit of a tool (level "call") or of an agent ("step", "run"); None takes back what was set.

        It comes before what tool and agent declare, and reaches running workers within 5 s: a try of a call and a step
        that begin, and attempts at their next step.

        Returns level, name, from_s, to_s; None in the last two is what was declared.
        Raises InvalidInput, UnknownAgent (no worker publishes that tool or agent).
        """
        check_audited(actor, reason)
        return self.run_flow(steering.set_timeout(level, name, seconds, actor, reason))

    def judge_timeout(self, run_id: str, verdict: str, *, actor: str, reason: str = "") -> dict[str, Any]:
        """Say of a run that timed out whether it had in fact finished: "false_kill"; "true_kill": it had not; "unknown".

        Returns run_id and the verdict that stands, by whom, at what time. It counts once; "unknown" may be replaced.
        Raises RunNotFound, InvalidInput, Conflict (it did not time out, or has another verdict).
        """
        check_audited(actor, reason)
        return self.run_flow(steering.judge_timeout(run_id, verdict, actor, reason))

    def cleanup(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        state: str | None = None,
        agent: str | None = None,
        older_than: float | None = None,
        limit: int = 100,
        dry_run: bool = False,
        undo_succeeded: bool = False,
        actor: str = "",
        reason: str = "",
    ) -> list[dict[str, Any]]:
        """Ask for the cleanup of runs that have ended: what is unknown is settled, what can be undone is undone.

        Args:
            ids: the runs; or else the newest `limit` that the filter picks:
            state, agent, older_than: state (default: failed, timed_out, cancelled), agent, seconds since the end.
            dry_run: only say what would be done.
            undo_succeeded: also undo what succeeded runs did.
            actor, reason: who and why; mandatory unless it is a dry run.

        Returns a list of run_id, result, detail, undo, unknown: what will be undone, which calls are unknown. The result is
        requested, would_request, nothing_to_do, already_cleaning, refused, not_found or failed; one that failed does not
        stop the others. "requested" is not "done": the run's state says that.
        Raises InvalidInput; StoreUnreachable, NotAllowed when nothing was asked for yet.
        """
        who = (actor, reason)
        request = checked(
            ids, state, agent, older_than, limit, who, dry_run=dry_run, undo_succeeded=undo_succeeded
        )
        chosen, known = self.run_flow(operate.plan(request))
        results: list[dict[str, Any]] = []
        heard = True
        for place, run_id in enumerate(chosen):
            began_s = time.monotonic()
            try:
                results.append(self.run_flow(operate.clean_one(request, run_id, known)))
            except (StoreUnreachable, NotAllowed) as error:
                if not results:
                    raise
                return results + operate.not_tried(chosen[place:], error)
            if results[-1]["result"] == "requested":
                heard = heard and self.announce(run_id, "cleaning")
                time.sleep(max(0.0, began_s + APART_S - time.monotonic()))
        return results

    def _decide(
        self,
        run_id: str,
        action: Literal["retry", "resume", "resolve"],
        actor: str,
        reason: str,
        expected_version: int | None,
    ) -> dict[str, Any]:
        check_decision(actor, reason, expected_version)
        decided = self.run_flow(operate.decide(run_id, action, actor, reason, expected_version))
        self.announce(run_id, decided["state"])
        return decided


class AsyncOperator(Common):
    """The same with the asyncio client; see Operator."""

    store: AsyncStore

    async def run_flow(self, flow: Flow[T]) -> T:
        """Run store work that is written as a flow."""
        return await run_async(self.store, flow)

    async def reviews(self, agent: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest runs that wait for a person; see `Client.reviews`."""
        return await self.run_flow(list_reviews(agent, limit))

    async def review(self, run_id: str) -> dict[str, Any]:
        """Everything that a person needs to decide about a run; see `Client.review`."""
        return await self.run_flow(load_review(run_id))

    async def audit(self, run_id: str) -> list[dict[str, Any]]:
        """Who asked for what about the run; see `Client.audit`."""
        return await self.run_flow(load_audit(run_id))

    async def retry_cleanup(
        self, run_id: str, *, actor: str, reason: str, expected_version: int | None = None
    ) -> dict[str, Any]:
        """Clean a run in review up once more; see `Client.retry_cleanup`."""
        return await self._decide(run_id, "retry", actor, reason, expected_version)

    async def resume(
        self, run_id: str, *, actor: str, reason: str, expected_version: int | None = None
    ) -> dict[str, Any]:
        """Give a run in review a new attempt; see `Client.resume`."""
        return await self._decide(run_id, "resume", actor, reason, expected_version)

    async def resolve(
        self, run_id: str, *, actor: str, reason: str, expected_version: int | None = None
    ) -> dict[str, Any]:
        """End a run in review as it stands; see `Client.resolve`."""
        return await self._decide(run_id, "resolve", actor, reason, expected_version)

    async def mark(
        self,
        run_id: str,
        call_key: str,
        outcome: Literal["done", "undone"],
        *,
        actor: str,
        reason: str,
        expected_version: int | None = None,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """Say what became of a call of a run in review; see `Client.mark`."""
        check_decision(actor, reason, expected_version)
        return await self.run_flow(
            operate.mark(run_id, call_key, outcome, generation, actor, reason, expected_version)
        )

    async def timeouts(self) -> list[dict[str, Any]]:
        """The limits that are set by hand; see `Client.timeouts`."""
        return await self.run_flow(steering.list_timeouts())

    async def timeout_changes(self) -> list[dict[str, Any]]:
        """Who set which limit; see `Client.timeout_changes`."""
        return await self.run_flow(steering.list_timeout_changes())

    async def set_timeout(
        self, level: str, name: str, seconds: float | None, *, actor: str, reason: str = ""
    ) -> dict[str, Any]:
        """Set a limit while workers run; see `Client.set_timeout`."""
        check_audited(actor, reason)
        return await self.run_flow(steering.set_timeout(level, name, seconds, actor, reason))

    async def judge_timeout(
        self, run_id: str, verdict: str, *, actor: str, reason: str = ""
    ) -> dict[str, Any]:
        """Say whether a run that timed out had in fact finished; see `Client.judge_timeout`."""
        check_audited(actor, reason)
        return await self.run_flow(steering.judge_timeout(run_id, verdict, actor, reason))

    async def cleanup(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        state: str | None = None,
        agent: str | None = None,
        older_than: float | None = None,
        limit: int = 100,
        dry_run: bool = False,
        undo_succeeded: bool = False,
        actor: str = "",
        reason: str = "",
    ) -> list[dict[str, Any]]:
        """Ask for the cleanup of runs that have ended; see `Client.cleanup`."""
        who = (actor, reason)
        request = checked(
            ids, state, agent, older_than, limit, who, dry_run=dry_run, undo_succeeded=undo_succeeded
        )
        chosen, known = await self.run_flow(operate.plan(request))
        results: list[dict[str, Any]] = []
        heard = True
        for place, run_id in enumerate(chosen):
            began_s = time.monotonic()
            try:
                results.append(await self.run_flow(operate.clean_one(request, run_id, known)))
            except (StoreUnreachable, NotAllowed) as error:
                if not results:
                    raise
                return results + operate.not_tried(chosen[place:], error)
            if results[-1]["result"] == "requested":
                heard = heard and await asyncio.to_thread(self.announce, run_id, "cleaning")
                await asyncio.sleep(max(0.0, began_s + APART_S - time.monotonic()))
        return results

    async def _decide(
        self,
        run_id: str,
        action: Literal["retry", "resume", "resolve"],
        actor: str,
        reason: str,
        expected_version: int | None,
    ) -> dict[str, Any]:
        check_decision(actor, reason, expected_version)
        decided = await self.run_flow(operate.decide(run_id, action, actor, reason, expected_version))
        await asyncio.to_thread(self.announce, run_id, decided["state"])
        return decided


def checked(
    ids: Any,
    state: Any,
    agent: Any,
    older_than: Any,
    limit: Any,
    who: tuple[str, str],
    *,
    dry_run: bool,
    undo_succeeded: bool,
) -> operate.CleanupRequest:
    """The request of a cleanup; whoever does more than look says who he is and why. Raises InvalidInput."""
    actor, reason = who
    if not dry_run:
        check_decision(actor, reason, None)
    how = {"dry_run": dry_run, "undo_succeeded": undo_succeeded, "actor": actor, "reason": reason}
    return operate.checked_cleanup(ids, state, agent, older_than, limit, **how)

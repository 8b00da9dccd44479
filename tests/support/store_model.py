"""What the store must hold after each operation: a small model in plain Python, without Lua, fences of its own making or I/O.

Each method is one operation. It changes the model and returns the answer, or raises what the store has to raise and
changes nothing. Fences, times and the choice of a claim come from the store; the model says what else must follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from makegood.errors import Conflict, StaleFence
from makegood.store.codes import OutOfOrder, TooManyContinuations, Unsettled
from makegood.store.ops.runs import Cleaning as Wanted
from makegood.store.states import TERMINAL, State, may_go
from support.store_model_run import Cleaning, Resource, Row, Run

MAX_CONTINUATIONS = 2
MAX_DEATHS = 2
"""Smaller than in production, so that a short sequence gets there."""

WORKS = (State.RUNNING, State.STOPPING)


@dataclass(slots=True)
class Model:
    """All runs of a shard, and the counters."""

    runs: dict[str, Run] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    def of(self, run_id: str, fence: str, *states: State) -> Run:
        """The run, when the fence is valid and the run in one of the states."""
        run = self.runs[run_id]
        if run.fence != fence:
            raise StaleFence(run_id)
        if run.state not in states:
            raise Conflict(run_id)
        return run

    def held_by(self, worker: str) -> list[Run]:
        """The runs of a worker."""
        return [run for run in self.runs.values() if run.worker == worker]

    # --- moves ------------------------------------------------------------------------------------------------------

    def move(self, run: Run, to: State) -> None:
        """One step in the table."""
        assert may_go(run.state, to), (run.state, to)
        run.state = to

    def count(self, *parts: str) -> None:
        """One more of something."""
        self.counters["|".join(parts)] += 1

    def begin_cleaning(self, run: Run, cause: str, target: State, end: State) -> None:
        """What was left behind comes first. A cancel that the run did not heed is its verdict."""
        told = run.cancel and run.state not in TERMINAL and end != State.CANCELLED
        if told:
            end, target = State.CANCELLED, State.REVIEW if target == State.REVIEW else State.CANCELLED
        self.move(run, State.CLEANING)
        run.let_go()
        run.cleaning = Cleaning(cause, target, end, cancelled=told)
        run.round += 1
        run.suspect = run.continued = run.cannot_continue = run.cancel = False
        run.due = True

    def judge(self, run: Run, outcome: State, timed_out: bool, clean: bool) -> None:
        """The verdict on a run, which is counted once."""
        if run.verdict is not None:
            return
        run.verdict = outcome
        if run.attempt > 1 or run.crashes > 0:
            self.count("retried_runs_total", run.agent, outcome)
        if timed_out:
            self.count("timed_out_runs_total", run.agent, "yes" if clean else "no")

    def finish(self, run: Run, to: State) -> None:
        """The end of a run."""
        assert to == State.RESOLVED or not run.unsettled
        self.move(run, to)
        run.let_go()
        run.cleaning, run.open_calls = None, 0
        if not run.counted:
            self.count("runs_finished_total", run.agent, to)
        run.counted = True
        self.judge(run, to, to == State.TIMED_OUT, not any(row.open for row in run.rows.values()))

    def give_up(self, run: Run, code: str) -> int:
        """A person decides."""
        assert run.cleaning is not None
        self.move(run, State.REVIEW)
        run.let_go()
        run.reviews += 1
        self.count("reviews_total", run.agent, code)
        self.count("cleanups_total", run.agent, run.cleaning.cause, "failed")
        self.judge(run, State.REVIEW, run.cleaning.end == State.TIMED_OUT, False)
        return run.reviews

    # --- a worker and its run ---------------------------------------------------------------------------------------

    def claimable(self, quarantine: bool) -> set[str]:
        """The runs of which one is claimed."""
        runs = self.runs.values()
        return {r.id for r in runs if r.state == State.QUEUED and r.suspect == quarantine and not r.expired}

    def claim(self, run_id: str, fence: str, worker: str, quarantine: bool) -> None:
        """What follows the claim of a run."""
        run = self.runs[run_id]
        self.move(run, State.RUNNING)
        run.take(fence, worker)
        if not run.continued:
            run.attempt += 1
            run.step = run.ended_step = run.continuations = run.open_calls = 0
            run.cannot_continue = False
        run.continued = False
        if quarantine:
            run.alone_after = run.ended_step

    def write_intent(self, run_id: str, fence: str, rows: Sequence[tuple[str, str, str]]) -> str:
        """The next step with rows (id, tool, status)."""
        run = self.of(run_id, fence, *WORKS)
        if run.ended_step != run.step:
            raise OutOfOrder(run_id)
        run.step += 1
        for row_id, tool, status in rows:
            before = run.rows.get(row_id)
            run.rows[row_id] = Row(tool, run.attempt, status)
            if before is not None:
                run.rows[row_id] = Row(tool, run.attempt, status, before.undo, before.tries, before.round)
            run.open_calls += status == "started"
        return "ack"

    def start_calls(self, run_id: str, fence: str, row_ids: Iterable[str]) -> str:
        """Planned rows begin."""
        run = self.of(run_id, fence, *WORKS)
        for row_id in row_ids:
            run.rows[row_id].status = "started"
            run.open_calls += 1
        return "ack"

    def record_outcomes(
        self, run_id: str, fence: str, outcomes: Sequence[tuple[str, str]], ended_step: int
    ) -> str:
        """What became of calls; what has ended keeps the outcome it has."""
        run = self.of(run_id, fence, *WORKS)
        for row_id, status in outcomes:
            row = run.rows[row_id]
            if row.status in ("started", "planned"):
                run.open_calls -= row.status == "started"
                row.status = status
        run.ended_step = max(run.ended_step, ended_step)
        return "ack"

    def stop(self, run_id: str, fence: str) -> str:
        """Asked to stop, and not quiet yet."""
        run = self.of(run_id, fence, *WORKS)
        if run.state == State.RUNNING:
            self.move(run, State.STOPPING)
        return "ack"

    def release(
        self, run_id: str, fence: str, to: State, *, continued: bool, counts: bool, due: bool
    ) -> State:
        """Handed over, parked, or the next attempt."""
        run = self.of(run_id, fence, *(WORKS if to == State.QUEUED else (State.RUNNING,)))
        if counts and run.continuations >= MAX_CONTINUATIONS:
            raise TooManyContinuations(run_id)
        if not continued and (run.unsettled or run.left):
            raise Unsettled(run_id)
        run.continuations += counts
        run.continued = continued
        proven = run.alone_after is not None and run.ended_step > run.alone_after
        run.suspect, run.alone_after = run.suspect and not proven, None
        self.move(run, to)
        run.let_go()
        run.due = due or run.cancel
        return to

    def end_run(self, run_id: str, fence: str, end: State, how: Wanted) -> State:
        """The run ends, or is cleaned up first."""
        run = self.of(run_id, fence, *WORKS)
        if how.needed or (how.undo != "none" and run.left) or run.unsettled:
            self.begin_cleaning(run, how.cause, how.target, end)
            return State.CLEANING
        if how.target not in TERMINAL:
            raise Conflict(run_id)
        self.finish(run, how.target)
        return how.target

    def cancel(self, run_id: str) -> bool:
        """Ends what waits, tells what works, is the verdict of what is cleaned up."""
        run = self.runs[run_id]
        if run.state == State.REVIEW:
            raise Conflict(run_id)
        if run.state in TERMINAL or (run.state in WORKS and run.cancel):
            return False
        if run.cleaning is not None and (run.cleaning.cause == "manual" or run.cleaning.cancelled):
            return False
        if run.cleaning is not None:
            run.cleaning.cancelled, run.cleaning.end = True, State.CANCELLED
            if run.cleaning.target != State.REVIEW:
                run.cleaning.target = State.CANCELLED
        elif run.state in WORKS:
            run.cancel = True
        elif run.dirty:
            self.begin_cleaning(run, "cancel", State.CANCELLED, State.CANCELLED)
        else:
            self.finish(run, State.CANCELLED)
        return True

    # --- what is lost, and what is due ------------------------------------------------------------------------------

    def lose(self, worker: str, death: bool, only: str = "") -> set[str]:
        """Returns the runs that wait now. `only`: the worker lives, and gives up one run that it cannot end."""
        told = set[str]()
        for run in self.held_by(worker):
            if only not in ("", run.id):
                continue
            run.crashes += 1
            if run.state == State.CLEANING:
                self._lose_cleanup(run, death, bool(only))
            else:
                self._lose_run(run, death, bool(only))
            if run.state not in TERMINAL:
                told.add(run.id)
        return told

    def _lose_run(self, run: Run, death: bool, alone: bool) -> None:
        run.deaths += death
        run.alone_deaths += death and run.suspect
        if run.cancel and run.dirty:
            self.begin_cleaning(run, "cancel", State.CANCELLED, State.CANCELLED)
        elif run.cancel:
            self.finish(run, State.CANCELLED)
        elif run.alone_deaths >= MAX_DEATHS or (alone and run.cannot_continue):
            self.begin_cleaning(run, "crash", State.REVIEW, State.FAILED)
        else:
            run.suspect = run.suspect or (death and run.deaths >= 2 and run.open_calls > 0)
            if run.continuations >= MAX_CONTINUATIONS:
                run.cannot_continue = True
            else:
                run.continuations += 1
            run.continued = True
            self.move(run, State.QUEUED)
            run.let_go()

    def _lose_cleanup(self, run: Run, death: bool, alone: bool) -> None:
        cleaning = run.cleaning
        assert cleaning is not None
        cleaning.deaths += death and cleaning.open
        cleaning.alone += death and cleaning.suspect
        cleaning.losses += 1
        cleaning.open = False
        run.due = not (alone and cleaning.poison)
        poison = cleaning.alone >= MAX_DEATHS or cleaning.losses > MAX_CONTINUATIONS
        cleaning.poison = cleaning.poison or poison
        cleaning.suspect = not poison and (cleaning.suspect or cleaning.deaths >= 2)
        run.let_go()

    def sweep_parked(self) -> set[str]:
        """Parked runs that are due wait in the queue."""
        woken = [run for run in self.runs.values() if run.state == State.PARKED and run.due]
        for run in woken:
            self.move(run, State.QUEUED)
        return {run.id for run in woken}

    def sweep_expired(self) -> set[str]:
        """Runs that nobody claimed in time end."""
        over = [run for run in self.runs.values() if run.state == State.QUEUED and run.expired]
        for run in over:
            self.finish(run, State.EXPIRED)
        return {run.id for run in over}

    def restore(self, run_id: str, rows: Sequence[tuple[str, str, str]]) -> tuple[int, State]:
        """Rows that a failover has lost come back; who waits or has ended is cleaned up for them."""
        run = self.runs[run_id]
        lost = {
            row_id: Row(tool, run.attempt, status) for row_id, tool, status in rows if row_id not in run.rows
        }
        run.rows |= lost
        stands, doubt = (any(getattr(row, name) for row in lost.values()) for name in ("stands", "open"))
        waits = run.state in (State.QUEUED, State.PARKED) and (stands or doubt)
        ended = run.state in TERMINAL - {State.RESOLVED}
        if waits or (ended and (doubt or (stands and run.state != State.SUCCEEDED))):
            end = run.state if ended and run.state != State.EXPIRED else State.FAILED
            self.begin_cleaning(run, "crash", end, end)
        return len(lost), run.state

    # --- what a run holds -------------------------------------------------------------------------------------------

    def declare(self, run_id: str, fence: str, key: str) -> str:
        """A resource that stands declared stays as it is; after a roll-back it is a new one."""
        run = self.of(run_id, fence, *WORKS, State.CLEANING)
        if run.resources.get(key, Resource("")).status != "declared":
            run.resources[key] = Resource()
        return "ack"

    def register(self, run_id: str, fence: str, holder: str, name: str) -> str:
        """A lock that is about to be taken."""
        run = self.of(run_id, fence, *WORKS, State.CLEANING)
        run.registered.add((run.fence_n, holder, name))
        return "ack"

    def unregister(self, run_id: str, fence: str, holder: str, name: str) -> str:
        """With a holder: its registration and those of earlier fences; without: all of the name."""
        run = self.of(run_id, fence, *WORKS, State.CLEANING)
        run.registered = {
            (n, who, what)
            for n, who, what in run.registered
            if what != name or (holder and who != holder and n == run.fence_n)
        }
        return "ack"

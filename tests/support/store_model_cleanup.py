"""The second half of the model: cleanup, what people decide, and locks."""

from __future__ import annotations

from dataclasses import dataclass, field

from makegood.errors import Conflict, StaleFence
from makegood.store.codes import OutOfOrder, Unsettled
from makegood.store.ops.cleanup import UndoStart
from makegood.store.states import TERMINAL, State, may_go
from makegood.tasks.rules.cleaning import TRIES
from support.store_model import Model
from support.store_model_run import Cleaning, Resource, Run


@dataclass(slots=True)
class Lock:
    """Who holds a lock, and the acquisitions that were given back."""

    owner: str = ""
    n: int = 0
    holder: str = ""
    over: bool = False
    floors: dict[str, int] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        """Whether anybody may take it."""
        return not self.owner or self.over


@dataclass(slots=True)
class WholeModel(Model):
    """The model of all operations. `first` says who is the owner of a lock."""

    locks: dict[str, Lock] = field(default_factory=dict)

    # --- cleanup ----------------------------------------------------------------------------------------------------

    def cleanable(self, alone: bool) -> set[str]:
        """The cleanups of which one is claimed."""
        waiting = [r for r in self.runs.values() if r.state == State.CLEANING and r.worker is None and r.due]
        return {run.id for run in waiting if run.cleaning and run.cleaning.suspect == alone}

    def claim_cleanup(self, run_id: str, fence: str, worker: str) -> None:
        """What follows the claim of a cleanup."""
        run = self.runs[run_id]
        assert run.cleaning is not None
        run.take(fence, worker)
        run.cleaning.open = False

    def _cleaned(self, run_id: str, fence: str) -> tuple[Run, Cleaning]:
        run = self.of(run_id, fence, State.CLEANING)
        assert run.cleaning is not None
        return run, run.cleaning

    def note_cleanup(self, run_id: str, fence: str, busy: bool) -> str:
        """Something starts, or nothing is under way."""
        self._cleaned(run_id, fence)[1].open = busy
        return "now"

    def settle_call(self, run_id: str, fence: str, row_id: str, status: str) -> str:
        """An outcome is known after all."""
        run, cleaning = self._cleaned(run_id, fence)
        row = run.rows[row_id]
        if row.status not in ("started", "unknown"):
            raise OutOfOrder(run_id)
        run.open_calls -= row.status == "started"
        row.status, cleaning.open = status, False
        self.count(
            "unknown_outcomes_total", row.tool, "happened" if status == "succeeded" else "not_happened"
        )
        return "now"

    def start_undo(self, run_id: str, fence: str, row_id: str) -> UndoStart:
        """A try of a compensation; one whose worker was lost is made again and not counted again."""
        run, cleaning = self._cleaned(run_id, fence)
        row = run.rows[row_id]
        if row.undo in ("succeeded", "kept"):
            return UndoStart(None, row.undo)
        made = (row.tries - (row.undo == "started")) if row.round == run.round else 0
        if made >= TRIES:
            return UndoStart(None)
        row.undo, row.tries, row.round, cleaning.open = "started", made + 1, run.round, True
        return UndoStart(row.tries)

    def end_undo(self, run_id: str, fence: str, row_id: str, status: str) -> str:
        """How the try ended."""
        run, cleaning = self._cleaned(run_id, fence)
        row = run.rows[row_id]
        if row.undo != "started":
            raise OutOfOrder(run_id)
        self.count("compensations_total", row.tool, status)
        if status == "succeeded":
            run.open_calls -= row.status == "started"
            if row.open:
                self.count("unknown_outcomes_total", row.tool, "compensated")
        row.undo, cleaning.open = status, False
        return "now"

    def settle_resource(self, run_id: str, fence: str, key: str, status: str) -> tuple[int, str]:
        """How a try to roll back ended; what is rolled back stays so."""
        run, _ = self._cleaned(run_id, fence)
        resource = run.resources[key]
        if resource.status in ("declared", "failed"):
            tries = resource.tries if resource.round == run.round else 0
            run.resources[key] = Resource(status, tries + 1, run.round)
        return run.resources[key].tries, run.resources[key].status

    def release_cleanup(self, run_id: str, fence: str, *, used: bool, due: bool, fits: bool) -> int:
        """The cleanup goes on later; without `fits` the next attempt cannot begin any more."""
        run, cleaning = self._cleaned(run_id, fence)
        if not fits and cleaning.target == State.QUEUED:
            cleaning.target = cleaning.end
        cleaning.passes += used
        cleaning.open = False
        run.let_go()
        run.due = due
        return cleaning.passes

    def end_cleanup(self, run_id: str, fence: str, target: State, result: str) -> State:
        """Made good, when the end that was worked for is still the one that is wanted."""
        run, cleaning = self._cleaned(run_id, fence)
        if not may_go(State.CLEANING, target) or (target != State.QUEUED and target not in TERMINAL):
            raise Conflict(run_id)
        if run.unsettled or target != cleaning.target:
            raise Unsettled(run_id)
        self.count("cleanups_total", run.agent, cleaning.cause, result)
        if target != State.QUEUED:
            self.finish(run, target)
            return target
        self.move(run, State.QUEUED)
        run.let_go()
        run.cleaning, run.continued = None, False
        return target

    def open_review(self, run_id: str, fence: str, code: str) -> int:
        """Cleanup gives up."""
        return self.give_up(self._cleaned(run_id, fence)[0], code)

    # --- people -----------------------------------------------------------------------------------------------------

    def _in_review(self, run_id: str) -> tuple[Run, Cleaning]:
        run = self.runs[run_id]
        if run.state != State.REVIEW:
            raise Conflict(run_id)
        assert run.cleaning is not None
        return run, run.cleaning

    def decide(self, run_id: str, action: str) -> State:
        """Retry, resume or resolve."""
        run, cleaning = self._in_review(run_id)
        if action == "resume" and (run.unsettled or any(row.half_undone for row in run.rows.values())):
            raise Conflict(run_id)
        self.count("reviews_resolved_total", run.agent, action)
        run.due = True
        if action == "resolve":
            self.finish(run, State.RESOLVED)
        elif action == "retry":
            self.move(run, State.CLEANING)
            target = cleaning.end if cleaning.target == State.REVIEW else cleaning.target
            run.cleaning = Cleaning(cleaning.cause, target, cleaning.end, cancelled=cleaning.cancelled)
            run.round += 1
        else:
            self.move(run, State.QUEUED)
            run.cleaning, run.deaths, run.alone_deaths, run.alone_after = None, 0, 0, None
            run.continued = run.suspect = run.cannot_continue = False
        return run.state

    def mark(self, run_id: str, row_id: str, mark: str) -> str:
        """What became of a call: of an unknown one whether it happened, of an effect whether it stays."""
        run, _ = self._in_review(run_id)
        row, done = run.rows[row_id], mark == "done"
        was_open, half = row.open, row.half_undone
        fits = was_open or row.status == "succeeded" or (half and not done)
        if not fits or row.undo == "succeeded" or (row.undo == "kept" and done):
            raise Conflict(run_id)
        run.open_calls -= row.status == "started"
        if was_open:
            how = "happened" if done else "compensated" if half else "not_happened"
            self.count("unknown_outcomes_total", row.tool, how)
        if was_open and (done or not half):
            row.status = "succeeded" if done else "failed"
        if was_open and not half:
            return row.status
        row.undo = "kept" if done else "succeeded"
        return "kept" if done else "undone"

    def request_cleanup(self, run_id: str, undo_succeeded: bool) -> str:
        """An operator asks for the cleanup of a run that has ended; it keeps its end."""
        run = self.runs[run_id]
        if run.state == State.CLEANING:
            return "already_cleaning"
        refused = run.state not in TERMINAL or run.state == State.RESOLVED
        if refused or (run.state == State.SUCCEEDED and not undo_succeeded):
            return "refused"
        if not run.dirty:
            return "nothing_to_do"
        end = State.FAILED if run.state == State.EXPIRED else run.state
        self.begin_cleaning(run, "manual", end, end)
        return "requested"

    # --- locks ------------------------------------------------------------------------------------------------------

    def acquire(self, run_id: str, n: int, holder: str, name: str) -> bool:
        """Whether it is taken: free, run out, or held by an older fence of this run."""
        lock = self.locks[name]
        if n < lock.floors.get(run_id, 0) or (lock.owner == run_id and lock.n > n):
            raise StaleFence(run_id)
        same = (lock.owner, lock.n, lock.holder) == (run_id, n, holder)
        if not lock.free and not same and (lock.owner != run_id or lock.n == n):
            return False
        lock.owner, lock.n, lock.holder, lock.over = run_id, n, holder, False
        return True

    def give_back(self, run_id: str, n: int, holder: str, name: str) -> bool:
        """Only the acquisition that holds it can."""
        lock = self.locks[name]
        if (lock.owner, lock.n, lock.holder) != (run_id, n, holder):
            return False
        lock.owner = ""
        return True

    def free(self, run_id: str, n: int, name: str) -> None:
        """Cleanup takes it back from every fence up to its own."""
        lock = self.locks[name]
        if lock.owner == run_id and lock.n > n:
            raise StaleFence(run_id)
        lock.floors[run_id] = max(lock.floors.get(run_id, 0), n)
        if lock.owner == run_id:
            lock.owner = ""

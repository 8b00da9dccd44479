"""The second half of the machine: cleanups, people, locks, workers that go on under an old fence, and late repetitions."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from makegood.errors import StaleFence
from makegood.store import keys
from makegood.store.ops import cleanup, locks, restore, review
from makegood.store.ops.args import NewEvent
from makegood.store.scripts import Op
from makegood.store.states import TERMINAL, State
from makegood.tasks.rules.cleaning import TRIES
from support.store_machine import FAR_MS, LOCKS, Sent, exact, move, pair
from support.store_machine_run import RunMachine
from support.store_model import WORKS
from support.store_model_run import Run
from support.store_ops import (
    Held,
    declare,
    end,
    intent,
    note,
    outcome,
    register,
    release,
    settle,
    start,
    unregister,
)
from support.store_view import look

WHO: dict[str, Any] = {"actor": "ada", "reason": "checked"}


class WholeMachine(RunMachine):
    """All operations."""

    # --- cleanup ----------------------------------------------------------------------------------------------------

    def cleans(self) -> list[Run]:
        """Runs that a worker cleans up."""
        return self.in_states(State.CLEANING)

    def cleaned(self, data: st.DataObject, runs: list[Run] | None = None) -> tuple[Run, Held]:
        """One of them."""
        run = self.one(data, self.cleans() if runs is None else runs)
        assert run.fence is not None
        return run, Held(run.id, run.fence)

    @move(2, lambda self: self.cleans(), busy=st.booleans())
    def note_cleanup(self, data: st.DataObject, busy: bool) -> None:
        """Something starts that may kill the process."""
        run, held = self.cleaned(data)
        op = cleanup.note_cleanup(**named(held), op=self.world.op(), activity=b"{}" if busy else b"")
        self.play("note", op, lambda: self.model.note_cleanup(run.id, held.fence, busy), *pair(held))

    @move(
        4,
        lambda self: any(rows_of(run) for run in self.cleans()),
        status=st.sampled_from(["succeeded", "failed"]),
    )
    def settle_call(self, data: st.DataObject, status: Any) -> None:
        """What became of a call; one that was undone is not asked about."""
        run, held = self.cleaned(data, [run for run in self.cleans() if rows_of(run)])
        row_id = data.draw(st.sampled_from(rows_of(run)), "row")
        op = cleanup.settle_call(
            **named(held),
            op=self.world.op(),
            row_id=row_id,
            tool=run.rows[row_id].tool,
            status=status,
            body=b"{}",
            tries=1,
        )
        self.play(
            "settle", op, lambda: self.model.settle_call(run.id, held.fence, row_id, status), *pair(held)
        )

    @move(5, lambda self: any(undoable(run) for run in self.cleans()))
    def start_undo(self, data: st.DataObject) -> None:
        """A try of a compensation."""
        run, held = self.cleaned(data, [run for run in self.cleans() if undoable(run)])
        row_id = data.draw(st.sampled_from(undoable(run)), "row")
        op = cleanup.start_undo(
            **named(held), op=self.world.op(), row_id=row_id, round_=run.round, tries=TRIES, activity=b"{}"
        )
        self.play("start undo", op, lambda: self.model.start_undo(run.id, held.fence, row_id), *pair(held))

    @move(
        6,
        lambda self: any(undoing(run) for run in self.cleans()),
        status=st.sampled_from(["succeeded", "failed", "failed", "unknown"]),
    )
    def end_undo(self, data: st.DataObject, status: Any) -> None:
        """How it ended, perhaps said twice in two different ways."""
        run, held = self.cleaned(data, [run for run in self.cleans() if undoing(run)])
        row_id = data.draw(st.sampled_from(undoing(run)), "row")
        op = cleanup.end_undo(
            **named(held),
            op=self.world.op(),
            row_id=row_id,
            tool=run.rows[row_id].tool,
            status=status,
            detail=b"{}",
        )
        self.play(
            "end undo", op, lambda: self.model.end_undo(run.id, held.fence, row_id, status), *pair(held)
        )

    @move(
        3,
        lambda self: any(run.resources for run in self.cleans()),
        status=st.sampled_from(["rolled_back", "failed"]),
    )
    def settle_resource(self, data: st.DataObject, status: str) -> None:
        """A try to roll back."""
        run, held = self.cleaned(data, [run for run in self.cleans() if run.resources])
        key = data.draw(st.sampled_from(sorted(run.resources)), "resource")
        op = settle(held, self.world.op(), status, key, round_=run.round)
        self.play(
            "roll back", op, lambda: self.model.settle_resource(run.id, held.fence, key, status), *pair(held)
        )

    @move(3, lambda self: self.cleans(), used=st.booleans(), due=st.booleans(), fits=st.booleans())
    def release_cleanup(self, data: st.DataObject, used: bool, due: bool, fits: bool) -> None:
        """It goes on later: the next pass, a wait, a shutdown."""
        run, held = self.cleaned(data)
        assert run.cleaning is not None
        op = cleanup.release_cleanup(
            **named(held),
            op=self.world.op(),
            due_in_ms=0 if due else FAR_MS,
            used_pass=used,
            target=None if fits else run.cleaning.end,
        )
        self.play(
            "release cleanup",
            op,
            lambda: self.model.release_cleanup(run.id, held.fence, used=used, due=due, fits=fits),
            *pair(held),
        )

    @move(4, lambda self: self.cleans(), fits=st.booleans(), result=st.sampled_from(["clean", "partial"]))
    def end_cleanup(self, data: st.DataObject, fits: bool, result: Any) -> None:
        """Made good; without `fits` the next attempt cannot begin."""
        run, held = self.cleaned(data)
        assert run.cleaning is not None
        target = run.cleaning.target if fits else run.cleaning.end
        op = cleanup.end_cleanup(**named(held), op=self.world.op(), target=target, result=result)
        self.play(
            "end cleanup",
            op,
            lambda: self.model.end_cleanup(run.id, held.fence, target, result),
            *pair(held),
        )

    @move(2, lambda self: self.cleans())
    def open_review(self, data: st.DataObject) -> None:
        """Cleanup gives up."""
        self.say_review(self.cleaned(data)[0])

    # --- people -----------------------------------------------------------------------------------------------------

    def waiting(self) -> list[Run]:
        """Runs that wait for a person."""
        return self.in_states(State.REVIEW, held=False)

    def version(self, run: Run, known: bool) -> int | None:
        """What the person has seen."""
        return self.view.number(run.id, "version") if known else None

    @move(
        4,
        lambda self: self.waiting(),
        action=st.sampled_from(["retry", "resume", "resolve"]),
        known=st.booleans(),
    )
    def decide(self, data: st.DataObject, action: Any, known: bool) -> None:
        """Retry, resume or resolve."""
        run = self.one(data, self.waiting())
        op = review.decide_review(
            run_id=run.id, action=action, expected_version=self.version(run, known), **WHO
        )
        self.play("decide", op, lambda: self.model.decide(run.id, action), run.id)
        self.reached[f"decide: {action} {run.state}"] += 1

    @move(
        4,
        lambda self: any(rows_of(run) for run in self.waiting()),
        mark=st.sampled_from(["done", "undone"]),
        known=st.booleans(),
    )
    def mark(self, data: st.DataObject, mark: Any, known: bool) -> None:
        """Somebody has looked what became of a call."""
        run = self.one(data, [run for run in self.waiting() if rows_of(run)])
        row_id = data.draw(st.sampled_from(rows_of(run)), "row")
        op = review.mark_call(
            run_id=run.id,
            row_id=row_id,
            call_key=row_id,
            tool=run.rows[row_id].tool,
            mark=mark,
            body=b"{}",
            expected_version=self.version(run, known),
            **WHO,
        )
        self.play("mark", op, lambda: self.model.mark(run.id, row_id, mark), run.id)

    @move(
        2,
        lambda self: self.in_states(*TERMINAL, held=False) or self.turn % 5 == 0,
        undo_succeeded=st.booleans(),
        known=st.booleans(),
    )
    def request_cleanup(self, data: st.DataObject, undo_succeeded: bool, known: bool) -> None:
        """Somebody wants a run cleaned up."""
        ended = self.in_states(*TERMINAL, held=False)
        run = self.one(data, ended or list(self.model.runs.values()))
        op = review.request_cleanup(
            run_id=run.id,
            undo_succeeded=undo_succeeded,
            expected_version=self.version(run, known),
            **WHO,
        )
        wanted = self.model.request_cleanup(run.id, undo_succeeded)
        answer = self.world.do(op)
        assert answer.result == wanted
        self.reached[f"request: {wanted}"] += 1
        self.look(unchanged=wanted in ("already_cleaning", "nothing_to_do"))
        if wanted == "requested":
            self.remember(Sent("request", op, answer, run.id, None))
        assert exact(self.world.do(op)) == exact(answer)
        self.look(unchanged=True)

    @move(1, lambda self: self.waiting(), behind=st.integers(1, 3))
    def decide_blindly(self, data: st.DataObject, behind: int) -> None:
        """Who has not seen the run as it is decides nothing."""
        run = self.one(data, self.waiting())
        op = review.decide_review(
            run_id=run.id,
            action="resolve",
            expected_version=self.view.number(run.id, "version") - behind,
            **WHO,
        )
        assert isinstance(self.ask(op), type)
        self.look(unchanged=True)

    # --- locks ------------------------------------------------------------------------------------------------------

    @move(4, lambda self: self.in_states(*WORKS), name=st.sampled_from(LOCKS))
    def lock(self, data: st.DataObject, name: str) -> None:
        """Registered first, then taken if it can be."""
        self.say_lock(self.working(data)[0], name)

    @move(3, lambda self: any(run.registered for run in self.in_states(*WORKS)))
    def unlock(self, data: st.DataObject) -> None:
        """Given back, then registered no more."""
        able = [run for run in self.in_states(*WORKS) if run.registered]
        run = self.one(data, able)
        assert run.fence is not None
        held = Held(run.id, run.fence)
        n, holder, name = data.draw(st.sampled_from(sorted(run.registered)), "lock")
        wanted = self.model.give_back(run.id, n, holder, name) if n == run.fence_n else False
        op = locks.release_lock(**named(held), holder=holder, name=name)
        for unchanged in (False, True):
            assert self.world.do(op) == wanted
            self.look(unchanged=unchanged)
        op_2 = unregister(held, self.world.op(), name, holder)
        self.play(
            "unregister", op_2, lambda: self.model.unregister(run.id, held.fence, holder, name), *pair(held)
        )

    @move(4, lambda self: any(run.registered for run in self.cleans()))
    def free(self, data: st.DataObject) -> None:
        """Cleanup takes back every lock that the run may hold."""
        run, held = self.cleaned(data, [run for run in self.cleans() if run.registered])
        name = data.draw(st.sampled_from(sorted({name for _, _, name in run.registered})), "lock")
        self.model.free(run.id, run.fence_n, name)
        self.world.do(locks.free_lock(**named(held), name=name))
        self.look(unchanged=False)
        op = unregister(held, self.world.op(), name, None)
        self.play("free", op, lambda: self.model.unregister(run.id, held.fence, "", name), *pair(held))

    @move(1, name=st.sampled_from(LOCKS))
    def lock_runs_out(self, name: str) -> None:
        """Its holder did not extend it."""
        if self.model.locks[name].owner:
            self.model.locks[name].over = True
            self.world.raw.hset(keys.lock_key(name), "until", 1)
            self.view = look(self.world.raw)

    # --- those who do not know what happened meanwhile ---------------------------------------------------------------

    @move(2, lambda self: any(run.old_fences for run in self.model.runs.values()))
    def go_on_under_an_old_fence(self, data: st.DataObject) -> None:
        """A worker that was lost, or let go, knows nothing of it and writes on: it is refused."""
        run = self.one(data, [run for run in self.model.runs.values() if run.old_fences])
        held = Held(run.id, data.draw(st.sampled_from(run.old_fences), "fence"))
        for op in fenced(held, self.world.op, run):
            assert self.ask(op) is StaleFence, op.script
        self.look(unchanged=True)

    @move(1, status=st.sampled_from(["succeeded", "failed", "unknown"]))
    def restore_rows(self, data: st.DataObject, status: str) -> None:
        """A worker puts back what the store has lost of its calls; what is there stays as it is."""
        run = self.one(data, list(self.model.runs.values()))
        names = self.some(data, [*run.rows, *(f"{tool}:{len(run.rows) + 7}#1" for tool in ("hotel", "read"))])
        rows = [(name, name.partition(":")[0], "failed" if name[0] == "r" else status) for name in names]
        known = [
            restore.KnownRow(name, b"{}", ends, b"{}", 1, 1, tool != "read", NewEvent("tool.ended"))
            for name, tool, ends in rows
        ]
        op = restore.restore_rows(run_id=run.id, op=self.world.op(), attempt=run.attempt, rows=known)
        wanted = self.model.restore(run.id, rows)
        answer = self.world.do(op)
        assert (answer.rows, answer.state) == wanted
        self.reached[f"restore: {answer.state}"] += 1
        self.look(unchanged=wanted[0] == 0)
        assert self.world.do(op) == answer
        self.look(unchanged=True)

    @move(4, lambda self: self.sent)
    def arrive_late(self, data: st.DataObject) -> None:
        """What was sent once arrives a second time, long after its answer."""
        current = {run.fence for run in self.model.runs.values() if run.fence is not None}
        told = (
            self.sent
            if self.turn % 4 == 0
            else [s for s in self.sent if s.name not in ("enqueue", "claim", "claim cleanup")]
        )
        valid_ones = [sent for sent in told if sent.fence in current]
        sent = self.one(data, [*valid_ones[-20:], *(told or self.sent)[-10:]])
        valid = sent.fence is not None and self.model.runs[sent.run_id].fence == sent.fence
        if sent.name == "acquire":
            self.acquire_late(sent)
            return
        if sent.name in ("cancel", "decide", "mark", "request"):
            valid = True
            if sent.name == "cancel" and self.cancels[sent.run_id] is not sent:
                return  # of several only the last is remembered
        answer = self.ask(sent.op)
        if sent.name in ("start undo", "roll back", "release cleanup"):
            valid = False  # they say what stands now
            answer = answer if answer is StaleFence else None
        if valid or sent.name == "enqueue":
            assert exact(answer) == exact(sent.answer), sent.name
        else:
            assert answer in (None, StaleFence) or exact(answer) == exact(sent.answer), sent.name
        self.reached[f"late {sent.name}: {'the same' if valid else 'old'}"] += 1
        self.look(unchanged=True)

    def acquire_late(self, sent: Sent) -> None:
        """A lock that was given back, or lost, is not taken by it; one that ran out may be, while it is registered."""
        fence = sent.fence or ""
        holder, name = str(sent.op.args[3]), sent.op.keys[0]
        mine = (int(fence.partition(":")[0]), holder)
        still = any((n, who) == mine for n, who, _ in self.model.runs[sent.run_id].registered)
        lock = next(lock for each, lock in self.model.locks.items() if keys.lock_key(each) == name)
        if lock.free and still:
            return
        self.ask(sent.op)
        self.reached["late acquire"] += 1
        self.look(unchanged=True)


def named(held: Held) -> dict[str, Any]:
    """Run and fence, as the operations take them."""
    return {"run_id": held.run_id, "fence": held.fence}


def rows_of(run: Run) -> list[str]:
    """Calls with effects that were not undone."""
    return [name for name, row in run.rows.items() if row.effect and row.undo != "succeeded"]


def undoable(run: Run) -> list[str]:
    """Calls whose effect stands or may stand, and those that were undone."""
    rows = run.rows.items()
    return [name for name, row in rows if row.open or row.stands or row.undo == "succeeded"]


def undoing(run: Run) -> list[str]:
    """Those whose compensation has begun."""
    return [name for name in undoable(run) if run.rows[name].undo]


def fenced(held: Held, new: Any, run: Run) -> list[Op[Any]]:
    """Every operation that needs a valid fence."""
    row = next(iter(run.rows), "hotel:0#1")
    key = next(iter(run.resources), "a")
    of = named(held)
    return [
        intent(held, new(), step=run.step + 1, base=-1),
        start(held, new(), row),
        outcome(held, new(), row),
        note(held, new()),
        declare(held, new(), key),
        register(held, new()),
        unregister(held, new()),
        release(held, new()),
        end(held, new()),
        cleanup.note_cleanup(**of, op=new()),
        cleanup.settle_call(**of, op=new(), row_id=row, tool="hotel", status="failed", body=b"{}", tries=1),
        cleanup.start_undo(**of, op=new(), row_id=row, round_=run.round, tries=TRIES, activity=b"{}"),
        cleanup.end_undo(**of, op=new(), row_id=row, tool="hotel", status="succeeded", detail=b"{}"),
        settle(held, new(), key=key),
        cleanup.release_cleanup(**of, op=new()),
        cleanup.end_cleanup(**of, op=new(), target=State.FAILED),
        cleanup.open_review(**of, op=new(), code="C", message="", items=b"[]"),
    ]

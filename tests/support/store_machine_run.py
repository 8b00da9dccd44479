"""Random sequences of store operations: what clients and workers do with runs, and what happens to workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from makegood.errors import KeyConflict
from makegood.store import keys
from makegood.store.ops import cleanup, leases, runs, steps, sweep
from makegood.store.scripts import Op
from makegood.store.states import State
from support.store import PREFIX, SHARD
from support.store_machine import (
    AGENTS,
    FAR_MS,
    LOCKS,
    OFTEN,
    SCENES,
    TOOLS,
    WORKERS,
    Sent,
    StoreMachine,
    exact,
    move,
    pair,
)
from support.store_model import MAX_CONTINUATIONS, MAX_DEATHS, WORKS
from support.store_model_run import Run
from support.store_ops import Held, acquire, declare, end, intent, note, outcome, register, release
from support.store_view import look


class RunMachine(StoreMachine):
    """Enqueue, claim, steps, ends, losses, sweeps, and the two ends of a cleanup."""

    # --- coming and going -------------------------------------------------------------------------------------------

    @initialize(scenes=st.lists(st.sampled_from(OFTEN), min_size=1, max_size=3))
    def begin(self, scenes: list[str]) -> None:
        """A few runs are somewhere already."""
        for scene in scenes:
            self.enqueue("alpha", None, "a", False)
            self.claim("worker-1", False)
            (run,) = [run for run in self.in_states(*WORKS) if run.step == 0][-1:]
            if scene == "locked":
                self.say_lock(run, LOCKS[0])
            else:
                self.play_scene(run, SCENES.index(scene))

    def play_scene(self, run: Run, far: int) -> None:
        """The run is executed; has made calls; is in doubt about one of them; is to be cleaned up; is cleaned up."""
        made = [
            ("hotel:0#1", "hotel", "started"),
            ("mail:1#1", "mail", "started"),
            ("read:2#1", "read", "planned"),
        ]
        if far >= 1:
            self.intend(run, made)
        if far >= 2:
            self.say_outcome(run, [("hotel:0#1", "succeeded"), ("mail:1#1", "unknown")], 0)
            self.say_declare(run, "a")
        if far >= 3:
            state = State.TIMED_OUT if far == 3 else State.FAILED
            self.say_end(run, state, runs.Cleaning("timeout", State.QUEUED if far == 3 else state, "policy"))
        if far >= 5:
            self.claim_cleanup("worker-2", False)
        if far >= 6:
            self.say_review(self.in_states(State.CLEANING)[0])

    @move(
        2,
        agent=st.sampled_from(AGENTS),
        key=st.sampled_from([None, None, "k"]),
        body=st.sampled_from("ab"),
        expires=st.sampled_from([False, False, False, True]),
    )
    def enqueue(self, agent: str, key: str | None, body: str, expires: bool) -> None:
        """A request, perhaps under a key that is known."""
        run_id = keys.new_run_id(SHARD)
        name = keys.dedupe_digest(agent, None, key) if key else ""
        taken = self.view.keys.get(f"key:{name}") if key else None

        def expect() -> Any:
            if taken is not None and self.view.record(taken)["input_digest"] != body:
                raise KeyConflict(taken)
            if taken is None:
                self.model.runs[run_id] = Run(run_id, agent, expired=expires)
            return taken or run_id

        op = runs.enqueue_run(
            run_id=run_id,
            agent=agent,
            session=None,
            key=key,
            body=b'"hello"',
            input_digest=body,
            expires_in_ms=0 if expires else None,
        )
        self.play("enqueue", op, expect, run_id)

    @move(
        4,
        lambda self: any(map(self.model.claimable, (False, True))) or self.turn % 5 == 0,
        worker=st.sampled_from(WORKERS),
        quarantine=st.sampled_from([False, False, True]),
    )
    def claim(self, worker: str, quarantine: bool) -> None:
        """The oldest that is due, continued ones first."""
        due = self.model.claimable(quarantine)
        op = runs.claim_run(
            shard_prefix=PREFIX,
            nonce=self.world.op(),
            worker=worker,
            agents=AGENTS,
            quarantine=quarantine,
        )
        self.claimed("claim", op, due, lambda who, fence: self.model.claim(who, fence, worker, quarantine))

    def claimed(
        self, name: str, op: Op[runs.Claim | None], due: set[str], apply: Callable[[str, str], None]
    ) -> None:
        """The store chooses: one of the longest waiting of those that the model allows."""
        made = self.world.do(op)
        self.reached[f"{name}: {'done' if made else 'nothing'}"] += 1
        assert (made is None) == (not due)
        if made is None:
            self.look(unchanged=True)
            return
        waited = {
            run_id: score
            for index in ("queued", "suspects", "cleaning", "cleaning_alone")
            for agent in AGENTS
            for run_id, score in self.view.scores(f"{index}:{agent}").items()
        }
        assert made.run_id in due
        assert waited[made.run_id] == min(waited[run_id] for run_id in due)
        assert made.fence not in self.model.runs[made.run_id].old_fences
        apply(made.run_id, made.fence)
        self.look(unchanged=False)
        self.remember(Sent(name, op, made, made.run_id, made.fence))
        assert exact(self.world.do(op)) == exact(made)
        self.look(unchanged=True)

    # --- steps ------------------------------------------------------------------------------------------------------

    @move(6, lambda self: self.in_states(*WORKS))
    def write_intent(self, data: st.DataObject) -> None:
        """New calls, calls of earlier attempts, and repeats of what is unknown."""
        able = [run for run in self.in_states(*WORKS) if run.step == run.ended_step or self.turn % 7 == 0]
        if not able:
            return
        run = self.one(data, able)
        old = [
            row_id
            for row_id, row in run.rows.items()
            if row.undo != "succeeded"  # that generation is over: the call would have a new row
            and (row.status == "unknown" or (row.attempt < run.attempt and not row.stands and not row.open))
        ]
        new = [f"{tool}:{len(run.rows) + n}#1" for n, tool in enumerate(TOOLS)]
        rows = []
        for row_id in self.some(data, [*old, *new, *new], most=3, least=0):
            repeat = row_id in run.rows and run.rows[row_id].open
            status = "started" if repeat else data.draw(st.sampled_from(["started", "started", "planned"]))
            rows.append((row_id, row_id.partition(":")[0], status))
        self.intend(run, rows)

    def intend(self, run: Run, rows: list[tuple[str, str, str]]) -> None:
        """The intent of the next step."""
        held = Held(run.id, run.fence or "")
        whole = [steps.RowIntent(name, b"{}", status, tool != "read") for name, tool, status in rows]
        op = intent(held, self.world.op(), step=run.step + 1, base=run.step, rows=whole)
        self.play("intent", op, lambda: self.model.write_intent(run.id, held.fence, rows), *pair(held))

    def calls(self, run: Run, *statuses: str) -> list[str]:
        """Calls of the attempt."""
        return [name for name, r in run.rows.items() if r.attempt == run.attempt and r.status in statuses]

    @move(3, lambda self: any(self.calls(run, "planned") for run in self.in_states(*WORKS)))
    def start_calls(self, data: st.DataObject) -> None:
        """Calls that waited are admitted."""
        able = [run for run in self.in_states(*WORKS) if self.calls(run, "planned")]
        run = self.one(data, able)
        assert run.fence is not None
        names = self.some(data, self.calls(run, "planned"))
        op = steps.start_calls(
            run_id=run.id,
            fence=run.fence,
            op=self.world.op(),
            rows=[(name, run.rows[name].effect) for name in names],
        )
        fence = run.fence
        self.play("start", op, lambda: self.model.start_calls(run.id, fence, names), run.id, fence)

    @move(6, lambda self: self.in_states(*WORKS), ends=st.booleans())
    def record_outcomes(self, data: st.DataObject, ends: bool) -> None:
        """Some calls end; the step may end with the last of them."""
        run, _ = self.working(data)
        made = self.calls(run, "started", "planned") or self.calls(run, "succeeded", "failed", "unknown")
        names = self.some(data, made, least=0) if made else []
        given = [(name, data.draw(st.sampled_from(_ends(run.rows[name].tool)))) for name in names]
        waiting = set(self.calls(run, "started", "planned")) - set(names)
        self.say_outcome(run, given, run.step if ends and not waiting else 0)

    def say_outcome(self, run: Run, given: list[tuple[str, str]], step: int) -> None:
        """What became of calls."""
        held = Held(run.id, run.fence or "")
        rows = [steps.RowOutcome(n, status, b"{}", 1, run.rows[n].effect) for n, status in given]
        op = outcome(held, self.world.op(), ends=step, outcomes=rows)
        self.play(
            "outcome", op, lambda: self.model.record_outcomes(run.id, held.fence, given, step), *pair(held)
        )

    @move(1, lambda self: self.in_states(*WORKS))
    def stop(self, data: st.DataObject) -> None:
        """Asked to stop, and not quiet yet."""
        run, held = self.working(data)
        op = note(held, self.world.op(), stopping=True)
        self.play("stop", op, lambda: self.model.stop(run.id, held.fence), *pair(held))

    @move(2, lambda self: self.in_states(*WORKS), key=st.sampled_from("ab"))
    def declare(self, data: st.DataObject, key: str) -> None:
        """A resource that is about to be created."""
        self.say_declare(self.working(data)[0], key)

    def say_declare(self, run: Run, key: str) -> None:
        """A resource that is about to be created."""
        held = Held(run.id, run.fence or "")
        op = declare(held, self.world.op(), key)
        self.play("declare", op, lambda: self.model.declare(run.id, held.fence, key), *pair(held))

    def say_lock(self, run: Run, name: str) -> None:
        """A lock is registered, then asked for."""
        held, holder = Held(run.id, run.fence or ""), self.world.op()
        op = register(held, self.world.op(), name, holder)
        self.play("register", op, lambda: self.model.register(run.id, held.fence, holder, name), *pair(held))
        take = acquire(held, holder, name, FAR_MS)
        n = run.fence_n
        self.play("acquire", take, lambda: self.model.acquire(run.id, n, holder, name), *pair(held))

    # --- ways to leave a worker -------------------------------------------------------------------------------------

    @move(
        3,
        lambda self: self.in_states(*WORKS),
        how=st.sampled_from(["hand_over", "next", "park", "park_long"]),
    )
    def release(self, data: st.DataObject, how: str) -> None:
        """The run goes on later."""
        self.say_release(self.working(data)[0], how)

    @move(2, lambda self: self.in_states(*WORKS))
    def hand_over(self, data: st.DataObject) -> None:
        """Its worker shuts down."""
        self.say_release(self.working(data)[0], "hand_over")

    def say_release(self, run: Run, how: str) -> None:
        """A worker lets go of a run."""
        held = Held(run.id, run.fence or "")
        to = State.PARKED if how.startswith("park") else State.QUEUED
        continued, counts, due = how != "next", how == "hand_over", how != "park_long"
        op = release(
            held,
            self.world.op(),
            str(to),
            continued=continued,
            due_in_ms=0 if due else FAR_MS,
            max_continuations=MAX_CONTINUATIONS if counts else None,
        )

        def expect() -> State:
            return self.model.release(run.id, held.fence, to, continued=continued, counts=counts, due=due)

        self.play(f"release {how}", op, expect, *pair(held))

    @move(
        4,
        lambda self: self.in_states(*WORKS),
        state=st.sampled_from([State.SUCCEEDED, State.FAILED, State.TIMED_OUT, State.CANCELLED]),
        again=st.booleans(),
        needed=st.sampled_from([None, False, True, True]),
    )
    def end_run(self, data: st.DataObject, state: State, again: bool, needed: bool | None) -> None:
        """The run ends, through cleaning when something has to be made good; `again`: another attempt is to follow."""
        run, _ = self.working(data)
        undo = "none" if state == State.SUCCEEDED else "policy"
        target = State.QUEUED if again and needed is not None and state != State.SUCCEEDED else state
        cause = "timeout" if state == State.TIMED_OUT else "failure"
        how = None if needed is None else runs.Cleaning(cause, target, undo, needed)  # type: ignore[arg-type]
        self.say_end(run, state, how)

    @move(
        3,
        lambda self: self.in_states(*WORKS),
        state=st.sampled_from([State.SUCCEEDED, State.FAILED, State.TIMED_OUT]),
    )
    def end_somehow(self, data: st.DataObject, state: State) -> None:
        """The run ends, and the store alone knows whether there is something to clean up."""
        self.say_end(self.working(data)[0], state, None)

    def say_end(self, run: Run, state: State, how: runs.Cleaning | None) -> None:
        """The end of a run."""
        held = Held(run.id, run.fence or "")
        undo: Any = "none" if state == State.SUCCEEDED else "policy"
        wanted = how or runs.Cleaning("failure", state, undo, needed=False)
        op = end(held, self.world.op(), state, cleaning=how)
        self.play("end", op, lambda: self.model.end_run(run.id, held.fence, state, wanted), *pair(held))

    @move(2)
    def cancel(self, data: st.DataObject) -> None:
        """A user changes their mind, whatever the run is doing."""
        run_id = data.draw(st.sampled_from(sorted(self.model.runs)))
        op = runs.cancel_run(run_id=run_id, cause="user", actor="ada", reason="")
        self.play("cancel", op, lambda: self.model.cancel(run_id), run_id)

    # --- crashes ----------------------------------------------------------------------------------------------------

    @move(4, lambda self: self.busy() or self.turn % 5 == 0, death=st.booleans(), only_expired=st.booleans())
    def lose_worker(self, data: st.DataObject, death: bool, only_expired: bool) -> None:
        """A worker is gone: killed, or not heard of for too long."""
        holders = [worker for worker in WORKERS if self.model.held_by(worker)]
        worker = data.draw(st.sampled_from(holders or list(WORKERS)))
        if only_expired and worker in self.view.scores("lease"):
            self.spare(worker)
            self.world.raw.zadd(f"{PREFIX}lease", {worker: 1})
            self.view = look(self.world.raw)
        op = losing(worker, death=death, only_expired=only_expired)
        told = self.model.lose(worker, death)
        answer = self.world.do(op)
        self.reached[f"lose: {'some' if told else 'nothing'}"] += 1
        assert set(answer.run_ids) == told
        self.look(unchanged=False)
        assert self.world.do(op).run_ids == ()
        self.look(unchanged=True)

    @move(1, lambda self: self.busy())
    def give_up(self, data: st.DataObject) -> None:
        """A worker that lives cannot end a run, and says so."""
        run = self.one(data, self.in_states(*WORKS, State.CLEANING))
        assert run.worker is not None
        worker = run.worker
        told = self.model.lose(worker, False, run.id)
        op = losing(worker, death=False, only_expired=False, only=run.id)
        assert set(self.world.do(op).run_ids) == told
        self.look(unchanged=False)
        assert self.world.do(op).run_ids == ()
        self.look(unchanged=True)

    def spare(self, worker: str) -> None:
        """A worker whose lease has not run out keeps what it has."""
        assert self.world.do(losing(worker, death=False, only_expired=True)).run_ids == ()
        self.look(unchanged=True)

    @move(1, worker=st.sampled_from(WORKERS))
    def renew_lease(self, worker: str, data: st.DataObject) -> None:
        """A heartbeat with what the worker believes to hold, which may be old or not all of it."""
        holds = {run.id for run in self.model.held_by(worker)}
        believed = self.some(data, sorted(self.model.runs), most=4, least=0) if self.model.runs else []
        beat = self.world.do(leases.renew_lease(PREFIX, worker, 10_000, believed))
        assert set(beat.lost) == set(believed) - holds
        assert set(beat.found) == holds - set(believed)
        self.look(unchanged=False)
        assert (worker in self.view.scores("lease")) == bool(holds)

    @move(
        6,
        lambda self: any(map(self.model.cleanable, (False, True))) or self.turn % 5 == 0,
        worker=st.sampled_from(WORKERS),
        alone=st.sampled_from([False, False, True]),
    )
    def claim_cleanup(self, worker: str, alone: bool) -> None:
        """The cleanup that is due longest."""
        due = self.model.cleanable(alone)
        op = cleanup.claim_cleanup(
            shard_prefix=PREFIX, nonce=self.world.op(), worker=worker, agents=AGENTS, alone=alone
        )
        self.claimed(
            "claim cleanup", op, due, lambda who, fence: self.model.claim_cleanup(who, fence, worker)
        )

    def say_review(self, run: Run) -> None:
        """Cleanup gives up."""
        fence = run.fence or ""
        op = cleanup.open_review(
            run_id=run.id, fence=fence, op=self.world.op(), code="C", message="m", items=b"[]"
        )
        self.play("review", op, lambda: self.model.open_review(run.id, fence, "C"), run.id, fence)

    # --- what is due ------------------------------------------------------------------------------------------------

    @move(2)
    def sweep(self) -> None:
        """Parked runs that are due wait again, expired ones end."""
        woken = self.model.sweep_parked()
        found = self.world.do(sweep.sweep_parked(PREFIX))
        assert set(found) == woken
        self.look(unchanged=not woken)
        over = self.model.sweep_expired()
        found = self.world.do(sweep.sweep_expired(PREFIX))
        assert set(found) == over
        self.look(unchanged=not over)
        self.reached["sweep: parked"] += len(woken)

    @move(2, lambda self: any(not run.due for run in self.model.runs.values()))
    def time_passes(self) -> None:
        """Whatever waits for a moment is due."""
        for run in self.model.runs.values():
            for name in ("due", f"cleaning:{run.agent}", f"cleaning_alone:{run.agent}"):
                if run.id in self.view.scores(name):
                    self.world.raw.zadd(f"{PREFIX}{name}", {run.id: 1})
            run.due = True
        self.view = look(self.world.raw)


def losing(worker: str, *, death: bool, only_expired: bool, only: str = "") -> Op[leases.Lost]:
    """The loss of a worker, with limits that a short sequence reaches."""
    op = leases.lose_worker(PREFIX, worker, only_expired=only_expired, death=death, run_id=only)
    head, tail = op.args[:3], op.args[5:]
    return dataclasses.replace(op, args=(*head, MAX_CONTINUATIONS, MAX_DEATHS, *tail))


def _ends(tool: str) -> list[str]:
    ends = ["succeeded", "succeeded", "failed", "aborted_before_dispatch"]
    return ends if tool == "read" else [*ends, "unknown", "unknown"]

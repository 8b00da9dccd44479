"""The store's operations with plain defaults, and those under a fence, each with the place it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from makegood.store.ops import locks, resources, runs, steps
from makegood.store.ops.args import NewEvent, Sample, Spent
from makegood.store.scripts import Op
from makegood.store.states import State

if TYPE_CHECKING:
    from support.store import World


@dataclass(frozen=True, slots=True)
class Held:
    """A claimed run: its id and fence."""

    run_id: str
    fence: str


def intent(
    held: Held,
    op: str,
    *,
    step: int = 1,
    base: int | None = None,
    rows: Sequence[tuple[str, str] | steps.RowIntent] = (("a", "started"),),
    effect: bool = True,
    **over: Any,
) -> Op[steps.Ack]:
    """The intent of a step with rows given whole, or as (name, status)."""

    def whole(row: tuple[str, str] | steps.RowIntent) -> steps.RowIntent:
        return row if isinstance(row, steps.RowIntent) else steps.RowIntent(row[0], b"{}", row[1], effect)

    given: dict[str, Any] = {
        "step": step,
        "base": step - 1 if base is None else base,
        "counts": True,
        "decision": b"{}",
        "rows": [whole(row) for row in rows],
        "new_events": [NewEvent("step.started", {}, step, spent=Spent(10, 5, 0.25))],
    } | over
    return steps.write_intent(run_id=held.run_id, fence=held.fence, op=op, **given)


def start(held: Held, op: str, *names: str) -> Op[steps.Ack]:
    """Admit planned rows."""
    return steps.start_calls(
        run_id=held.run_id,
        fence=held.fence,
        op=op,
        rows=[(name, True) for name in names],
        new_events=[NewEvent("tool.started", {}, 1, name) for name in names],
    )


def outcome(
    held: Held,
    op: str,
    *names: str,
    status: str = "succeeded",
    ends: int = 0,
    effect: bool = True,
    **over: Any,
) -> Op[steps.Ack]:
    """Outcomes of rows, all with one status; `ends` is the step that ends with them."""
    given: dict[str, Any] = {
        "ended_step": ends,
        "outcomes": [
            steps.RowOutcome(name, status, f'{{"of":"{name}"}}'.encode(), 1, effect) for name in names
        ],
        "latencies": [Sample("tool:mail", 3, 20) for _ in names],
        "new_events": [NewEvent("tool.ended", {}, 1, name) for name in names],
    } | over
    return steps.record_outcomes(run_id=held.run_id, fence=held.fence, op=op, **given)


def note(held: Held, op: str, **over: Any) -> Op[steps.Ack]:
    """An activity with one event."""
    given: dict[str, Any] = {
        "activity": b'{"activity":"backing_off"}',
        "sends": 2,
        "new_events": [NewEvent("llm.retry", {}, 1)],
    } | over
    return steps.note_activity(run_id=held.run_id, fence=held.fence, op=op, **given)


def release(held: Held, op: str, target: str = "queued", **over: Any) -> Op[State]:
    """Let go of a run: handed over, or parked for a minute."""
    given: dict[str, Any] = {"continued": True, "new_events": [NewEvent("run.handed_over", {})]} | over
    if target == "parked":
        given = {"due_in_ms": 60_000} | given
    return runs.release_run(run_id=held.run_id, fence=held.fence, op=op, target=target, **given)  # type: ignore[arg-type]


def end(held: Held, op: str, state: State = State.SUCCEEDED, **over: Any) -> Op[State]:
    """The end of a run; its run.ended comes from the script."""
    given: dict[str, Any] = {
        "output": b'"done"',
        "latencies": [Sample("run:support", 9, 1000)],
        "new_events": [NewEvent("attempt.ended", {"code": None})],
    } | over
    return runs.end_run(run_id=held.run_id, fence=held.fence, op=op, state=state, **given)


def declare(held: Held, op: str, key: str = "k", body: bytes = b'{"prior":1}', **over: Any) -> Op[steps.Ack]:
    """The declaration of a resource."""
    return resources.declare_resource(run_id=held.run_id, fence=held.fence, op=op, key=key, body=body, **over)


def settle(
    held: Held, op: str, status: str = "rolled_back", key: str = "k", **over: Any
) -> Op[resources.Settled]:
    """How rolling a resource back ended."""
    given: dict[str, Any] = {"new_events": [NewEvent(f"cleanup.{status}", {})]} | over
    return resources.settle_resource(
        run_id=held.run_id,
        fence=held.fence,
        op=op,
        key=key,
        status=status,  # type: ignore[arg-type]
        **given,
    )


def register(held: Held, op: str, name: str = "account", holder: str = "h1") -> Op[steps.Ack]:
    """A lock that is about to be taken."""
    return locks.register_lock(run_id=held.run_id, fence=held.fence, op=op, holder=holder, name=name)


def unregister(held: Held, op: str, name: str = "account", holder: str | None = "h1") -> Op[steps.Ack]:
    """A lock that was given back."""
    return locks.unregister_lock(run_id=held.run_id, fence=held.fence, op=op, name=name, holder=holder)


def acquire(held: Held, holder: str, name: str = "account", lifetime_ms: int = 60_000) -> Op[locks.Taking]:
    """Take a lock."""
    return locks.acquire_lock(
        run_id=held.run_id, fence=held.fence, holder=holder, name=name, lifetime_ms=lifetime_ms
    )


# --- operations under a fence, each with the place it needs ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fenced:
    """An operation that checks a fence: how to get a run where it is possible, and the operation."""

    name: str
    ready: Callable[[World], Held]
    make: Callable[..., Op[Any]]

    def __str__(self) -> str:
        return self.name


FENCED = (
    Fenced("write_intent", lambda world: world.running(), intent),
    Fenced("start_calls", lambda world: world.in_step(), lambda held, op: start(held, op, "b")),
    Fenced("record_outcomes", lambda world: world.in_step(), lambda held, op: outcome(held, op, "a")),
    Fenced("step_end", lambda world: world.in_step(), lambda held, op: outcome(held, op, "a", ends=1)),
    Fenced("empty_step_end", lambda world: world.in_step(), lambda held, op: outcome(held, op, ends=1)),
    Fenced("declare_resource", lambda world: world.running(), declare),
    Fenced("register_lock", lambda world: world.running(), register),
    Fenced("unregister_lock", lambda world: world.running(), unregister),
    Fenced("note_activity", lambda world: world.running(), note),
    Fenced("note_stopping", lambda world: world.running(), lambda held, op: note(held, op, stopping=True)),
    Fenced(
        "hand_over", lambda world: world.in_step(), lambda held, op: release(held, op, max_continuations=10)
    ),
    Fenced(
        "next_attempt", lambda world: world.settled(), lambda held, op: release(held, op, continued=False)
    ),
    Fenced("park", lambda world: world.in_step(), lambda held, op: release(held, op, "parked")),
    Fenced("end_run", lambda world: world.settled(), end),
    Fenced("end_run_dirty", lambda world: world.in_step(), end),
)


def plain(answer: Any) -> Any:
    """An answer without the server's clock."""
    return answer.cancel if isinstance(answer, steps.Ack) else answer

"""Random sequences of store operations, each checked against the model: what a worker does with runs.

After each rule the whole shard is compared with the model. An operation that is refused, or that is sent again (at once, or
much later, after others), must change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from makegood.errors import Conflict, KeyConflict, StaleFence
from makegood.store.codes import OutOfOrder, TooManyContinuations, Unsettled
from makegood.store.ops import locks, review, runs, steps
from makegood.store.ops.resources import Settled
from makegood.store.scripts import Op
from makegood.store.states import State
from support.store import World
from support.store_model import WORKS
from support.store_model_cleanup import Lock, WholeModel
from support.store_model_run import Run
from support.store_ops import Held
from support.store_view import check_model, check_run, check_step, counters, look

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

AGENTS = ("alpha", "beta")
WORKERS = ("worker-1", "worker-2")
LOCKS = ("account", "till")
TOOLS = ("hotel", "mail", "read")
FAR_MS = 10_000_000
SCENES = ("claimed", "in step", "in doubt", "next attempt", "ends", "cleaned up", "asked about")
OFTEN = ("claimed", "locked", "in step", *SCENES)

REFUSALS = (Conflict, KeyConflict, StaleFence, OutOfOrder, TooManyContinuations, Unsettled)


@dataclass(frozen=True, slots=True, repr=False)
class Sent:
    """An operation that was done, its answer, and the run and fence it was for."""

    name: str
    op: Op[Any]
    answer: Any
    run_id: str
    fence: str | None

    def __repr__(self) -> str:
        return f"{self.name} of {self.run_id} under {self.fence}: {plain(self.answer)}"


def plain(answer: Any) -> Any:
    """An answer without the server's clock and without what is true of the moment only."""
    if isinstance(answer, steps.Ack):
        return "ack"
    if isinstance(answer, runs.Claim):
        return answer.run_id, answer.fence
    if isinstance(answer, runs.Enqueued):
        return answer.run_id
    if isinstance(answer, runs.Cancelled):
        return answer.accepted
    if isinstance(answer, review.Requested):
        return answer.result
    if isinstance(answer, review.Decided):
        return answer.state
    if isinstance(answer, review.Marked):
        return answer.became
    if isinstance(answer, locks.Taking):
        return answer.token is not None
    if isinstance(answer, Settled):
        return answer.tries, answer.status
    return "now" if isinstance(answer, int) and answer > 1e12 else answer


def exact(answer: Any) -> Any:
    """What a repetition has to answer."""
    whole = isinstance(answer, review.Requested | review.Decided | review.Marked)
    return answer if whole else plain(answer)


@dataclass(frozen=True, slots=True)
class Move:
    """What may be done next: how often of all, when it can be, and what it draws."""

    weight: int
    when: Callable[[Any], Any]
    given: Mapping[str, st.SearchStrategy[Any]]


def move(
    weight: int, when: Callable[[Any], Any] = lambda self: True, **given: st.SearchStrategy[Any]
) -> Callable[[F], F]:
    """Marks a method of the machine as a move; `data` is drawn in any case."""

    def mark(method: F) -> F:
        method.move = Move(weight, when, given)  # type: ignore[attr-defined]
        return method

    return mark


class StoreMachine(RuleBasedStateMachine):
    """A store, its model, and what was sent to it."""

    world: ClassVar[World]
    reached: ClassVar[Counter[str]] = Counter()
    """How often each operation was done or refused, over all sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.world.raw.flushall()
        self.model = WholeModel(locks={name: Lock() for name in LOCKS})
        self.sent: list[Sent] = []
        self.cancels: dict[str, Sent] = {}
        self.view = look(self.world.raw)
        self.turn = 0

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """One of the moves that can be made now, the important ones more often."""
        moves = {name: getattr(type(self), name) for name in dir(type(self))}
        able = {name: each for name, each in moves.items() if hasattr(each, "move") and each.move.when(self)}
        name = data.draw(
            st.sampled_from([name for name in able for _ in range(able[name].move.weight)]), "next"
        )
        given = {what: data.draw(drawn, what) for what, drawn in able[name].move.given.items()}
        if "data" in able[name].__annotations__:
            given["data"] = data
        able[name](self, **given)
        self.turn += 1

    def busy(self) -> list[Run]:
        """Runs that somebody holds."""
        return self.in_states(*WORKS, State.CLEANING)

    # --- sending ----------------------------------------------------------------------------------------------------

    def ask(self, op: Op[Any]) -> Any:
        """The answer, or the kind of refusal."""
        try:
            return self.world.do(op)
        except REFUSALS as error:
            return type(error)

    def play(
        self, name: str, op: Op[Any], expect: Callable[[], Any], run_id: str = "", fence: str | None = None
    ) -> Any:
        """Do an operation in the model and in the store; then send it again."""
        try:
            wanted = expect()
        except REFUSALS as error:
            wanted = type(error)
        answer = self.ask(op)
        assert plain(answer) == wanted, name
        refused = isinstance(wanted, type)
        self.reached[f"{name}: {wanted.__name__ if refused else 'done'}"] += 1
        self.look(unchanged=refused)
        if not refused:
            self.remember(Sent(name, op, answer, run_id, fence))
            assert exact(self.ask(op)) == exact(answer), f"{name}, sent again"
            self.look(unchanged=True)
        return answer

    def remember(self, sent: Sent) -> None:
        """It may come a second time, later. A cancel for which there was nothing to do was no cancel."""
        if sent.name == "cancel" and not sent.answer.accepted:
            return
        self.sent.append(sent)
        if sent.name == "cancel":
            self.cancels[sent.run_id] = sent

    def look(self, *, unchanged: bool) -> None:
        """Compare the store with the model, and with what it was."""
        before, self.view = self.view, look(self.world.raw)
        if unchanged:
            assert self.view.keys == before.keys
            return
        check_step(before, self.view)
        assert set(self.view.run_ids) == set(self.model.runs)
        for run in self.model.runs.values():
            check_run(self.view, run.id)
            check_model(self.view, run)
        assert counters(self.view) == self.model.counters

    # --- choosing ---------------------------------------------------------------------------------------------------

    def in_states(self, *states: State, held: bool = True) -> list[Run]:
        """Runs in these states that somebody holds, or nobody."""
        return [
            run
            for run in self.model.runs.values()
            if run.state in states and (run.worker is not None) == held
        ]

    def working(self, data: st.DataObject) -> tuple[Run, Held]:
        """A run that is executed."""
        run = self.one(data, self.in_states(*WORKS))
        assert run.fence is not None
        return run, Held(run.id, run.fence)

    def one(self, data: st.DataObject, items: Sequence[T]) -> T:
        """One of them, shown by its name."""
        named = {f"{number}: {item!r}": item for number, item in enumerate(items)}
        return named[data.draw(st.sampled_from(list(named)))]

    def some(self, data: st.DataObject, items: Sequence[T], most: int = 2, least: int = 1) -> list[T]:
        """A few of them."""
        return data.draw(st.lists(st.sampled_from(items), min_size=least, max_size=most, unique=True))


def pair(held: Held) -> tuple[str, str]:
    """Run and fence."""
    return held.run_id, held.fence

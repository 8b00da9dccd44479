"""One claimed cleanup: what it knows of its run, its limits, and what it finds out during a pass."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from makegood.store.ops.args import NewEvent, Sample
from makegood.store.ops.cleanup import SentAgain, note_cleanup
from makegood.store.ops.runs import Claim
from makegood.store.states import State
from makegood.tasks.agent import Agent
from makegood.tasks.cancel import Cancel
from makegood.tasks.engine.attempt import Fenced
from makegood.tasks.engine.env import Env
from makegood.tasks.http import AttemptHttp
from makegood.tasks.journal import Entry
from makegood.tasks.means import means_of
from makegood.tasks.rollbacks import Declared
from makegood.tasks.rules.cleaning import MeansOf, Undoing
from makegood.tasks.rules.deadline import Deadline
from makegood.tasks.rules.rows import Row


@dataclass(frozen=True, slots=True)
class Item:
    """One open question for a person; `resource` is {kind, id} where it is about one."""

    kind: Literal["unknown", "compensation", "resource", "irreversible", "timeout", "poison"]
    code: str
    message: str
    call_key: str = ""
    generation: int = 0
    tool: str = ""
    resource: dict[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the review record keeps it."""
        return asdict(self)


@dataclass(slots=True)
class Case:
    """State of one pass in one worker.

    Attributes:
        entries: journal rows by row id, of all attempts and generations.
        resources, locks: what the run declared; names of the locks it may hold.
        deadline: of this pass.
        items: what a person will have to decide, unless something else helps.
        waits_until_ms: when an unknown outcome may be settled that cannot be yet.
        uses_pass: what ends this pass counts as one: a wait for a breaker, or work that does not end.
        may_undo: rows of unknown outcome whose compensation may run now.
        out_of_time: something was left for the next pass.
        on_stopping: set when something of it does not end; others may have its slot.
    """

    env: Env
    agent: Agent
    claim: Claim
    deadline: Deadline
    entries: dict[str, Entry] = field(default_factory=dict)
    resources: list[Declared] = field(default_factory=list)
    locks: list[str] = field(default_factory=list)
    cancel: Cancel = field(default_factory=Cancel)
    http: AttemptHttp = field(default_factory=AttemptHttp)
    items: list[Item] = field(default_factory=list)
    waits_until_ms: int | None = None
    uses_pass: bool = False
    may_undo: set[str] = field(default_factory=set)
    out_of_time: bool = False
    on_stopping: asyncio.Event = field(default_factory=asyncio.Event)
    means: MeansOf = field(init=False)
    began_s: float = field(default_factory=time.monotonic)
    _ops: Any = field(default_factory=itertools.count)
    _nonce: str = field(default_factory=lambda: secrets.token_hex(6))

    def __post_init__(self) -> None:
        self.means = means_of(self.agent, self.env.limits)

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.claim.run_id

    @property
    def rows(self) -> list[Row]:
        """Journal rows of all attempts."""
        return [entry.row for entry in self.entries.values()]

    @property
    def undoing(self) -> Undoing:
        """What the case undoes."""
        found = self.claim.record.get("cl_undo", "policy")
        return "none" if found == "none" else "all" if found == "all" else "policy"

    @property
    def target(self) -> State:
        """What follows when everything is made good."""
        return State(self.claim.record["cl_target"])

    @property
    def poison(self) -> bool:
        """Whether its cleanup took down every process that executed it: nothing of it runs any more."""
        return self.claim.record.get("cl_poison") == "1"

    @property
    def run_was_poison(self) -> bool:
        """Whether the run took down every process that executed it: it goes to a person in any case."""
        return self.target == State.REVIEW

    @property
    def round(self) -> int:
        """Grows with every retry of an operator; tries count per round."""
        return int(self.claim.record.get("cl_round") or 0)

    @property
    def passes_used(self) -> int:
        """Passes before this one."""
        return int(self.claim.record.get("cl_passes") or 0)

    @property
    def lost_ms(self) -> int:
        """By then no request of a call without recorded end can have left any more (invariant 4)."""
        record = self.claim.record
        return int(record.get("lost_at") or record["cl_at"])

    @property
    def repeat_lost_ms(self) -> int:
        """When a worker of this cleanup was lost last; 0 when none was."""
        return int(self.claim.record.get("cl_lost_at") or 0)

    @property
    def stops(self) -> bool:
        """Whether nothing more may begin in this pass."""
        if not self.cancel.asked and not self.deadline.expired(time.monotonic()):
            return False
        self.out_of_time = True
        return True

    def now_ms(self) -> int:
        """The server's clock, as it looks from here."""
        return self.claim.now_ms + round((time.monotonic() - self.began_s) * 1000)

    def op(self) -> str:
        """A fresh operation id."""
        return f"{self._nonce}-{next(self._ops)}"

    def fresh(self) -> Fenced:
        """Keyword arguments that every fenced operation takes."""
        return Fenced(run_id=self.run_id, fence=self.claim.fence, op=self.op())

    def wait_until(self, at_ms: int) -> None:
        """The pass ends in a wait, for the latest moment that is needed."""
        self.waits_until_ms = max(at_ms, self.waits_until_ms or 0)

    def ask(self, item: Item) -> None:
        """A person will have to decide this."""
        self.items.append(item)

    def has_time_for(self, wait_s: float, limit_s: float | None) -> bool:
        """Whether another try fits into this pass, after its wait; what does not fit is left for the next pass."""
        needed_s = wait_s + (0.0 if limit_s is None else limit_s)
        fits = not self.cancel.asked and needed_s <= self.deadline.left_s(time.monotonic())
        self.out_of_time = self.out_of_time or not fits
        return fits

    async def note(
        self,
        activity: bytes,
        again: SentAgain | None = None,
        latencies: Sequence[Sample] = (),
        new_events: Sequence[NewEvent] = (),
    ) -> None:
        """Show what starts now, before it starts: it may hang, or kill this process. Or what has just ended."""
        op = note_cleanup(
            **self.fresh(), activity=activity, again=again, latencies=latencies, new_events=new_events
        )
        await self.env.store.do(op)

    def repeats_of(self, row: Row) -> int:
        """How often cleanup has sent the call again in this round."""
        return row.repeats if row.repeats_round == self.round else 0


def pass_deadline(limit_s: float | None) -> Deadline:
    """The limit of a pass that begins now."""
    return Deadline.after(math.inf if limit_s is None else limit_s, time.monotonic(), "run")

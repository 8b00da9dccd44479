"""A run as the model knows it: its state, its calls and resources, and what is remembered while it is cleaned up."""

from __future__ import annotations

from dataclasses import dataclass, field

from makegood.store.states import State


@dataclass(slots=True)
class Row:
    """A journal row; a tool whose name begins with `read` has no effects. `tries` of its undo are those of `round`."""

    tool: str
    attempt: int
    status: str
    undo: str = ""
    tries: int = 0
    round: int = 0

    @property
    def effect(self) -> bool:
        """Whether the call changes the world."""
        return not self.tool.startswith("read")

    @property
    def open(self) -> bool:
        """Whether it is not known if the effect happened."""
        return self.effect and self.status in ("started", "unknown") and self.undo != "succeeded"

    @property
    def half_undone(self) -> bool:
        """Whether its undo was begun and neither succeeded nor was decided about."""
        return self.undo in ("started", "failed", "unknown")

    @property
    def stands(self) -> bool:
        """Whether the effect happened and was not undone."""
        return self.effect and self.status == "succeeded" and self.undo != "succeeded"


@dataclass(slots=True)
class Resource:
    """A declared resource and the tries of rolling it back in a round."""

    status: str = "declared"
    tries: int = 0
    round: int = 0


@dataclass(slots=True)
class Cleaning:
    """What is remembered while a run is cleaned up or waits for a person."""

    cause: str
    target: State
    end: State
    passes: int = 0
    deaths: int = 0
    alone: int = 0
    losses: int = 0
    open: bool = False
    suspect: bool = False
    poison: bool = False
    cancelled: bool = False


@dataclass(slots=True, repr=False)
class Run:
    """A run as it must be. `fence` None: no fence is valid. `due`: a run that waits may go on now."""

    id: str
    agent: str
    expired: bool = False
    state: State = State.QUEUED
    fence: str | None = None
    fence_n: int = 0
    old_fences: list[str] = field(default_factory=list)
    worker: str | None = None
    attempt: int = 0
    step: int = 0
    ended_step: int = 0
    continued: bool = False
    continuations: int = 0
    cannot_continue: bool = False
    cancel: bool = False
    suspect: bool = False
    alone_after: int | None = None
    crashes: int = 0
    deaths: int = 0
    alone_deaths: int = 0
    open_calls: int = 0
    due: bool = True
    rows: dict[str, Row] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    registered: set[tuple[int, str, str]] = field(default_factory=set)
    cleaning: Cleaning | None = None
    round: int = 0
    reviews: int = 0
    verdict: State | None = None
    counted: bool = False

    def __repr__(self) -> str:
        return f"{self.state} {self.id}"

    @property
    def left(self) -> int:
        """Resources that are not rolled back."""
        return sum(each.status in ("declared", "failed") for each in self.resources.values())

    @property
    def unsettled(self) -> bool:
        """Whether no policy lets the run end like this."""
        return any(row.open for row in self.rows.values()) or bool(self.registered)

    @property
    def dirty(self) -> bool:
        """Whether cleanup may have something to do."""
        return self.unsettled or self.left > 0 or any(row.stands for row in self.rows.values())

    def let_go(self) -> None:
        """Nobody holds the run any more."""
        if self.fence is not None:
            self.old_fences.append(self.fence)
        self.fence = self.worker = None

    def take(self, fence: str, worker: str) -> None:
        """Somebody holds it."""
        self.fence, self.worker, self.fence_n = fence, worker, self.fence_n + 1
        assert fence.startswith(f"{self.fence_n}:")

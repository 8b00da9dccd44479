"""The breaker of a tool, a named downstream or a model (CONTRACT C9, J22): the twin of its Lua.

Only infrastructure failures count, try by try. 4xx, business failures and cancelled tries are `on_neutral`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from makegood.tasks.policies import BreakerPolicy

State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerState:
    """What is kept of a breaker. All times are server wall clock milliseconds.

    `failures_ms` are the last failures in a row, oldest first, while closed. `held` says that an operator
    opened it: no time ends that. `probe_owner` names the one try that may pass while half open, until
    `probe_until_ms`; "" is none.
    """

    state: State = "closed"
    failures_ms: tuple[int, ...] = ()
    opened_at_ms: int = 0
    open_until_ms: int = 0
    probe_owner: str = ""
    probe_until_ms: int = 0
    held: bool = False

    @property
    def untouched(self) -> bool:
        """True when a success has nothing to write (the store is written only on a failure or after one)."""
        return self.state == "closed" and not self.failures_ms

    def seen_at(self, now_ms: int) -> State:
        """Returns the state to show: an open breaker whose time is over waits half open for its probe."""
        over = self.state == "open" and not self.held and now_ms >= self.open_until_ms
        return "half_open" if over else self.state


@dataclass(frozen=True, slots=True)
class Admitted:
    """The try may run; as a `probe` its outcome must be reported under the owner's name."""

    probe: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """BREAKER_OPEN: worth asking again at `until_ms`, None while an operator holds it open."""

    until_ms: int | None


def admit(
    state: BreakerState, now_ms: int, *, owner: str, lease_ms: int
) -> tuple[BreakerState, Admitted | Rejected]:
    """Returns the state after `owner`, a name unique to one try, asked to run, and the answer.

    One probe at a time passes after the open time; its lease of `lease_ms` ends if its worker dies. Asking again
    under the same name repeats the first answer.
    """
    if state.state == "closed":
        return state, Admitted()
    if state.held:
        return state, Rejected(None)
    if state.state == "open" and now_ms < state.open_until_ms:
        return state, Rejected(state.open_until_ms)
    taken = bool(state.probe_owner) and now_ms < state.probe_until_ms
    if state.state == "half_open" and taken:
        return state, Admitted(probe=True) if state.probe_owner == owner else Rejected(state.probe_until_ms)
    probing = replace(state, state="half_open", probe_owner=owner, probe_until_ms=now_ms + lease_ms)
    return probing, Admitted(probe=True)


def on_failure(state: BreakerState, policy: BreakerPolicy, now_ms: int, *, owner: str) -> BreakerState:
    """Returns the state after the try `owner` failed for infrastructure reasons.

    Opens with the last of `policy.failures` in a row within `policy.window` seconds, or when the probe fails. What
    fails late, begun before the breaker opened, changes nothing.
    """
    if state.state == "closed":
        since_ms = now_ms - round(policy.window * 1000)
        recent = (*(at for at in state.failures_ms if at >= since_ms), now_ms)[-policy.failures :]
        if len(recent) < policy.failures:
            return replace(state, failures_ms=recent)
        return _opened(policy, now_ms)
    return _opened(policy, now_ms) if _is_probe(state, owner) else state


def on_success(state: BreakerState, *, owner: str) -> BreakerState:
    """Returns the state after the try `owner` succeeded: the row is broken; a probe closes the breaker."""
    if state.state == "closed" or _is_probe(state, owner):
        return BreakerState()
    return state


def on_neutral(state: BreakerState, *, owner: str) -> BreakerState:
    """Returns the state after a try that does not count (4xx, cancelled): a probe gives its place to the next."""
    return replace(state, probe_owner="", probe_until_ms=0) if _is_probe(state, owner) else state


def hold_open(now_ms: int) -> BreakerState:
    """Returns the state of a breaker that an operator opened: until an operator closes it."""
    return BreakerState("open", opened_at_ms=now_ms, held=True)


def close() -> BreakerState:
    """Returns the state of a breaker that an operator closed: as new."""
    return BreakerState()


def to_fields(state: BreakerState) -> dict[str, str]:
    """Returns the state as flat strings, as a Redis hash holds it."""
    return {
        "state": state.state,
        "failures_ms": ",".join(map(str, state.failures_ms)),
        "opened_at_ms": str(state.opened_at_ms),
        "open_until_ms": str(state.open_until_ms),
        "probe_owner": state.probe_owner,
        "probe_until_ms": str(state.probe_until_ms),
        "held": "1" if state.held else "0",
    }


def from_fields(fields: Mapping[str, str]) -> BreakerState:
    """Returns the state that `to_fields` wrote; a missing hash or field is that of a new breaker."""
    name = fields.get("state", "closed")
    if name not in ("closed", "open", "half_open"):
        raise ValueError(f"a breaker has no state {name!r}")
    return BreakerState(
        state=cast("State", name),
        failures_ms=tuple(int(at) for at in fields.get("failures_ms", "").split(",") if at),
        opened_at_ms=int(fields.get("opened_at_ms") or 0),
        open_until_ms=int(fields.get("open_until_ms") or 0),
        probe_owner=fields.get("probe_owner", ""),
        probe_until_ms=int(fields.get("probe_until_ms") or 0),
        held=fields.get("held") == "1",
    )


def _is_probe(state: BreakerState, owner: str) -> bool:
    return state.state == "half_open" and bool(owner) and state.probe_owner == owner


def _opened(policy: BreakerPolicy, now_ms: int) -> BreakerState:
    return BreakerState("open", opened_at_ms=now_ms, open_until_ms=now_ms + round(policy.open_for * 1000))

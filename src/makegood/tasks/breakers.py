"""The breakers as one worker sees them: read once a second, written only after a failure (CONTRACT C9)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from makegood.store.async_store import AsyncStore
from makegood.store.ops import breakers as ops
from makegood.tasks.policies import BreakerPolicy
from makegood.tasks.rules.breaker import Admitted, BreakerState, Rejected, from_fields

PROBE_LEASE_S = 60.0
"""How long a half-open breaker waits for its probe before another call may try; longer than a call's own limit."""


@dataclass(slots=True)
class BreakerBoard:
    """Breakers by name; a name that is not here never failed."""

    store: AsyncStore
    states: dict[str, BreakerState] = field(default_factory=dict)
    _offset_ms: float = 0.0

    async def refresh(self) -> None:
        """Read all breakers and the server's clock."""
        fields, now_ms = await self.store.do_all([ops.read_breakers(), ops.server_time()])
        self._offset_ms = now_ms - time.monotonic() * 1000
        self.states = {name: from_fields(value) for name, value in fields.items()}

    def rejects(self, name: str) -> Rejected | None:
        """The rejection when the breaker is plainly open, without asking the store."""
        state = self.states.get(name)
        if state is None or state.state != "open":
            return None
        if state.held:
            return Rejected(None)
        return Rejected(state.open_until_ms) if self.now_ms() < state.open_until_ms else None

    def now_ms(self) -> int:
        """The server's clock as far as this worker knows it."""
        return int(time.monotonic() * 1000 + self._offset_ms)

    async def admit(self, name: str, owner: str, limit_s: float) -> Admitted | Rejected:
        """May this try run? Asks the store only when the breaker is not plainly closed or open."""
        state = self.states.get(name)
        if state is None or state.state == "closed":
            return Admitted()
        rejected = self.rejects(name)
        if rejected is not None:
            return rejected
        lease_ms = int(max(PROBE_LEASE_S, limit_s * 2) * 1000)
        answer = await self.store.do(ops.admit(name, owner, lease_ms))
        self._learn(name, answer.fields, answer.now_ms)
        return Admitted(answer.probe) if answer.admitted else Rejected(answer.until_ms)

    async def report(
        self, name: str, policy: BreakerPolicy, owner: str, outcome: Literal["failure", "success", "neutral"]
    ) -> str | None:
        """Report a try; returns the new state's name when the breaker changed its state."""
        known = self.states.get(name)
        if outcome != "failure" and (known is None or known.untouched):
            return None
        told = await self.store.do(
            ops.report(
                name,
                owner,
                outcome,
                failures=policy.failures,
                window_ms=round(policy.window * 1000),
                open_for_ms=round(policy.open_for * 1000),
            )
        )
        self._learn(name, told.after, told.now_ms)
        return told.after["state"] if told.after["state"] != told.before["state"] else None

    def _learn(self, name: str, fields: dict[str, str], now_ms: int) -> None:
        self._offset_ms = now_ms - time.monotonic() * 1000
        self.states[name] = from_fields(fields)

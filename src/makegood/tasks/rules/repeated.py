"""Does the model run into the same failure again and again? (CONTRACT A5)"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: So many times in a row end the run with REPEATED_FAILURE.
LIMIT = 3

# Not the call's own failure: it neither counts nor breaks the row (CONTRACT C9 for the breaker).
NEUTRAL_CODES = frozenset({"BREAKER_OPEN", "POSSIBLE_REPEAT", "ABORTED_BEFORE_DISPATCH", "ABORTED"})

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call of a step: its tool (declared or not), the digest of its arguments, its error or None."""

    tool: str
    args_digest: str
    code: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Streak:
    """A call that failed `count` times in a row with the same error."""

    tool: str
    args_digest: str
    error: str
    count: int


@dataclass(frozen=True, slots=True)
class Repeats:
    """The rows of failures that are open now; begin an attempt with `Repeats()`."""

    streaks: tuple[Streak, ...] = ()

    @property
    def tripped(self) -> Streak | None:
        """The failure that has to end the run, or None."""
        return next((streak for streak in self.streaks if streak.count >= LIMIT), None)


def observe_step(repeats: Repeats, outcomes: Sequence[Outcome]) -> Repeats:
    """Returns the rows after one step.

    A row goes on when the same call fails with the same error in the next step, whatever ran beside it; parallel
    identical calls count each. A step in which the call did not fail so breaks its row, one in which it was not
    really run (`NEUTRAL_CODES`) leaves it as it is.
    """
    before = {(s.tool, s.args_digest, s.error): s.count for s in repeats.streaks}
    failed = Counter(_keys(outcomes))
    not_run = {(o.tool, o.args_digest) for o in outcomes if o.code in NEUTRAL_CODES}
    after = {key: before.get(key, 0) + count for key, count in failed.items()}
    after |= {key: n for key, n in before.items() if key not in after and key[:2] in not_run}
    return Repeats(tuple(Streak(*key, count=n) for key, n in after.items()))


def error_signature(code: str, message: str) -> str:
    """Returns what makes two errors the same: the code and the message without its numbers (times, ids)."""
    return f"{code}: {_DIGITS.sub('#', message)}"


def _keys(outcomes: Iterable[Outcome]) -> Iterable[tuple[str, str, str]]:
    for o in outcomes:
        if o.code is not None and o.code not in NEUTRAL_CODES:
            yield (o.tool, o.args_digest, error_signature(o.code, o.message))

"""Return codes of the scripts and the errors they stand for, in one place."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from makegood.errors import Conflict, KeyConflict, MakegoodError, RunNotFound, StaleFence


class Code(IntEnum):
    """Negative first element of a script's reply. The same names stand in `lua/_prelude.lua`."""

    NOT_FOUND = -1
    STALE_FENCE = -2
    BAD_STATE = -3
    KEY_CONFLICT = -4
    OUT_OF_ORDER = -5
    NOTHING = -6
    TOO_MANY = -7
    UNSETTLED = -8
    OLD_VERSION = -9


class OutOfOrder(MakegoodError):
    """What was to be written does not follow what is stored: a step that has not ended, a call that is settled already."""


class TooManyContinuations(MakegoodError):
    """The attempt was continued as often as one attempt may be: 10 times."""


class Unsettled(MakegoodError):
    """Something has to be cleaned up first, or the cleanup worked for another end than the one it is to have now."""


def text(value: Any) -> str:
    """A reply's bytes as text; None becomes the empty string."""
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)


def checked(reply: list[Any], run_id: str) -> list[Any]:
    """The reply, when it is no error; else the error that its code stands for."""
    code = int(reply[0])
    if code >= 0:
        return reply
    if code == Code.NOT_FOUND:
        raise RunNotFound(f"There is no run {run_id} in this store; check the id and the store's URL.")
    if code == Code.STALE_FENCE:
        raise StaleFence(
            f"Run {run_id} is executed by someone else by now; this worker stops its own work on it."
        )
    if code == Code.BAD_STATE:
        raise Conflict(f"Run {run_id} is {text(reply[1])}; what was asked is not possible in that state.")
    if code == Code.KEY_CONFLICT:
        raise KeyConflict(
            f"The key is taken by run {text(reply[1])}, which has another input; use a new key for a new request."
        )
    if code == Code.OUT_OF_ORDER:
        raise OutOfOrder(
            f"Run {run_id}: what was to be written does not follow what is stored ({text(reply[1])}, {text(reply[2])})."
        )
    raise _rare(code, reply, run_id)


def _rare(code: int, reply: list[Any], run_id: str) -> MakegoodError:
    if code == Code.TOO_MANY:
        return TooManyContinuations(f"Run {run_id} was continued {text(reply[1])} times in one attempt.")
    if code == Code.UNSETTLED:
        return Unsettled(
            f"Run {run_id} has a call whose outcome is not known, an undo that is not finished, or a lock: something has to "
            "be cleaned up first."
        )
    if code == Code.OLD_VERSION:
        return Conflict(
            f"Run {run_id} has changed since version {text(reply[1])} (it is at {text(reply[2])}); look at it again "
            "and decide anew."
        )
    return MakegoodError(f"Run {run_id}: the store answered with code {code}.")

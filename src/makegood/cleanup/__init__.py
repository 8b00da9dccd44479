"""After a failure: settle, roll back, compensate, release locks, review."""

from __future__ import annotations

if __name__ != "makegood.cleanup":
    raise ImportError(
        f"{__name__!r} is a room of the makegood package and not a module of its own: write 'import makegood.cleanup', "
        "and for your own module of that name start Python outside the makegood repository."
    )

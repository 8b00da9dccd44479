"""What a run is: declarations, loop, step, call, deadlines, retries, facts, model adapter, the client."""

from __future__ import annotations

if __name__ != "makegood.tasks":
    raise ImportError(
        f"{__name__!r} is a room of the makegood package and not a module of its own: write 'import makegood.tasks', "
        "and for your own module of that name start Python outside the makegood repository."
    )

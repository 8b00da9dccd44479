"""The processes: Celery app, queues, boot, loop, lease heartbeat, sweeper, drain, embedded server."""

from __future__ import annotations

if __name__ != "makegood.workers":
    raise ImportError(
        f"{__name__!r} is a room of the makegood package and not a module of its own: write 'import makegood.workers', "
        "and for your own module of that name start Python outside the makegood repository."
    )

"""What the dashboards read: counters, latency buckets, exporter, console, alerts."""

from __future__ import annotations

if __name__ != "makegood.monitoring":
    raise ImportError(
        f"{__name__!r} is a room of the makegood package and not a module of its own: write 'import makegood.monitoring', "
        "and for your own module of that name start Python outside the makegood repository."
    )

"""Keys, Lua (one file per operation) and typed calls; the only door to Redis."""

from __future__ import annotations

if __name__ != "makegood.store":
    raise ImportError(
        f"{__name__!r} is a room of the makegood package and not a module of its own: write 'import makegood.store', "
        "and for your own module of that name start Python outside the makegood repository."
    )

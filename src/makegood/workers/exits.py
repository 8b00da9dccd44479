"""Exit codes of worker processes that mean something to their supervisor."""

from __future__ import annotations

GAVE_UP = 75
"""A process that ended itself because it could not go on (stuck loop, drain without end). No run is at fault: the
supervisor does not count it as a death (invariant 10)."""

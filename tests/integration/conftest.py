"""The fixtures of the tests with real workers."""

from __future__ import annotations

from support.crash import ground, make_field, nursery

__all__ = ["ground", "make_field", "nursery"]

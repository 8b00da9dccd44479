"""A Celery worker can go deaf after some broker failures: it lives and takes nothing. This notices."""

from __future__ import annotations

from dataclasses import dataclass, replace

ROUNDS = 4
"""So many looks in a row at a queue that holds messages, none of which reached this process, mean that it is deaf."""


@dataclass(frozen=True, slots=True)
class Hearing:
    """What was seen: rounds in a row without a message, and how many messages had arrived at the last look."""

    rounds: int = 0
    received: int = 0


def look(hearing: Hearing, *, received: int, in_queue: int, free_slots: int) -> Hearing:
    """The hearing after one look. A process that is full, or whose queue is empty, has nothing to hear."""
    if received != hearing.received or in_queue == 0 or free_slots <= 0:
        return Hearing(0, received)
    return replace(hearing, rounds=hearing.rounds + 1)


def is_deaf(hearing: Hearing) -> bool:
    """Whether the process should be replaced."""
    return hearing.rounds >= ROUNDS

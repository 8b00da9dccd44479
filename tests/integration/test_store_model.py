"""The store's operations in random order, with crashes, against a model in plain Python."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from support.store import World, fake_world, real_world
from support.store_machine_cleanup import WholeMachine

SEQUENCES = int(os.environ.get("STORE_MODEL_SEQUENCES", "0"))
"""How many sequences, other ones each time; 0: the same few. STORE_MODEL_SEQUENCES=2000 takes about half an hour."""


def profile(sequences: int, steps: int) -> settings:
    """The same sequences each time, unless there are to be new ones."""
    return settings(
        max_examples=SEQUENCES or sequences,
        stateful_step_count=steps,
        derandomize=not SEQUENCES,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def machine(world: World) -> type[WholeMachine]:
    """The machine on a server that is all its own."""
    members: dict[str, Any] = {"world": world}
    return type("Machine", (WholeMachine,), members)


@pytest.mark.contract("D1", "D2", "D7", "D9", "E8", "E9", "I2")
@pytest.mark.timeout(36_000 if SEQUENCES else 120)
def test_whatever_is_done_in_whatever_order_the_store_holds_what_the_model_says(store_url: str) -> None:
    """On the real server."""
    world = real_world("sync", store_url)
    run_state_machine_as_test(machine(world), settings=profile(60, 50))
    world.door.close()
    world.raw.close()


@pytest.mark.timeout(36_000 if SEQUENCES else 120)
def test_the_same_on_fakeredis() -> None:
    """Which users may have in their tests."""
    run_state_machine_as_test(machine(fake_world("sync")), settings=profile(8, 30))

"""When the sweeper says that it sweeps, and when it says that it does not."""

from __future__ import annotations

import pytest

from makegood.workers.duties.checkin import FAILED_S, Sweeps

DUTIES = ("parked", "time", "cleanups")


def swept(*duties: str, at_s: float) -> Sweeps:
    """A process that began at 0 and whose duties worked then."""
    sweeps = Sweeps(DUTIES, began_s=0.0)
    for duty in duties:
        sweeps.worked(duty, at_s)
    return sweeps


@pytest.mark.parametrize(
    ("sweeps", "now_s", "verdict"),
    [
        (swept(at_s=0), 1, None),
        (swept(at_s=0), FAILED_S, False),
        (swept(*DUTIES[:-1], at_s=1), 2, None),
        (swept(*DUTIES, at_s=1), 2, True),
        (swept(*DUTIES, at_s=1), FAILED_S, True),
        (swept(*DUTIES, at_s=1), FAILED_S + 1, False),
        (swept(*DUTIES[:-1], at_s=100), 101, False),
    ],
)
def test_sweeping_works_while_no_duty_has_failed_for_a_whole_minute(
    sweeps: Sweeps, now_s: float, verdict: bool | None
) -> None:
    """Before each has worked once it is too early to say, for a minute."""
    assert sweeps.verdict(now_s) is verdict

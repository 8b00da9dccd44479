"""The supervisor's report that a process is over, so that its runs are continued now and not at their lease's end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from makegood.errors import BrokerUnreachable, MakegoodError, NotAllowed
from makegood.settings import Settings
from makegood.store.connect import open_sync
from makegood.store.keys import all_prefixes
from makegood.store.ops.leases import count_suspects, lose_worker
from makegood.store.ops.numbers import forget_worker
from makegood.store.ops.reads import read_whereabouts
from makegood.store.sync_store import SyncStore
from makegood.tasks.wakeup import Publisher, queue_for
from makegood.urls import mask_url

REPLY_S = 2.0
"""The supervisor does not wait longer for the store; a report that failed is repeated."""


@dataclass(frozen=True, slots=True)
class Obituary:
    """A process that is over, killed and reaped. `death`: it died by itself, which counts for poison."""

    worker: str
    death: bool


def report(settings: Settings, obituary: Obituary) -> tuple[int, int]:
    """Give the process's runs back; returns how many wait now and how many of them are suspects.

    Connections are opened and closed within, so that no fork inherits one. Raises MakegoodError when the store
    cannot be reached: repeat it.
    """
    store = SyncStore(settings.redis_url, client=open_sync(settings.redis_url, retries=1, reply_s=REPLY_S))
    run_ids: list[str] = []
    suspects = 0
    left = all_prefixes()
    try:
        while left:
            ops = [
                lose_worker(prefix, obituary.worker, only_expired=False, death=obituary.death)
                for prefix in left
            ]
            answers = store.do_all(ops)
            run_ids += [run_id for answer in answers for run_id in answer.run_ids]
            suspects += sum(answer.suspects for answer in answers)
            left = [prefix for prefix, answer in zip(left, answers, strict=True) if answer.run_ids]
        with contextlib.suppress(MakegoodError):  # it is forgotten anyway, a little later
            store.do(forget_worker(obituary.worker))
        found = store.do_all([read_whereabouts(run_id) for run_id in run_ids])
    finally:
        store.close()
    _announce(settings, dict(zip(run_ids, map(queue_for, found), strict=True)))
    return len(run_ids), suspects


def waiting_suspects(settings: Settings, agents: Sequence[str]) -> int:
    """How many suspects of these agents wait for a quarantine process; 0 when the store cannot be asked."""
    store = SyncStore(settings.redis_url, client=open_sync(settings.redis_url, retries=0, reply_s=REPLY_S))
    try:
        return sum(store.do_all([count_suspects(prefix, agents) for prefix in all_prefixes()]))
    except MakegoodError:
        return 0
    finally:
        store.close()


def _announce(settings: Settings, queues: Mapping[str, str | None]) -> None:
    """Wake-ups are hints: what cannot be announced now is found by a sweeper."""
    if not queues:
        return
    publisher = Publisher(settings.broker_url, mask_url(settings.broker_url))
    with contextlib.suppress(BrokerUnreachable, NotAllowed):
        for run_id, queue in queues.items():
            if queue is not None:
                publisher.wake(run_id, queue)
    publisher.close()

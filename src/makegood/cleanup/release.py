"""Locks that the run may still hold are freed at once; no older fence of it takes them again (CONTRACT E7)."""

from __future__ import annotations

from makegood.cleanup.case import Case
from makegood.store import faults
from makegood.store.ops.locks import free_lock, unregister_lock


async def release(case: Case) -> None:
    """Free every lock that is registered; repeating it is harmless."""
    for name in case.locks:
        faults.point("before_release")
        await case.env.store.do(free_lock(run_id=case.run_id, fence=case.claim.fence, name=name))
        faults.point("after_release")
        await case.env.store.do(unregister_lock(**case.fresh(), name=name))

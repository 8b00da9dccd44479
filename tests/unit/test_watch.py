"""Nothing ends by time that was not watched (invariant 5): the judge of whether time can be trusted."""

from __future__ import annotations

from makegood.workers.watch import Watch, look, trusted

LEASE_S = 10.0
SERVER = ("run-1", "repl-1")


def watched(
    seconds: int, *, start: Watch | None = None, at_s: float = 1000.0, server: tuple[str, str] = SERVER
) -> Watch:
    """A watch after one look a second at a server whose clock runs with ours."""
    watch = start or Watch()
    for second in range(seconds + 1):
        watch = look(watch, server, 5_000_000 + round((at_s + second) * 1000), at_s + second, LEASE_S)
    return watch


def test_a_server_that_was_never_seen_is_not_trusted() -> None:
    """Not even when its clock says zero."""
    assert not trusted(Watch(), LEASE_S, 1e6)


def test_a_server_is_trusted_after_one_full_lease_and_not_before() -> None:
    """Nine seconds of a lease of ten are too few."""
    assert not trusted(watched(9), LEASE_S, 1009.0)
    assert trusted(watched(10), LEASE_S, 1010.0)


def test_a_restart_or_a_failover_begins_the_watch_anew() -> None:
    """Another run id, or another replication id under the same run id."""
    for other in (("run-2", "repl-1"), ("run-1", "repl-2")):
        watch = watched(9, start=watched(60), at_s=1061.0, server=other)
        assert not trusted(watch, LEASE_S, 1070.0)
        assert trusted(watched(10, start=watch, at_s=1071.0, server=other), LEASE_S, 1081.0)


def test_a_clock_that_jumps_either_way_begins_the_watch_anew() -> None:
    """More than a second between two looks, forward or back; less is drift."""
    old = watched(60)
    for jump_ms, keeps in ((1_500, False), (-1_500, False), (900, True), (-900, True)):
        after = look(old, SERVER, old.server_ms + 1_000 + jump_ms, old.seen_s + 1, LEASE_S)
        assert trusted(after, LEASE_S, after.seen_s) is keeps


def test_a_server_that_did_not_answer_for_half_a_lease_was_not_watched() -> None:
    """Frozen or cut off, it could take no renewal; the same server and clock afterwards prove nothing."""
    old = watched(60)
    after = look(old, SERVER, old.server_ms + 6_000, old.seen_s + 6, LEASE_S)
    assert not trusted(after, LEASE_S, after.seen_s)
    assert trusted(look(old, SERVER, old.server_ms + 4_000, old.seen_s + 4, LEASE_S), LEASE_S, old.seen_s + 4)


def test_a_watch_that_looks_no_longer_is_not_trusted() -> None:
    """The last look is longer ago than a lease."""
    assert not trusted(watched(60), LEASE_S, 1071.0)

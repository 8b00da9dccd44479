"""The judgement on a server's facts, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from makegood.errors import UnsupportedServer
from makegood.workers.server_check import Finding, ServerFacts, judge, raise_for

GOOD = ServerFacts(
    kind="Valkey",
    version="9.1.2",
    role="master",
    cluster=False,
    append_only=True,
    fsync="always",
    write_ok=True,
    policy="noeviction",
    used_memory=10 * 2**20,
    max_memory=0,
    system_memory=2**30,
    skew_s=0.01,
    scripts=None,
)


def test_a_good_server_has_only_good_findings() -> None:
    """Eight checks, all fine."""
    assert {finding.level for finding in judge(GOOD)} == {"ok"}
    assert len(judge(GOOD)) == 8


@pytest.mark.parametrize(
    ("change", "level", "name", "words"),
    [
        ({"kind": "Redis", "version": "6.2.14"}, "error", "version", "Redis 6.2.14"),
        ({"kind": "Valkey", "version": "7.2.5"}, "error", "version", "Valkey 7.2.5"),
        ({"version": ""}, "error", "version", "unknown version"),
        ({"role": "slave"}, "error", "role", "READONLY"),
        ({"cluster": True}, "error", "cluster", "a node of a cluster"),
        ({"scripts": "NOPERM no"}, "error", "scripts", "NOPERM no"),
        ({"append_only": False}, "warn", "durability", "keeps no append-only file"),
        ({"fsync": "everysec"}, "warn", "durability", "appendfsync everysec"),
        ({"fsync": "no"}, "warn", "durability", "appendfsync no"),
        ({"fsync": None}, "warn", "durability", "does not say when"),
        ({"append_only": None, "fsync": None}, "warn", "durability", "does not say when"),
        ({"write_ok": False}, "error", "durability", "cannot write"),
        ({"policy": "allkeys-lru"}, "warn", "eviction", "allkeys-lru"),
        ({"policy": None}, "warn", "eviction", "does not say whether"),
        ({"max_memory": 13 * 2**20}, "warn", "memory", "77% of maxmemory (13.0 MiB)"),
        ({"max_memory": 10 * 2**20}, "error", "memory", "every write is refused"),
        ({"system_memory": 10 * 2**20}, "error", "memory", "may kill the server"),
        ({"skew_s": 1.5}, "warn", "clock", "1.5 s ahead of"),
        ({"skew_s": -90.0}, "warn", "clock", "90.0 s behind"),
    ],
)
def test_each_fault_is_one_finding(change: dict[str, object], level: str, name: str, words: str) -> None:
    """One fact off gives one finding, first in the list, that says what is and what to do."""
    first, *others = judge(replace(GOOD, **change))  # type: ignore[arg-type]
    assert (first.level, first.name) == (level, name)
    assert words in first.text
    assert {finding.level for finding in others} == {"ok"}


@pytest.mark.parametrize(
    ("kind", "version"),
    [("Redis", "7.0.0"), ("Redis", "7.0"), ("Redis", "8.4.1"), ("Valkey", "8.0.0"), ("Valkey", "10.0")],
)
def test_supported_versions(kind: str, version: str) -> None:
    """Redis from 7.0 and Valkey from 8 are fine, also with two digits."""
    assert {finding.level for finding in judge(replace(GOOD, kind=kind, version=version))} == {"ok"}


def test_warnings_refuse_only_when_strict() -> None:
    """Errors always refuse, with the finding's own sentence; the worst comes first."""
    warning, error = Finding("warn", "clock", "The clock is off."), Finding("error", "role", "A replica.")
    raise_for([warning], strict=False)
    with pytest.raises(UnsupportedServer, match="The clock is off"):
        raise_for([warning], strict=True)
    for strict in (True, False):
        with pytest.raises(UnsupportedServer, match="A replica"):
            raise_for([warning, error], strict=strict)

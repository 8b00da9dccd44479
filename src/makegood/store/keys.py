"""Names of keys and ids.

All keys of a run, and the indexes and counters it appears in, carry the hash tag of its shard
(`mg:{07}:…`), so that every script is safe on a cluster. Scripts receive the prefix as `KEYS[1]` and
build the other names from it; this module holds the same names for plain reads.
"""

from __future__ import annotations

import hashlib
import secrets
import time

SHARDS = 16
"""Number of shards. Part of every run id; never changes for a store that holds data."""

CATALOG = "mg:{catalog}:agents"
"""Hash: agent name → published declaration (JSON)."""

BREAKERS = "mg:{breakers}:"
"""Prefix of the breakers, which have a hash tag of their own and are never touched by a run's script."""

WORKERS = "mg:{workers}:"
"""Prefix of what the worker processes say of themselves."""

CATALOG_COUNTERS = "mg:{catalog}:counters"
"""Hash: what operators did to limits, as a counter's name → how often."""

LIMITS = "mg:{catalog}:timeouts"
"""Hash: `call|tool`, `step|agent` or `run|agent` → the limit in seconds that an operator set."""

ASIDE = "mg:{messages}:aside"
"""Stream of messages that did not validate, each with its reason."""

_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"


def prefix(shard: int) -> str:
    """Key prefix of a shard: `mg:{07}:`."""
    return f"mg:{{{shard:02d}}}:"


def all_prefixes() -> list[str]:
    """Prefixes of all shards, in order."""
    return [prefix(shard) for shard in range(SHARDS)]


def shard_for(text: str) -> int:
    """Shard of a session or key: equal texts share a shard."""
    return hashlib.sha256(text.encode()).digest()[0] % SHARDS


def new_run_id(shard: int | None = None) -> str:
    """A globally unique run id (CONTRACT D1) that sorts by time within its shard: `07-01k…` (29 characters)."""
    if shard is None:
        shard = secrets.randbelow(SHARDS)
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{shard:02d}-" + "".join(_BASE32[value >> (5 * place) & 31] for place in range(25, -1, -1))


def is_run_id(text: str) -> bool:
    """True when the text has the form of a run id; says nothing about whether the run exists."""
    shard, dash, rest = text.partition("-")
    known = len(shard) == 2 and shard.isdigit() and int(shard) < SHARDS
    return known and bool(dash) and len(rest) == 26 and all(c in _BASE32 for c in rest)


def prefix_of(run_id: str) -> str:
    """Key prefix of the shard in which a run lives."""
    return prefix(int(run_id[:2]))


def run_key(run_id: str) -> str:
    """Hash: the run record."""
    return f"{prefix_of(run_id)}run:{run_id}"


def journal_key(run_id: str) -> str:
    """Hash: the journal rows: `row`, `row.s` status line, `row.o` outcome, `row.r` repeats of cleanup, `row.u`, `row.v` undo."""
    return f"{prefix_of(run_id)}j:{run_id}"


def steps_key(run_id: str) -> str:
    """Hash: `attempt:step` → the stored decision."""
    return f"{prefix_of(run_id)}s:{run_id}"


def events_key(run_id: str) -> str:
    """Stream: the events of a run."""
    return f"{prefix_of(run_id)}e:{run_id}"


def audit_key(run_id: str) -> str:
    """Stream: who asked for what, and why; append-only."""
    return f"{prefix_of(run_id)}a:{run_id}"


def blob_key(run_id: str, digest: str) -> str:
    """Hash: the pieces of one large body."""
    return f"{prefix_of(run_id)}b:{run_id}:{digest}"


def resources_key(run_id: str) -> str:
    """Hash: what the run declared it would create or change (`key`, `key.s` status line, `key.v` last error)."""
    return f"{prefix_of(run_id)}r:{run_id}"


def locks_key(run_id: str) -> str:
    """Set: registrations of locks, `fence number|holder|name`."""
    return f"{prefix_of(run_id)}l:{run_id}"


def lock_prefix(name: str) -> str:
    """Prefix of a lock, which has a hash tag of its own: it is shared by runs of all shards."""
    return f"mg:{{lock:{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()[:16]}}}:"


def lock_key(name: str) -> str:
    """Hash: who holds the lock, until when, and the last token."""
    return f"{lock_prefix(name)}held"


def lock_floor_key(name: str, run_id: str) -> str:
    """Text: the lowest fence number of this run that may still take the lock."""
    return f"{lock_prefix(name)}floor:{run_id}"


def state_index(shard_prefix: str, agent: str, state: str) -> str:
    """Sorted set: runs of one agent in one state by time of enqueue; its size is the gauge."""
    return f"{shard_prefix}st:{agent}:{state}"


def dedupe_digest(agent: str, session: str | None, key: str) -> str:
    """Digest under which an enqueue key is unique per agent and session."""
    return hashlib.sha256("\0".join((agent, session or "", key)).encode()).hexdigest()[:32]

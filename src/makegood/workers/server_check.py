"""What the store's server really does, and what that risks: used by `makegood doctor` and when a worker starts.

`read_facts` asks the server, `judge` is a pure rule over the facts. A finding is one or two sentences: what is, what it
risks, what to do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from makegood.errors import UnsupportedServer
from makegood.store.connect import unreachable

MIN_REDIS = (7, 0)
MIN_VALKEY = (8, 0)

MEMORY_WARN = 0.75
MEMORY_ERROR = 0.95
"""Shares of the limit. At the limit every write is refused: no run can start, and none can end."""

SKEW_WARN_S = 1.0

Level = Literal["ok", "warn", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was checked. Names: version, scripts, role, cluster, durability, eviction, memory, clock."""

    level: Level
    name: str
    text: str


@dataclass(frozen=True)
class ServerFacts:
    """What the server says about itself. None: it does not tell (a managed service may forbid the question).

    kind: "Redis" or "Valkey"; memory in bytes, max_memory and system_memory 0 when unset or unknown; skew_s: the
    server's clock minus ours; scripts: None when a script ran, else the server's refusal.
    """

    kind: str
    version: str
    role: str
    cluster: bool
    append_only: bool | None
    fsync: str | None
    write_ok: bool
    policy: str | None
    used_memory: int
    max_memory: int
    system_memory: int
    skew_s: float
    scripts: str | None


def check_server(client: redis.Redis) -> list[Finding]:
    """Ask the server behind this client and judge the answers, worst first.

    Raises StoreUnreachable when it cannot be reached or refuses the password; the message shows no password.
    """
    try:
        facts = read_facts(client)
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        raise unreachable(_address(client), error) from None
    except RedisError as error:
        return [
            Finding(
                "error",
                "version",
                f"The server does not say what it is ({_first_line(error)}), so nothing could be checked: "
                "allow this user the commands INFO, TIME and EVAL.",
            )
        ]
    return judge(facts)


def raise_for(findings: Iterable[Finding], *, strict: bool) -> None:
    """Raise UnsupportedServer for the first error; with `strict` also for the first warning."""
    for level in ("error", "warn") if strict else ("error",):
        for finding in findings:
            if finding.level == level:
                raise UnsupportedServer(finding.text)


def read_facts(client: redis.Redis) -> ServerFacts:
    """Ask the server. Raises redis-py's errors when INFO or TIME fails; all else may be forbidden."""
    info: Mapping[str, Any] = _call(client.info)
    settings = _settings(client)
    kind = "Valkey" if "valkey_version" in info else "Redis"
    fsync = settings.get("appendfsync")
    return ServerFacts(
        kind=kind,
        version=str(info.get(f"{kind.lower()}_version", "")),
        role=str(info.get("role", "master")),
        cluster=bool(info.get("cluster_enabled")),
        append_only=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        fsync=fsync,
        write_ok=str(info.get("aof_last_write_status", "ok")) == "ok",
        policy=info.get("maxmemory_policy") or settings.get("maxmemory-policy"),
        used_memory=int(info.get("used_memory", 0)),
        max_memory=int(info.get("maxmemory", 0)),
        system_memory=int(info.get("total_system_memory", 0)),
        skew_s=_skew_s(client),
        scripts=_script_refusal(client),
    )


def judge(facts: ServerFacts) -> list[Finding]:
    """All findings for these facts, errors first, then warnings."""
    findings = [
        _version(facts),
        _scripts(facts),
        _role(facts),
        _cluster(facts),
        _durability(facts),
        _eviction(facts),
        _memory(facts),
        _clock(facts),
    ]
    order: dict[Level, int] = {"error": 0, "warn": 1, "ok": 2}
    return sorted(findings, key=lambda finding: order[finding.level])


def _version(facts: ServerFacts) -> Finding:
    needed = MIN_VALKEY if facts.kind == "Valkey" else MIN_REDIS
    numbers = tuple(int(number) for number in re.findall(r"\d+", facts.version)[:2])
    if numbers >= needed:
        return Finding("ok", "version", f"{facts.kind} {facts.version}.")
    return Finding(
        "error",
        "version",
        f"The store is {facts.kind} {facts.version or 'of an unknown version'}, whose scripts lack what makegood uses: "
        "take Redis 7.0 or Valkey 8, or newer.",
    )


def _scripts(facts: ServerFacts) -> Finding:
    if facts.scripts is None:
        return Finding("ok", "scripts", "Lua scripts run.")
    return Finding(
        "error",
        "scripts",
        f"The server refuses Lua scripts ({facts.scripts}), without which no run can change its state: "
        "allow this user EVAL, EVALSHA and SCRIPT LOAD.",
    )


def _role(facts: ServerFacts) -> Finding:
    if facts.role == "master":
        return Finding("ok", "role", "It is a primary and takes writes.")
    return Finding(
        "error",
        "role",
        f"The server is a replica (role {facts.role}) and refuses every write with READONLY: "
        "point MAKEGOOD_REDIS_URL at the primary.",
    )


def _cluster(facts: ServerFacts) -> Finding:
    if not facts.cluster:
        return Finding("ok", "cluster", "It is a single server and holds all keys.")
    return Finding(
        "error",
        "cluster",
        "The server is a node of a cluster, which makegood does not follow to the other nodes: "
        "point MAKEGOOD_REDIS_URL at a single server (cluster-enabled no).",
    )


def _durability(facts: ServerFacts) -> Finding:
    if facts.append_only and not facts.write_ok:
        return Finding(
            "error",
            "durability",
            "The server cannot write its append-only file and refuses all writes: look at its disk and its log.",
        )
    if facts.append_only and facts.fsync == "always":
        return Finding(
            "ok", "durability", "Every write is on disk before it is acknowledged (appendfsync always)."
        )
    if facts.append_only is False:
        what, risk = "keeps no append-only file", "a restart loses runs that were accepted, and what they did"
    elif facts.fsync is None:
        what, risk = "does not say when it writes to disk", "a crash may lose writes that were acknowledged"
    else:
        what = f"writes to disk late (appendfsync {facts.fsync})"
        risk = "a crash loses acknowledged writes, so an effect may be done twice"
    return Finding(
        "warn", "durability", f"The server {what}: {risk}; set appendonly yes and appendfsync always."
    )


def _eviction(facts: ServerFacts) -> Finding:
    if facts.policy == "noeviction":
        return Finding("ok", "eviction", "It never evicts keys (noeviction).")
    if facts.policy is None:
        what = "does not say whether it evicts keys"
    else:
        what = f"may evict keys when memory is short (maxmemory-policy {facts.policy})"
    return Finding(
        "warn",
        "eviction",
        f"The server {what}: runs and their journals could vanish silently; set maxmemory-policy noeviction.",
    )


def _memory(facts: ServerFacts) -> Finding:
    limit = facts.max_memory or facts.system_memory
    if not limit:
        return Finding("ok", "memory", f"{_mib(facts.used_memory)} used; the server names no limit.")
    of_what = "maxmemory" if facts.max_memory else "the machine's memory"
    share = facts.used_memory / limit
    state = f"{_mib(facts.used_memory)} used, {share:.0%} of {of_what} ({_mib(limit)})"
    if share < MEMORY_WARN:
        return Finding("ok", "memory", f"{state}.")
    end = "every write is refused" if facts.max_memory else "the system may kill the server"
    return Finding(
        "error" if share >= MEMORY_ERROR else "warn",
        "memory",
        f"{state}: when it is full, {end}; give it more memory or shorten the retention.",
    )


def _clock(facts: ServerFacts) -> Finding:
    if abs(facts.skew_s) <= SKEW_WARN_S:
        return Finding("ok", "clock", "Its clock agrees with this machine's.")
    direction = "ahead of" if facts.skew_s > 0 else "behind"
    return Finding(
        "warn",
        "clock",
        f"The server's clock is {abs(facts.skew_s):.1f} s {direction} this machine's: times in logs and `X-Deadline-Ms` "
        "will not match; run NTP on both.",
    )


def _settings(client: redis.Redis) -> dict[str, str]:
    """CONFIG GET of what matters; empty where it is forbidden."""
    try:
        raw: Mapping[Any, Any] = _call(client.config_get, "appendfsync", "maxmemory-policy")
    except ResponseError:
        return {}
    return {_text(name): _text(value) for name, value in raw.items()}


def _skew_s(client: redis.Redis) -> float:
    """The server's clock minus ours, in seconds, taking the answer to be from the middle of the round trip."""
    before_s = time.time()
    seconds, microseconds = _call(client.time)
    after_s = time.time()
    return float(seconds) + float(microseconds) / 1e6 - (before_s + after_s) / 2


def _script_refusal(client: redis.Redis) -> str | None:
    try:
        _call(client.eval, "return 1", 0)
    except ResponseError as error:
        return _first_line(error)
    return None


def _call(method: Any, *arguments: Any) -> Any:
    """redis-py types its methods for both of its clients; this one is the blocking client."""
    return method(*arguments)


def _address(client: redis.Redis) -> str:
    options = client.connection_pool.connection_kwargs
    if "path" in options:
        return f"unix://{options['path']}"
    return f"redis://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{options.get('db', 0)}"


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"

"""How connections to the state store are made: bounded sockets, bounded retries, errors in one sentence."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from makegood.errors import MakegoodError, NotAllowed, SettingsError, StoreUnreachable, UnsupportedServer
from makegood.urls import mask_url

CONNECT_S = 5
"""Limit of one attempt to connect."""

REPLY_S = 15
"""Limit of one reply. The store is local to the workers; a slower one counts as lost and the call is repeated."""

LOST = (RedisConnectionError, RedisTimeoutError, ConnectionError, TimeoutError, OSError)
"""What redis-py raises when the server is not there or does not answer."""

FORBIDDEN = ("NOPERM", "ACL failure in script", "The user executing the script can't run")
"""How a server's answer begins when its access rules forbid a command, asked for directly or by a script."""

IN_CLUSTER = ("MOVED ", "ASK ", "CLUSTERDOWN ", "TRYAGAIN ")
"""How the answer of a cluster's node begins when the keys are another node's, or nobody's. They are not followed: time is
trusted because one server's identity and clock are watched (invariant 5), and of a cluster nobody watches them."""


def unreachable(url: str, error: BaseException) -> StoreUnreachable:
    """The error for a server that cannot be reached."""
    why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return StoreUnreachable(
        f"The state store at {mask_url(url)} cannot be reached ({why}); start the server or correct MAKEGOOD_REDIS_URL."
    )


def refused(url: str, error: RedisError) -> MakegoodError:
    """The error for a server that answers, but not with what was asked."""
    why = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    if isinstance(error, OutOfMemoryError) or why.startswith("OOM "):
        return StoreUnreachable(
            f"The state store at {mask_url(url)} is full (its maxmemory is reached), so the operation was refused and "
            "nothing of it was written; raise maxmemory or add memory."
        )
    if isinstance(error, NoPermissionError) or why.removeprefix("ERR ").startswith(FORBIDDEN):
        return NotAllowed(
            f"The state store at {mask_url(url)} does not allow the operation to this user "
            f"({why.removeprefix('NOPERM ')[:200].rstrip('.')}); let its administrator grant it, or use another user."
        )
    if _in_cluster(error, why):
        return UnsupportedServer(
            f"The state store at {mask_url(url)} is a node of a cluster and does not hold the keys of the operation, so "
            "nothing of it was written; give MAKEGOOD_REDIS_URL of a single server (cluster-enabled no)."
        )
    return MakegoodError(f"The state store at {mask_url(url)} refused the operation: {why}")


def _in_cluster(error: RedisError, why: str) -> bool:
    """redis-py names these errors by their class, the asyncio connection by their text."""
    named = isinstance(error, AskError | ClusterDownError | TryAgainError)
    return (named and not isinstance(error, MasterDownError)) or why.startswith(IN_CLUSTER)


def _options(retries: int, reply_s: float) -> dict[str, Any]:
    """Keyword arguments of the blocking client."""
    return {
        "socket_timeout": reply_s,
        "socket_connect_timeout": min(CONNECT_S, reply_s),
        "socket_keepalive": True,
        "health_check_interval": 30,
        "decode_responses": False,
        "retry": Retry(ExponentialBackoff(cap=1.0, base=0.05), retries, supported_errors=LOST),
    }


def open_sync(url: str, retries: int = 3, reply_s: float = REPLY_S) -> redis.Redis:
    """A blocking client; a bad URL raises MakegoodError with a sentence."""
    try:
        return redis.Redis.from_url(url, **_for(url, _options(retries, reply_s)))
    except ValueError as error:
        raise bad_url(url, error) from None


def _for(url: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """A unix socket knows no keepalive."""
    if url.startswith("unix://"):
        chosen.pop("socket_keepalive")
    return chosen


def bad_url(url: str, error: ValueError) -> MakegoodError:
    """The error for a URL that names no server."""
    return SettingsError(
        f"{mask_url(url)!r} is no URL of a Redis or Valkey server ({error}); use redis://host:6379/0."
    )


__all__ = ["LOST", "NoScriptError", "ResponseError", "open_sync", "refused", "unreachable"]

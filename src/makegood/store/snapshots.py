"""The prior state of a Redis key, taken and put back; behind the resource kind `redis_key` (CONTRACT E2)."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError, ResponseError

from makegood.errors import DeclarationError, MakegoodError, NotAllowed
from makegood.store.connect import CONNECT_S, FORBIDDEN, LOST, REPLY_S, bad_url
from makegood.urls import mask_url

MAX_BYTES = 1024 * 1024
"""Largest value that is kept: a text by its length, anything else by the memory that it takes."""

_SCHEMES = ("redis://", "rediss://", "unix://")


def target(id: str, store_url: str) -> tuple[str, str]:  # noqa: A002  # the word of the interface
    """URL and key that an id names: `cart:7` on the store's own server, or `redis://host:6379/0#cart:7`.

    Raises DeclarationError for an id that names no key, or one of makegood's own.
    """
    url, key = store_url, id
    if id.startswith(_SCHEMES):
        url, _, key = id.partition("#")
    if not key:
        raise DeclarationError(
            f"Resource {mask_url(id)[:200]!r} names no key; write it as redis://host:6379/0#key."
        )
    if key.startswith("mg:{"):
        raise DeclarationError(f"Key {key[:200]!r} belongs to makegood itself; declare a key of your own.")
    return url, key


async def take(url: str, key: str) -> dict[str, Any]:
    """The state of a key as JSON: `{"absent": true}`, or its dump and when it expires."""
    async with _server(url) as server:
        await _check_size(server, key)
        async with server.pipeline(transaction=True) as pipe:
            pipe.dump(key)
            pipe.pexpiretime(key)
            dump, expires_at_ms = await pipe.execute()
    if dump is None:
        return {"absent": True}
    if len(dump) > MAX_BYTES:
        raise _too_large(key)
    return {
        "dump": base64.b64encode(dump).decode(),
        "expires_at_ms": expires_at_ms if expires_at_ms > 0 else None,
    }


async def put_back(url: str, key: str, prior: dict[str, Any]) -> None:
    """Bring a key back to the state that `take` saw. Safe to repeat."""
    async with _server(url) as server:
        if prior.get("absent"):
            await server.delete(key)
            return
        dump = base64.b64decode(prior["dump"])
        await server.restore(key, prior["expires_at_ms"] or 0, dump, replace=True, absttl=True)


async def _check_size(server: redis.asyncio.Redis, key: str) -> None:
    """A dump is compressed and making one of a large value makes everybody wait, so the size is asked for first."""
    try:
        size = await server.strlen(key)
    except ResponseError:  # no text
        size = 0
        with contextlib.suppress(ResponseError):  # a server that does not tell: its dump does
            size = await server.memory_usage(key) or 0
    if size > MAX_BYTES:
        raise _too_large(key)


def _too_large(key: str) -> DeclarationError:
    return DeclarationError(
        f"Key {key[:200]!r} holds more than 1 MiB, which is too much to keep; declare a kind of your own with "
        "@resource, which knows how to bring it back."
    )


@contextlib.asynccontextmanager
async def _server(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A connection of its own, closed at the end; what goes wrong is one sentence."""
    options: dict[str, Any] = {
        "socket_timeout": REPLY_S,
        "socket_connect_timeout": CONNECT_S,
        "decode_responses": False,
        "retry": Retry(ExponentialBackoff(cap=1.0, base=0.05), 3, supported_errors=cast("Any", LOST)),
    }
    try:
        client = redis.asyncio.Redis.from_url(url, **options)
    except ValueError as error:
        raise bad_url(url, error) from None
    try:
        yield client
    except LOST as error:
        raise Unreachable(
            f"The server of the key at {mask_url(url)} cannot be reached ({_why(error)}); start it, or correct the id."
        ) from error
    except RedisError as error:
        raise _refused(url, error) from error
    finally:
        await client.aclose()


class Unreachable(MakegoodError, ConnectionError):
    """The server of the key at redis://cache:6379/0 cannot be reached; start it, or correct the id."""


def _refused(url: str, error: RedisError) -> MakegoodError:
    why = _why(error)
    kind = NotAllowed if why.removeprefix("ERR ").startswith(FORBIDDEN) else MakegoodError
    return kind(f"The server of the key at {mask_url(url)} refused the operation: {why}")


def _why(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__

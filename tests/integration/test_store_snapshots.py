"""The prior state of a Redis key comes back with its type and its time to live; twice is harmless (CONTRACT E2)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from makegood.errors import DeclarationError, MakegoodError
from makegood.store import snapshots
from support.servers import ServerFactory


@pytest.fixture
def raw(store_url: str) -> Iterator[Any]:
    """A client of the server under test."""
    with redis.Redis.from_url(store_url) as client:
        yield client


MAKERS: list[Callable[[Any, str], object]] = [
    lambda raw, key: None,
    lambda raw, key: raw.set(key, b"\x00\xff"),
    lambda raw, key: raw.set(key, "for a while", px=600_000),
    lambda raw, key: raw.rpush(key, "a", "b"),
    lambda raw, key: raw.hset(key, mapping={"f": "1", "g": "2"}),
    lambda raw, key: raw.zadd(key, {"m": 1.5}),
    lambda raw, key: raw.sadd(key, "x"),
    lambda raw, key: raw.xadd(key, {"f": "1"}, id="1-1"),
    lambda raw, key: raw.set(key, "x" * 1024 * 1024),
]


@pytest.mark.contract("E2")
@pytest.mark.parametrize("change", MAKERS[:4])
@pytest.mark.parametrize("make", MAKERS)
async def test_what_a_key_held_comes_back(
    store_url: str, raw: Any, make: Callable[[Any, str], object], change: Callable[[Any, str], object]
) -> None:
    """Whatever it was and whatever became of it."""
    key = "ü key"
    make(raw, key)
    before = raw.dump(key), raw.pexpiretime(key)
    prior = json.loads(json.dumps(await snapshots.take(store_url, key)))
    raw.delete(key)
    change(raw, key)
    for _ in range(2):
        await snapshots.put_back(store_url, key, prior)
        assert (raw.dump(key), raw.pexpiretime(key)) == before


async def test_a_key_whose_time_is_over_does_not_come_back(store_url: str, raw: Any) -> None:
    """It would have gone by itself meanwhile."""
    raw.set("k", "v", px=600_000)
    prior = await snapshots.take(store_url, "k")
    for _ in range(2):
        await snapshots.put_back(store_url, "k", {**prior, "expires_at_ms": 1000})
        assert not raw.exists("k")


async def test_a_key_on_another_server(store_url: str, raw: Any, fresh_server: ServerFactory) -> None:
    """Named by its URL; the store's own server is not touched."""
    other = fresh_server(unix_socket=False)
    url, key = snapshots.target(f"{other.url}#cart:7", store_url)
    assert (url, key) == (other.url, "cart:7")
    with redis.Redis.from_url(other.url) as there:
        there.set("cart:7", "before")
        prior = await snapshots.take(url, key)
        there.set("cart:7", "after")
        await snapshots.put_back(url, key, prior)
        assert there.get("cart:7") == b"before"
    assert snapshots.target("cart:7", store_url) == (store_url, "cart:7")
    assert not raw.exists("cart:7")


@pytest.mark.parametrize(
    "make",
    [
        lambda raw: raw.set("k", "x" * (1024 * 1024 + 1)),
        lambda raw: raw.rpush("k", *(f"{number:07d}" * 10 for number in range(20_000))),
        lambda raw: raw.rpush("k", *(bytes(range(256)) * 4 for _ in range(5000))),
    ],
    ids=["a long text", "many values", "a long list"],
)
async def test_a_value_that_is_too_large_is_refused(
    store_url: str, raw: Any, make: Callable[[Any], object]
) -> None:
    """One sentence that says what to do."""
    make(raw)
    with pytest.raises(DeclarationError, match=r"more than 1 MiB.*@resource"):
        await snapshots.take(store_url, "k")


async def test_a_server_that_is_away_is_one_sentence() -> None:
    """It names the server, without its password."""
    with pytest.raises(MakegoodError, match="cannot be reached") as caught:
        await snapshots.take("redis://:geheim@127.0.0.1:1/0", "k")
    assert "geheim" not in str(caught.value)
    assert isinstance(caught.value, ConnectionError)


async def test_no_connection_stays(store_url: str, raw: Any) -> None:
    """Each snapshot closes its own."""
    before = len(raw.client_list())
    for _ in range(3):
        await snapshots.put_back(store_url, "k", await snapshots.take(store_url, "k"))
    assert len(raw.client_list()) <= before

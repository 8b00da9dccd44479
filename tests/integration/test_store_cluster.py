"""A server of a cluster is no store: refused when a worker starts, and an answer that sends elsewhere is an error at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from makegood import Client, UnsupportedServer
from makegood.store import keys
from makegood.store.async_store import AsyncStore
from makegood.store.ops import reads, runs
from makegood.store.scripts import Op
from makegood.workers.server_check import check_server
from support.cli import environment, inside, makegood
from support.cluster import Cluster, Node, cluster, make_node
from support.store import open_door

__all__ = ["cluster", "make_node"]

WORDS = "is a node of a cluster and does not hold the keys of the operation.*give MAKEGOOD_REDIS_URL of a single server"
AGENT = 'from makegood import Agent\nlonely = Agent("lonely", "openai/any", on_failure="keep")\n'
PATIENCE_S = 40.0
"""A worker's: an answer that was taken for a server that is away would be tried again for so long."""


def enqueue(shard: int) -> Op[Any]:
    """A run of this shard."""
    return runs.enqueue_run(
        run_id=keys.new_run_id(shard),
        agent="support",
        session=None,
        key=None,
        body=b"{}",
        input_digest="d",
        expires_in_ms=None,
    )


def count(shard: int) -> Op[int]:
    """How many runs of this shard wait."""
    return Op(None, (), ("ZCARD", f"{keys.prefix(shard)}queued:support"), int)


def refusals(node: Node, command: str) -> int:
    """How often a node has refused a command."""
    with redis.Redis.from_url(node.url) as client:
        stats: dict[str, Any] = client.info("commandstats").get(f"cmdstat_{command}", {})
    return int(stats.get("rejected_calls", 0))


def test_what_another_node_holds_is_refused_once_and_by_name(cluster: Cluster) -> None:
    """Both doors, alone and within a pipeline; what this node holds is done, and nothing is sent twice."""
    here, there = cluster.shard(cluster.first), cluster.shard(cluster.second)
    for number, kind in enumerate(("sync", "async"), start=1):
        door = open_door(kind, cluster.first.url)
        with pytest.raises(UnsupportedServer, match=WORDS):
            door.do(enqueue(there))
        with pytest.raises(UnsupportedServer, match=WORDS):
            door.do_all([enqueue(here), enqueue(there), enqueue(here)])
        assert door.do(count(here)) == 2 * number
        door.close()
        assert refusals(cluster.first, "evalsha") == 2 * number
    assert open_door("sync", cluster.second.url).do(count(there)) == 0


async def test_the_replies_of_others_stay_in_their_places(cluster: Cluster) -> None:
    """A worker's connection carries the operations of many runs: only those that are refused fail."""
    here, there = cluster.shard(cluster.first), cluster.shard(cluster.second)
    store = AsyncStore(cluster.first.url, patience_s=PATIENCE_S)
    replies = [store.send(count(there if number % 3 else here)) for number in range(30)]
    replies.append(store.send(enqueue(here)))
    replies.append(store.send(count(here)))
    for number, reply in enumerate(replies[:30]):
        if number % 3:
            with pytest.raises(UnsupportedServer, match=WORDS):
                await reply
        else:
            assert await reply == 0
    assert (await replies[30]).created
    assert await replies[31] == 1
    await store.aclose()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_keys_on_their_way_to_another_node_are_refused(cluster: Cluster, kind: str) -> None:
    """ASK, for a key that is not there any more."""
    shard = cluster.shard(cluster.first)
    cluster.migrate(shard)
    door = open_door(kind, cluster.first.url)
    with pytest.raises(UnsupportedServer, match=WORDS):
        door.do(reads.read_state(keys.new_run_id(shard)))
    door.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_cluster_that_is_down_is_refused(make_node: Callable[[], Node], kind: str) -> None:
    """CLUSTERDOWN: nobody holds the keys."""
    door = open_door(kind, make_node().url)
    with pytest.raises(UnsupportedServer, match=WORDS):
        door.do(enqueue(0))
    door.close()


def test_a_producer_is_told_at_once(make_node: Callable[[], Node]) -> None:
    """Its run was not recorded."""
    with Client(make_node().url) as client, pytest.raises(UnsupportedServer, match=WORDS):
        client.enqueue("support", {"q": 1})


def test_a_worker_does_not_start_and_the_doctor_says_why(
    make_node: Callable[[], Node], store_url: str, tmp_path: Path
) -> None:
    """Also on a node that holds every slot today."""
    node = make_node()
    node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    sentence = "The server is a node of a cluster, which makegood does not follow to the other nodes: "
    with redis.Redis.from_url(node.url) as client:
        worst = check_server(client)[0]
    assert (worst.level, worst.name) == ("error", "cluster")
    (tmp_path / "lonely.py").write_text(AGENT)
    env = environment(MAKEGOOD_REDIS_URL=node.url, MAKEGOOD_BROKER_URL=store_url)
    started = makegood("worker", env={**env, "MAKEGOOD_AGENTS": "lonely"}, cwd=tmp_path)
    assert started.code == 1
    assert started.sentence.startswith(sentence)
    assert started.sentence.endswith("point MAKEGOOD_REDIS_URL at a single server (cluster-enabled no).")
    told = inside("doctor", env=env)
    assert told.code == 1
    assert sentence in told.out

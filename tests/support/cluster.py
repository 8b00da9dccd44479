"""A cluster of two nodes on loopback, each of which holds half of the slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from makegood.store import keys
from makegood.workers.embedded import EmbeddedServer
from makegood.workers.embedded_process import Address, free_port
from support.engine import eventually

HALF = 8192


class NodeAddress(Address):
    """A port of 127.0.0.1, and one for the other nodes."""

    @property
    def options(self) -> list[str]:
        """Cluster mode."""
        return [*super().options, "--cluster-enabled", "yes", "--cluster-port", str(free_port())]


class Node(EmbeddedServer):
    """A server in cluster mode; it holds no slots yet."""

    def _choose_address(self, data_dir: Path) -> Address:
        return NodeAddress(port=free_port())

    def ask(self, *command: Any) -> Any:
        """One command of this node's own."""
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            return client.execute_command(*command)


class Cluster:
    """Two nodes that know each other."""

    def __init__(self, first: Node, second: Node) -> None:
        self.first, self.second = first, second
        first.ask("CLUSTER", "ADDSLOTSRANGE", 0, HALF - 1)
        second.ask("CLUSTER", "ADDSLOTSRANGE", HALF, 2 * HALF - 1)
        with redis.Redis.from_url(second.url) as client:
            port = client.config_get("port")["port"]
            bus = client.config_get("cluster-port")["cluster-port"]
        first.ask("CLUSTER", "MEET", "127.0.0.1", port, bus)
        for node in (first, second):
            eventually(lambda node=node: is_whole(node), "the nodes agree", 60)

    def shard(self, node: Node) -> int:
        """A shard whose keys this node holds."""
        return next(each for each in range(keys.SHARDS) if (slot_of(each) < HALF) is (node is self.first))

    def migrate(self, shard: int) -> None:
        """The first node begins to give the keys of a shard to the second."""
        ids = [str(node.ask("CLUSTER", "MYID")) for node in (self.first, self.second)]
        self.second.ask("CLUSTER", "SETSLOT", slot_of(shard), "IMPORTING", ids[0])
        self.first.ask("CLUSTER", "SETSLOT", slot_of(shard), "MIGRATING", ids[1])


def slot_of(shard: int) -> int:
    """The slot in which all keys of a shard are."""
    return int(key_slot(keys.prefix(shard).encode()))


def is_whole(node: Node) -> bool:
    """Whether a node knows where every slot is."""
    return "cluster_state:ok" in node.ask("CLUSTER", "INFO").splitlines()


@pytest.fixture
def make_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Node]]:
    """A factory of nodes that are alone."""
    nodes: list[Node] = []

    def make() -> Node:
        nodes.append(Node(tmp_path_factory.mktemp("node"), ephemeral=False, unix_socket=False))
        nodes[-1].start()
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


@pytest.fixture
def cluster(make_node: Callable[[], Node]) -> Cluster:
    """A cluster that the test may change."""
    return Cluster(make_node(), make_node())


__all__ = ["Cluster", "Node", "cluster", "make_node"]

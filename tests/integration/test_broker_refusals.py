"""A broker that answers and says no: one sentence for the producer, `doctor` says so, no worker ends over it."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from makegood import BrokerUnreachable, Client
from makegood.cli.base import State
from makegood.cli.doctor import Report, examine
from makegood.errors import NotAllowed
from makegood.settings import Settings
from makegood.tasks.wakeup import QUARANTINE_QUEUE, Publisher
from makegood.urls import broker_url_for
from makegood.workers import obituary
from support.rabbit import Rabbit, rabbit
from support.servers import ServerFactory

__all__ = ["rabbit"]

SHOWN = "amqp://someone@host"
RUN = "00-01k0000000000000000000000a"


@pytest.fixture
def wrong(rabbit: Rabbit) -> str:
    """RabbitMQ with a password that is not the user's."""
    return rabbit.url_of("guest", "wrong")


@pytest.fixture
def reader(fresh_server: ServerFactory) -> str:
    """A Redis broker whose user may only say hello."""
    server = fresh_server()
    with redis.Redis.from_url(server.url) as raw:
        raw.execute_command(
            "ACL", "SETUSER", "reader", "on", ">pw", "~*", "+ping", "+hello", "+select", "+client"
        )
    scheme, _, rest = server.url.partition("://")
    return broker_url_for(f"{scheme}://reader:pw@{rest.rpartition('@')[2]}")


def test_credentials_that_rabbitmq_refuses_are_one_sentence(wrong: str) -> None:
    """Neither a raw AMQP exception, nor a queue that seems to be empty."""
    publisher = Publisher(wrong, SHOWN)
    with pytest.raises(
        NotAllowed, match=r"Run 00-.* is stored, but the broker at amqp://someone@host does not let"
    ):
        publisher.wake(RUN)
    with pytest.raises(NotAllowed, match=r"does not let this user look at the queue makegood\.runs"):
        publisher.queue_length()
    publisher.close()


def test_a_queue_that_does_not_exist_yet_is_empty(rabbit: Rabbit) -> None:
    """RabbitMQ says 404."""
    publisher = Publisher(rabbit.url, SHOWN)
    assert publisher.queue_length("makegood.nobody") == 0
    publisher.close()


def test_a_user_who_may_not_write_in_rabbitmq_is_told_so(rabbit: Rabbit) -> None:
    """It may log in, so the refusal comes with the operation."""
    publisher = Publisher(rabbit.add_user("mute", "pw", "^$", "^$", "^$"), SHOWN)
    with pytest.raises(NotAllowed, match="is stored, but"):
        publisher.wake(RUN)
    publisher.close()


def test_a_redis_broker_that_forbids_the_commands_is_one_sentence(reader: str) -> None:
    """NOPERM is an answer, and not an outage."""
    publisher = Publisher(reader, SHOWN)
    with pytest.raises(NotAllowed, match="is stored, but"):
        publisher.wake(RUN)
    with pytest.raises(NotAllowed, match="look at the queue"):
        publisher.queue_length()
    publisher.close()


def test_a_broker_that_is_not_there_is_unreachable() -> None:
    """Nothing listens."""
    publisher = Publisher("amqp://guest:guest@127.0.0.1:1//", SHOWN)
    with pytest.raises(BrokerUnreachable, match="is stored, but"):
        publisher.wake(RUN)
    with pytest.raises(BrokerUnreachable, match="cannot be reached"):
        publisher.queue_length()
    publisher.close()


def examined(store_url: str, broker_url: str) -> Report:
    """What the doctor finds."""
    return examine(State(url=store_url, broker_url=broker_url))


def test_the_doctor_says_that_the_broker_refuses(wrong: str, store_url: str) -> None:
    """It said that all was well."""
    found = [check for check in examined(store_url, wrong).checks if check.part == "broker"]
    assert [(check.level, check.name) for check in found] == [("error", "allowed")]
    assert "wrong" not in found[0].text


def test_a_supervisor_whose_broker_refuses_still_gives_runs_back(
    wrong: str, store_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wake-up is a hint: what cannot be announced is found by a sweeper."""
    with Client(store_url, broker_url=wrong) as client, pytest.raises(NotAllowed, match="is stored"):
        client.enqueue("anyone", "hello")
    settings = Settings(redis_url=store_url, broker_url=wrong)
    obituary._announce(settings, {RUN: QUARANTINE_QUEUE})

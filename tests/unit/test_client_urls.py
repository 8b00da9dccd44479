"""The servers a client is given: which one is used for what, and which is refused."""

from __future__ import annotations

import pytest

from makegood import AsyncClient, Client
from makegood.errors import NotBuilt

URL = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_server_for_live_output_is_refused(kind: type[Client] | type[AsyncClient]) -> None:
    """It would not be used."""
    with pytest.raises(
        NotBuilt, match=rf"{kind.__name__}\(live_url=…\) is not built yet; leave it at its default"
    ):
        kind(URL, live_url=URL)


def test_a_given_store_is_the_broker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAKEGOOD_BROKER_URL goes with MAKEGOOD_REDIS_URL, not with a URL of one's own."""
    monkeypatch.setenv("MAKEGOOD_REDIS_URL", "redis://from-env/1")
    monkeypatch.setenv("MAKEGOOD_BROKER_URL", "redis://from-env/2")
    made = [
        Client(),
        Client(URL),
        Client(URL, broker_url="redis://mine/3"),
        Client(broker_url="redis://mine/3"),
    ]
    assert [(client.url, client.broker_url) for client in made] == [
        ("redis://from-env/1", "redis://from-env/2"),
        (URL, URL),
        (URL, "redis://mine/3"),
        ("redis://from-env/1", "redis://mine/3"),
    ]
    for client in made:
        client.close()

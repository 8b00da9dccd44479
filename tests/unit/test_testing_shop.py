"""The test shop keeps the promises that the demo and other tests rest on."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from makegood.testing.shop import Shop

LAMP = {"customer": "ada", "title": "The lamp is broken"}


@pytest.fixture
def shop() -> Iterator[Shop]:
    """A started shop."""
    with Shop() as started:
        yield started


@pytest.fixture
def client(shop: Shop) -> Iterator[httpx.Client]:
    """A client of the shop that waits half a second for an answer."""
    with httpx.Client(base_url=shop.url, timeout=0.5, trust_env=False) as made:
        yield made


def post(client: httpx.Client, key: str = "", **body: str) -> httpx.Response:
    """Ask for a ticket."""
    return client.post("/tickets", json=body, headers={"Idempotency-Key": key} if key else {})


def test_a_key_gives_one_ticket(shop: Shop, client: httpx.Client) -> None:
    """The same answer again; another payload is 422; without a key each request creates one."""
    first, again = post(client, "k", **LAMP), post(client, "k", **LAMP)
    assert (
        (first.status_code, first.json()) == (again.status_code, again.json()) == (201, {"id": "T-1", **LAMP})
    )
    assert post(client, "k", customer="ada", title="other").status_code == 422
    assert post(client, **LAMP).json()["id"] == "T-2"
    assert [ticket["id"] for ticket in shop.tickets] == ["T-1", "T-2"]


@pytest.mark.parametrize(("stall", "error"), [(True, httpx.ReadTimeout), (False, httpx.RemoteProtocolError)])
def test_an_answer_is_lost_after_its_effect(
    shop: Shop, client: httpx.Client, stall: bool, error: type[Exception]
) -> None:
    """Once; the repeat finds the ticket."""
    shop.lose_answer("/tickets", stall=stall)
    with pytest.raises(error):
        post(client, "k", **LAMP)
    assert len(shop.tickets) == 1
    assert post(client, "k", **LAMP).json()["id"] == "T-1"
    assert shop.keys("POST", "/tickets") == ["k", "k"]


def test_a_failure_has_no_effect_until_it_is_healed(shop: Shop, client: httpx.Client) -> None:
    """Whatever the method; other paths are not concerned."""
    shop.fail("/tickets", 503)
    assert [post(client, **LAMP).status_code for _ in range(2)] == [503, 503]
    assert shop.tickets == []
    assert client.get("/stock/lamp").status_code == 200
    shop.heal("/tickets")
    assert post(client, **LAMP).status_code == 201


def test_a_request_is_remembered_with_its_headers(shop: Shop, client: httpx.Client) -> None:
    """By their names in small letters; the usual ones have fields."""
    client.get("/stock/lamp", headers={"X-Worker-Pid": "7", "X-Run-Id": "r"})
    (seen,) = shop.requests
    assert (seen.headers["x-worker-pid"], seen.run_id, seen.key) == ("7", "r", "")


def test_reads_and_mistakes_are_answered(shop: Shop, client: httpx.Client) -> None:
    """The same number for the same item; 404 for what is not there, 400 for what is not complete."""
    assert client.get("/quotes/lamp").json() == client.get("/quotes/lamp").json()
    ticket = post(client, **LAMP).json()
    assert client.get(f"/tickets/{ticket['id']}").json() == ticket
    assert client.get("/tickets/T-9").status_code == client.get("/nothing").status_code == 404
    assert post(client, customer="ada").status_code == 400
    assert shop.seen("POST", "/tickets")[0].body == LAMP


@pytest.mark.parametrize(("path", "body"), [("/flights", {"customer": "ada", "to": "Oslo"}),
                                            ("/hotels", {"customer": "ada", "city": "Oslo"})])  # fmt: skip
def test_what_was_booked_can_be_cancelled(
    shop: Shop, client: httpx.Client, path: str, body: dict[str, str]
) -> None:
    """Once: a second time it is not there. The next booking has another id."""
    first = client.post(path, json=body).json()
    assert [*shop.flights, *shop.hotels] == [first]
    assert [client.delete(f"{path}/{first['id']}").status_code for _ in range(2)] == [200, 404]
    assert [*shop.flights, *shop.hotels] == []
    assert client.post(path, json=body).json()["id"] != first["id"]
    assert client.delete(path).status_code == 404


def test_members_can_fail_while_their_collection_works(shop: Shop, client: httpx.Client) -> None:
    """A slash at the end of a fault's path leaves the requests that create alone."""
    shop.fail("/tickets/", 500)
    assert post(client, **LAMP).status_code == 201
    assert client.delete("/tickets/T-1").status_code == 500
    assert len(shop.tickets) == 1


def test_what_was_created_is_found_by_its_key(client: httpx.Client) -> None:
    """As a probe needs it: while it is there, and only under that key."""
    assert client.get("/tickets/by-key/k").status_code == 404
    made = post(client, "k", **LAMP).json()
    assert client.get("/tickets/by-key/k").json() == made
    assert client.get("/flights/by-key/k").status_code == 404
    client.delete(f"/tickets/{made['id']}")
    assert client.get("/tickets/by-key/k").status_code == 404

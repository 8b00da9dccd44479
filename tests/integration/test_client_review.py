"""Both clients as operators use them: reviews, decisions, marks, and the cleanup of runs that have ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from makegood import (
    AsyncClient,
    BrokerUnreachable,
    Client,
    Conflict,
    InvalidInput,
    RunNotFound,
    StoreUnreachable,
)
from makegood.store import keys
from makegood.store.ops import catalog
from makegood.store.ops.cleanup import open_review, settle_call
from makegood.store.ops.runs import Cleaning
from makegood.store.states import State
from makegood.tasks import operate
from makegood.workers.embedded_process import free_port
from support.review import Made, claim_cleanup, ended, in_review, item, worked
from support.store import AGENT, SHARD, World, real_world
from support.store_ops import declare, end, release, settle

WHO: dict[str, Any] = {"actor": "ada", "reason": "checked with the hotel"}
HOTEL = Made("hotel", undo="failed")
FLIGHT = Made("flight", undo="succeeded")
MAIL = Made("mail", status="unknown")
BANNER = Made("banner", effect="irreversible")

TABLE = {
    "kind": "temp_table",
    "id": "t1",
    "prior": None,
    "attempt": 1,
    "step": 1,
    "call_key": "k",
    "generation": 1,
}


@pytest.fixture
def world(store_url: str) -> Iterator[World]:
    """An empty server, to prepare runs in."""
    made = real_world("sync", store_url)
    yield made
    made.door.close()
    made.raw.close()


@pytest.fixture
def client(store_url: str, world: World) -> Iterator[Client]:
    """A client of it."""
    with Client(store_url) as made:
        yield made


def woken(world: World, queue: str) -> list[str]:
    """Runs that were announced on a queue, oldest first."""
    messages = [json.loads(each) for each in reversed(world.raw.lrange(f"makegood.{queue}", 0, -1))]
    return [each["headers"]["argsrepr"].strip("(),'") for each in messages]


# --- looking --------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11")
def test_reviews_are_listed_the_last_one_first(client: Client, world: World) -> None:
    """With what they are about; other agents' and decided ones do not stand there."""
    first = in_review(world, HOTEL)
    last = in_review(world, MAIL, BANNER, code="UNKNOWN_OUTCOME")
    world.raw.hset(keys.run_key(first), "rv_at", world.now_ms() - 60_000)
    gone = in_review(world, HOTEL)
    client.resolve(gone, **WHO)
    found = client.reviews()
    assert [each["run_id"] for each in found] == [last, first]
    assert (found[0]["code"], found[0]["target"], found[0]["times"]) == ("UNKNOWN_OUTCOME", "failed", 1)
    assert found[0]["error"] == {"code": "BUG", "message": "It broke."}
    assert [(each["kind"], each["tool"]) for each in found[1]["items"]] == [("compensation", "hotel")]
    assert client.reviews(limit=1) == found[:1]
    assert client.reviews(agent="other") == []


@pytest.mark.contract("E11", "J27")
def test_a_review_shows_what_is_known_and_how_to_answer(client: Client, world: World) -> None:
    """Every open question with its intent, its idempotency key and the commands; what was undone is no question."""
    run_id = in_review(world, FLIGHT, HOTEL, MAIL)
    found = client.review(run_id)
    assert found["version"] == client.get(run_id).info()["version"]
    hotel, mail = found["items"]
    assert (hotel["kind"], hotel["open"], hotel["args"]) == ("compensation", True, {"customer": "c1"})
    assert hotel["compensation"]["status"] == "failed"
    assert hotel["compensation"]["error"]["message"] == "The hotel is closed."
    assert (mail["kind"], mail["status"], mail["error"]["code"]) == ("unknown", "unknown", "TOOL_TIMEOUT")
    assert mail["idempotency_key"] == f"{run_id}:{MAIL.call_key}:1"
    assert [each["command"].split()[2] for each in hotel["answers"]] == ["retry", "mark", "mark"]
    assert [each["command"].split()[5] for each in mail["answers"]] == ["done", "undone"]
    assert [each["command"].split()[2] for each in found["decisions"]] == ["retry", "resolve"]
    assert len(found["journal"]) == 3


def test_questions_disappear_as_they_are_answered(client: Client, world: World) -> None:
    """Then a new attempt becomes possible, too; who answered stands in the review."""
    run_id = in_review(world, HOTEL, MAIL)
    client.mark(run_id, HOTEL.call_key, "undone", **WHO)
    found = client.review(run_id)
    assert [each["open"] for each in found["items"]] == [False, True]
    client.mark(run_id, MAIL.call_key, "done", **WHO)
    found = client.review(run_id)
    assert [each["open"] for each in found["items"]] == [False, False]
    assert [each["command"].split()[2] for each in found["decisions"]] == ["retry", "resume", "resolve"]
    assert [each["action"] for each in found["audit"]] == ["mark", "mark"]


def test_a_poison_run_asks_about_itself_and_about_what_was_under_way(client: Client, world: World) -> None:
    """Its cleanup died before it could write a question down."""
    run_id = in_review(world, Made("lost", status="started"), items=[], code="POISON", target=State.REVIEW)
    found = client.review(run_id)
    assert [each["kind"] for each in found["items"]] == ["poison", "unknown"]
    assert found["target"] == "failed"


@pytest.mark.contract("E11")
@pytest.mark.parametrize("kind", ["unknown", "compensation"])
@pytest.mark.parametrize("undoing", ["failed", "unknown"])
def test_once_undoing_a_call_has_begun_the_question_is_its_effect(
    client: Client, world: World, undoing: Any, kind: str
) -> None:
    """Also of a call whose outcome is unknown: one answer closes the question, and until then no attempt is offered."""
    half = Made("mail", status="unknown", undo=undoing)
    for mark in ("done", "undone"):
        run_id = in_review(world, half, items=[{**item(half), "kind": kind}])
        found = client.review(run_id)
        (asked,) = found["items"]
        doubt = undoing == "unknown"  # it may not be repeated: a retry would only ask again
        assert asked["question"].startswith("Was mail undone?" if doubt else "Undoing mail did not succeed.")
        assert [each["means"].partition(":")[0] for each in asked["answers"]] == [
            *([] if doubt else ["the cause is repaired"]), "it may stay", "it is undone, by hand",
        ]  # fmt: skip
        assert [each["command"].split()[2] for each in found["decisions"]] == ["retry", "resolve"]
        client.mark(run_id, half.call_key, mark, **WHO)
        found = client.review(run_id)
        assert not found["items"][0]["open"]
        assert [each["command"].split()[2] for each in found["decisions"]] == ["retry", "resume", "resolve"]


def test_an_undo_that_killed_its_processes_is_a_question(client: Client, world: World) -> None:
    """Nobody could write it down; while the cleanup goes on again it is none."""
    run_id = in_review(world, HOTEL, items=[], code="POISON", target=State.REVIEW)
    assert [(each["kind"], each["open"]) for each in client.review(run_id)["items"]] == [
        ("poison", True),
        ("compensation", True),
    ]
    client.retry_cleanup(run_id, **WHO)
    assert [each["kind"] for each in client.review(run_id)["items"]] == ["poison"]


def test_a_call_found_without_effect_whose_undo_was_begun_is_a_question(client: Client, world: World) -> None:
    """It may be gone because it was undone; a person makes sure that nothing is left."""
    half = Made("mail", status="unknown", undo="failed")
    run_id = in_review(world, half)
    client.retry_cleanup(run_id, **WHO)
    held = claim_cleanup(world)
    named: dict[str, Any] = {"run_id": run_id, "fence": held.fence}
    settled = settle_call(
        **named, op=world.op(), row_id=half.row_id, tool="mail", status="failed", body=b"{}", tries=1
    )
    world.do(settled)
    world.do(open_review(**named, op=world.op(), code="C", message="m", items=b"[]"))
    found = client.review(run_id)
    (asked,) = found["items"]
    assert "Make sure that nothing of it is left" in asked["question"]
    assert [each["means"] for each in asked["answers"]] == ["nothing of it is left"]
    assert [each["command"].split()[2] for each in found["decisions"]] == ["retry", "resolve"]


def test_a_resource_is_a_question_until_it_is_rolled_back(client: Client, world: World) -> None:
    """Cleanup names it by kind and id; a question about no call in particular can be retried, not marked."""
    held = worked(world, [Made("table", status="failed")])
    world.do(declare(held, world.op(), body=json.dumps(TABLE).encode()))
    world.do(end(held, world.op(), State.FAILED, cleaning=Cleaning("failure", State.FAILED, "policy")))
    cleaner = claim_cleanup(world)
    where = {"kind": "temp_table", "id": "t1"}
    asked = [
        {"kind": "resource", "code": "X", "message": "No.", "call_key": "k", "generation": 1, "tool": "", "resource": where},
        {"kind": "unknown", "code": "CLEANUP_TIMEOUT", "message": "Too long.", "call_key": "", "generation": 0, "tool": "",
         "resource": None},
    ]  # fmt: skip
    opened = open_review(
        run_id=held.run_id, fence=cleaner.fence, op=world.op(), code="X", message="m",
        items=json.dumps(asked).encode(),
    )  # fmt: skip
    world.do(opened)
    resource, lost = client.review(held.run_id)["items"]
    assert "temp_table t1 could not be rolled back" in resource["question"]
    assert [each["command"].split()[2] for each in resource["answers"]] == ["retry"]
    assert (lost["question"], lost["answers"]) == ("Too long. Look at the run's events.", [])
    client.retry_cleanup(held.run_id, **WHO)
    cleaner = claim_cleanup(world)
    world.do(settle(cleaner, world.op()))
    world.do(open_review(run_id=held.run_id, fence=cleaner.fence, op=world.op(), code="X", message="m",
                         items=json.dumps(asked[:1]).encode()))  # fmt: skip
    assert [each["open"] for each in client.review(held.run_id)["items"]] == [False]


def test_a_review_can_be_read_after_it_was_decided(client: Client, world: World) -> None:
    """Without commands; a run that never came to a person has none."""
    run_id = in_review(world, HOTEL)
    client.resolve(run_id, **WHO)
    found = client.review(run_id)
    assert (found["state"], found["decisions"]) == ("resolved", [])
    assert [(each["open"], each["answers"]) for each in found["items"]] == [(False, [])]
    with pytest.raises(Conflict, match="is failed and has no review"):
        client.review(ended(world, HOTEL))
    with pytest.raises(RunNotFound):
        client.review(keys.new_run_id(SHARD))


# --- deciding -------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11")
@pytest.mark.parametrize(
    ("how", "state", "queue"),
    [("retry_cleanup", "cleaning", "cleanup"), ("resume", "queued", "runs"), ("resolve", "resolved", None)],
)
def test_who_goes_on_with_the_run_is_woken(
    client: Client, world: World, how: str, state: str, queue: str | None
) -> None:
    """A decision answers with the state and version, and announces the run where it goes on."""
    run_id = in_review(world, BANNER)
    version = client.get(run_id).info()["version"]
    decided = getattr(client, how)(run_id, expected_version=version, **WHO)
    assert decided == {"run_id": run_id, "state": state, "version": version + 1}
    for each in ("cleanup", "runs"):
        assert woken(world, each) == ([run_id] if each == queue else [])
    with pytest.raises(Conflict):
        getattr(client, how)(run_id, expected_version=version, **WHO)


def test_a_broker_that_is_away_is_no_error(store_url: str, world: World) -> None:
    """The decision stands; a worker's sweeper finds the run."""
    dirty, run_id = ended(world, HOTEL), in_review(world, HOTEL)
    with Client(store_url, broker_url=f"redis://127.0.0.1:{free_port()}/0") as client:
        assert client.retry_cleanup(run_id, **WHO)["state"] == "cleaning"
        assert client.cleanup(dirty, **WHO)[0]["result"] == "requested"


def test_a_cancelled_run_that_waits_and_left_effects_is_announced_for_cleaning(
    client: Client, world: World
) -> None:
    """It does not end before what it did is made good."""
    held = worked(world, [HOTEL])
    world.do(release(held, world.op()))
    assert client.get(held.run_id).cancel() == "cleaning"
    assert woken(world, "cleanup") == [held.run_id]


@pytest.mark.parametrize(
    "wrong", [{"actor": ""}, {"actor": None}, {"reason": ""}, {"reason": "  "}, {"reason": 3}, {"expected_version": "4"},
              {"expected_version": True}, {"expected_version": -1}],
)  # fmt: skip
def test_a_decision_without_who_and_why_is_refused(
    client: Client, world: World, wrong: dict[str, Any]
) -> None:
    """One sentence, nothing is done."""
    run_id = in_review(world, HOTEL)
    before = world.dump_of(run_id)
    for decide in (client.retry_cleanup, client.resume, client.resolve):
        with pytest.raises(InvalidInput):
            decide(run_id, **{**WHO, **wrong})
    with pytest.raises(InvalidInput):
        client.mark(run_id, HOTEL.call_key, "done", **{**WHO, **wrong})
    if "expected_version" not in wrong:
        with pytest.raises(InvalidInput):
            client.cleanup([run_id], **{**WHO, **wrong})
    assert world.dump_of(run_id) == before


def test_a_mark_names_a_call_of_the_journal(client: Client, world: World) -> None:
    """What it became is in the answer and in the journal; a call that only reads has nothing to mark."""
    look = Made("look", effect="read")
    run_id = in_review(world, HOTEL, look)
    marked = client.mark(run_id, HOTEL.call_key, "done", generation=1, **WHO)
    assert (marked["became"], marked["generation"]) == ("kept", 1)
    row = next(each for each in client.get(run_id).journal() if each["tool"] == "hotel")
    assert row["compensation"]["status"] == "kept"
    with pytest.raises(Conflict, match="only reads"):
        client.mark(run_id, look.call_key, "done", **WHO)
    with pytest.raises(RunNotFound, match="has no call nothing"):
        client.mark(run_id, "nothing", "done", **WHO)
    with pytest.raises(RunNotFound, match="of generation 2"):
        client.mark(run_id, HOTEL.call_key, "done", generation=2, **WHO)
    with pytest.raises(InvalidInput, match='"done" or "undone"'):
        client.mark(run_id, HOTEL.call_key, "maybe", **WHO)  # type: ignore[arg-type]


def test_the_code_of_a_call_stays_when_a_person_settles_it(client: Client, world: World) -> None:
    """The journal says how it went and what became of it."""
    mail, lost = MAIL, Made("lost", status="started")
    run_id = in_review(world, mail, lost)
    for call in (mail, lost):
        client.mark(run_id, call.call_key, "done", **WHO)
    rows = {each["tool"]: each for each in client.get(run_id).journal()}
    assert (rows["mail"]["status"], rows["mail"]["error"]["code"]) == ("succeeded", "TOOL_TIMEOUT")
    assert (rows["lost"]["status"], rows["lost"]["error"]["code"]) == ("succeeded", "TOOL_OUTCOME_UNKNOWN")


# --- cleanup --------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11")
def test_a_dry_run_says_what_will_be_undone_and_changes_nothing(client: Client, world: World) -> None:
    """Newest first; what is unknown stands apart; the real request says the same."""
    held = worked(world, [Made("flight"), Made("hotel"), Made("look", effect="read"), MAIL])
    world.do(declare(held, world.op(), body=json.dumps(TABLE).encode()))
    world.put_in_state(held.run_id, State.FAILED)
    before = world.dump()
    (foreseen,) = client.cleanup(held.run_id, dry_run=True)
    assert world.dump() == before
    assert foreseen["result"] == "would_request"
    undone = [each["tool"] or each["resource"] for each in foreseen["undo"]]
    assert undone == ["hotel", "flight", {"kind": "temp_table", "id": "t1"}]
    assert [each["tool"] for each in foreseen["unknown"]] == ["mail"]
    (real,) = client.cleanup([held.run_id], **WHO)
    assert real == foreseen | {"result": "requested"}
    assert woken(world, "cleanup") == [held.run_id]
    assert client.cleanup(held.run_id, **WHO)[0]["result"] == "already_cleaning"


@pytest.mark.contract("E11")
def test_every_run_gets_its_result_and_none_stops_the_others(client: Client, world: World) -> None:
    """Whatever is wrong with one of them."""
    dirty, clean = ended(world, HOTEL), ended(world, Made("look", effect="read"))
    done, review = ended(world, HOTEL, state=State.SUCCEEDED), in_review(world, HOTEL)
    nobody = keys.new_run_id(SHARD)
    ids = ["nonsense", dirty, nobody, clean, done, review, dirty]
    results = client.cleanup(ids, **WHO)
    assert [(each["run_id"], each["result"]) for each in results] == [
        ("nonsense", "not_found"), (dirty, "requested"), (nobody, "not_found"), (clean, "nothing_to_do"),
        (done, "refused"), (review, "refused"),
    ]  # fmt: skip
    assert "--undo-succeeded" in results[4]["detail"]
    assert f"makegood review retry {review}" in results[5]["detail"]
    assert client.cleanup(done, undo_succeeded=True, **WHO)[0]["result"] == "requested"


def test_a_filter_picks_runs_that_ended_badly(client: Client, world: World) -> None:
    """By state, agent and age; succeeded runs only when they are to be undone."""
    failed, late = ended(world, HOTEL), ended(world, HOTEL, state=State.TIMED_OUT)
    done = ended(world, HOTEL, state=State.SUCCEEDED)

    def picked(**how: Any) -> set[str]:
        return {each["run_id"] for each in client.cleanup(dry_run=True, **how)}

    assert picked(agent=AGENT) == {failed, late}
    assert picked(agent=AGENT, undo_succeeded=True) == {failed, late, done}
    assert picked(agent="other") == set()
    assert picked(state="timed_out") == {late}
    assert picked(agent=AGENT, limit=1) == {late}
    assert picked(older_than=3600) == set()
    for run_id, enqueued_h, ended_h in ((failed, 5, 4), (late, 5, 0)):
        moments = {
            name: world.now_ms() - h * 3_600_000
            for name, h in (("enqueued_at", enqueued_h), ("ended_at", ended_h))
        }
        world.raw.hset(keys.run_key(run_id), mapping=moments)
        state = world.record(run_id)["state"]
        world.raw.zadd(keys.state_index(keys.prefix(SHARD), AGENT, state), {run_id: moments["enqueued_at"]})
    assert picked(older_than=3600) == {failed}
    assert picked(older_than=3600, state="timed_out") == set()


def test_a_selection_by_age_reads_page_by_page(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past runs that were enqueued long ago and ended just now."""
    monkeypatch.setattr(operate, "PAGE", 3)
    ids = [ended(world, HOTEL) for _ in range(8)]
    index = keys.state_index(keys.prefix(SHARD), AGENT, "failed")
    long_ago_ms = world.now_ms() - 7_200_000
    for place, run_id in enumerate(ids):
        enqueued_ms = long_ago_ms - place
        world.raw.zadd(index, {run_id: enqueued_ms})
        world.raw.hset(keys.run_key(run_id), "enqueued_at", enqueued_ms)
        if place >= 5:
            world.raw.hset(keys.run_key(run_id), "ended_at", enqueued_ms + 1000)
    found = [each["run_id"] for each in client.cleanup(older_than=3600, dry_run=True)]
    assert found == ids[5:]
    assert [each["run_id"] for each in client.cleanup(older_than=3600, limit=2, dry_run=True)] == ids[5:7]


def test_a_tool_that_says_it_cannot_undo_is_not_promised(client: Client, world: World) -> None:
    """What workers have published tells which calls have a compensation."""
    tools = [{"name": "hotel", "compensates": True}, {"name": "banner", "compensates": False}]
    world.do(catalog.publish_agents({AGENT: {"name": AGENT, "tools": tools}}))
    (foreseen,) = client.cleanup(ended(world, HOTEL, BANNER), dry_run=True)
    assert [each["tool"] for each in foreseen["undo"]] == ["hotel"]


@pytest.mark.parametrize(
    "how",
    [{}, {"ids": ["x"], "state": "failed"}, {"state": "broken"}, {"older_than": -1}, {"older_than": "1h"},
     {"agent": "a", "limit": 0}],
)  # fmt: skip
def test_a_request_that_picks_nothing_or_too_much_is_refused(client: Client, how: dict[str, Any]) -> None:
    """One sentence; nothing is asked for."""
    with pytest.raises(InvalidInput):
        client.cleanup(**how, **WHO)


def test_a_store_that_fails_on_the_way_leaves_a_result_for_each_run(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for stands in the results; the rest says that it was not tried. Before that it is an error."""
    ids = [ended(world, HOTEL) for _ in range(3)]
    whole = operate.clean_one

    def cut(request: operate.CleanupRequest, run_id: str, known: Any) -> Any:
        if run_id != ids[0]:
            raise StoreUnreachable("The store does not answer.")
        return whole(request, run_id, known)

    monkeypatch.setattr(operate, "clean_one", cut)
    results = client.cleanup(ids, **WHO)
    assert [each["result"] for each in results] == ["requested", "failed", "failed"]
    assert results[2]["detail"] == "Not tried: The store does not answer."
    with pytest.raises(StoreUnreachable):
        client.cleanup(ids[1:], **WHO)


def test_a_broker_that_is_away_is_asked_once(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try may take seconds; the sweeper finds the other runs as well."""
    asked: list[str] = []

    def away(run_id: str, queue: str) -> None:
        asked.append(run_id)
        raise BrokerUnreachable("It is away.")

    monkeypatch.setattr(client.publisher, "wake", away)
    ids = [ended(world, HOTEL) for _ in range(3)]
    assert [each["result"] for each in client.cleanup(ids, **WHO)] == ["requested"] * 3
    assert asked == ids[:1]


# --- asyncio --------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E11")
async def test_the_asyncio_client_does_the_same(store_url: str, world: World) -> None:
    """Lists, shows, marks, decides, cleans up, and tells who did."""
    first, second, third = (in_review(world, each) for each in (HOTEL, BANNER, HOTEL))
    dirty = ended(world, HOTEL)
    async with AsyncClient(store_url) as client:
        assert {each["run_id"] for each in await client.reviews()} == {first, second, third}
        assert (await client.review(first))["items"][0]["open"]
        assert (await client.mark(first, HOTEL.call_key, "undone", **WHO))["became"] == "undone"
        assert (await client.retry_cleanup(first, **WHO))["state"] == "cleaning"
        assert (await client.resume(second, **WHO))["state"] == "queued"
        assert (await client.resolve(third, **WHO))["state"] == "resolved"
        foreseen = await client.cleanup(dirty, dry_run=True)
        assert [each["result"] for each in foreseen] == ["would_request"]
        results = await client.cleanup([dirty, "nonsense"], **WHO)
        assert [each["result"] for each in results] == ["requested", "not_found"]
        assert [each["action"] for each in await client.audit(first)] == ["mark", "retry"]
    assert woken(world, "cleanup") == [first, dirty]
    assert woken(world, "runs") == [second]

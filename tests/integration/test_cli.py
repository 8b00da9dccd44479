"""Every command that needs no worker, as a process against a real server: what it prints and how it ends."""

from __future__ import annotations

import getpass
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from makegood import AsyncClient, Client, InvalidInput
from makegood.store.ops import breakers, catalog
from makegood.store.ops.review import read_audit
from makegood.store.sync_store import SyncStore
from makegood.tasks.agent import Agent
from makegood.tasks.tool import tool
from makegood.workers.embedded import EmbeddedServer
from makegood.workers.embedded_process import free_port
from support.cli import SERVED, environment, heard, inside, makegood, started

LISTED = ["run_id", "agent", "state", "error", "attempts", "enqueued_at", "started_at", "ended_at"]
NOWHERE = "00-00000000000000000000000000"


@tool(effect="read", breaker="warehouse")
async def check_stock(ctx: object, item: str) -> int:
    """How many are left."""
    return len(item)


SUPPORT = Agent("support", "openai/any", tools=[check_stock])


@pytest.fixture
def env(store_url: str) -> dict[str, str]:
    """An environment that names the session's server."""
    return environment(MAKEGOOD_REDIS_URL=store_url)


@pytest.fixture
def store(store_url: str) -> Iterator[SyncStore]:
    """The store, with one agent published."""
    store = SyncStore(store_url)
    store.do(catalog.publish_agents({"support": SUPPORT.declaration()}))
    yield store
    store.close()


def enqueued(env: dict[str, str], text: str = "hello", *options: str) -> str:
    """The id of a new run."""
    ran = inside("enqueue", "support", text, *options, env=env)
    assert ran.code == 0, ran.err
    return ran.out.strip()


def test_enqueue_prints_the_id_and_the_run_can_be_looked_at(env: dict[str, str], store: SyncStore) -> None:
    """enqueue, list, show, events, journal and cancel of one run that waits; a JSON object stays an object."""
    first = inside("enqueue", "support", '{"text": "hello"}', "--key", "k1", "--json", env=env)
    assert first.code == 0
    assert first.json["state"] == "queued"
    run_id = first.json["run_id"]
    later = enqueued(env, "again", "--expires-in", "600")

    listed = inside("runs", "list", "--json", env=env).json
    assert [list(each) for each in listed] == [LISTED, LISTED]
    assert [each["run_id"] for each in listed] == [later, run_id]
    assert [each["run_id"] for each in inside("runs", "list", "--limit", "1", "--json", env=env).json] == [
        later
    ]

    shown = inside("runs", "show", run_id, "--json", env=env).json
    assert (shown["input"], shown["key"], shown["state"]) == ({"text": "hello"}, "k1", "queued")
    events = inside("runs", "events", run_id, "--json", env=env).json
    assert [event["type"] for event in events] == ["run.enqueued"]
    assert inside("runs", "events", run_id, "--json", "--from", events[0]["id"], env=env).json == []
    assert inside("runs", "journal", run_id, "--json", env=env).json == []

    cancelled = inside("runs", "cancel", run_id, "--wait", "--json", env=env)
    assert (cancelled.code, cancelled.json) == (0, {"run_id": run_id, "state": "cancelled"})
    assert [
        each["state"] for each in inside("runs", "list", "--state", "cancelled", "--json", env=env).json
    ] == ["cancelled"]


def test_an_input_from_standard_input_is_read_whole(env: dict[str, str], store: SyncStore) -> None:
    """`-` reads it, UTF-8, without the last line break."""
    ran = makegood("enqueue", "support", "-", "--json", env=env, stdin="Grüße\nan alle\n".encode())
    assert inside("runs", "show", ran.json["run_id"], "--json", env=env).json["input"] == "Grüße\nan alle"
    assert makegood("enqueue", "support", "-", env=env, stdin=b"\xff").code == 2


def test_a_person_reads_the_same(env: dict[str, str], store: SyncStore) -> None:
    """Without --json the same facts, and every list that is empty says so on standard error."""
    assert inside("runs", "list", env=env).err == "There are no such runs.\n"
    run_id = enqueued(env)
    assert run_id in inside("runs", "list", env=env).out
    assert "state             queued" in inside("runs", "show", run_id, env=env).out
    assert "run.enqueued" in inside("runs", "events", run_id, env=env).out
    assert inside("runs", "journal", run_id, env=env).err == "The run has made no calls.\n"
    assert inside("runs", "cancel", run_id, env=env).out == "cancelled\n"
    again = inside("runs", "cancel", run_id, env=env)
    assert (again.code, again.out) == (0, "cancelled\n")


def test_following_ends_with_the_run_and_is_one_object_per_line(
    env: dict[str, str], store: SyncStore
) -> None:
    """`runs events -f --json` is NDJSON."""
    run_id = enqueued(env)
    with started("runs", "events", run_id, "-f", "--json", env=env) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["type"] == "run.enqueued"
        inside("runs", "cancel", run_id, env=env)
        assert json.loads(follower.stdout.readline())["type"] == "run.ended"
        assert follower.wait(60) == 0


@pytest.mark.contract("F2")
def test_who_cancelled_and_why_stands_in_the_audit_log_alone(env: dict[str, str], store: SyncStore) -> None:
    """--actor and --reason; without them the user of the operating system, and no reason."""
    for run_id, options, actor, reason in (
        (enqueued(env, "one"), ("--actor", "ada", "--reason", "wrong customer"), "ada", "wrong customer"),
        (enqueued(env, "two"), (), getpass.getuser(), ""),
    ):
        assert inside("runs", "cancel", run_id, *options, env=env).code == 0
        assert audited(store, run_id) == [("cancel", actor, reason)]
        log = (
            inside("runs", "events", run_id, "--json", env=env).out
            + inside("runs", "show", run_id, "--json", env=env).out
        )
        assert "wrong customer" not in log
    assert inside("runs", "cancel", run_id, "--actor", "x" * 201, env=env).code == 2


async def test_the_clients_say_who_cancels_too(env: dict[str, str], store: SyncStore, store_url: str) -> None:
    """Blocking and asyncio client; unless told they are "client"; what cannot be recorded cancels nothing."""
    one, two, three = (enqueued(env, text) for text in ("one", "two", "three"))
    with Client(store_url) as client:
        assert client.get(one).cancel(actor="console:ada", reason="on the phone") == "cancelled"
        assert client.get(two).cancel() == "cancelled"
        for wrong in ({"actor": ""}, {"actor": None}, {"reason": "x" * 2001}, {"reason": 5}):
            with pytest.raises(InvalidInput):
                client.get(three).cancel(**wrong)  # type: ignore[arg-type]
        assert client.get(three).status() == "queued"
    async with AsyncClient(store_url) as client_:
        assert await (await client_.get(three)).cancel(actor="bob", reason="late") == "cancelled"
    found = [audited(store, run_id) for run_id in (one, two, three)]
    assert found == [
        [("cancel", "console:ada", "on the phone")],
        [("cancel", "client", "")],
        [("cancel", "bob", "late")],
    ]


def audited(store: SyncStore, run_id: str) -> list[tuple[str, str, str]]:
    """Action, actor and reason of a run's entries in its audit log."""
    return [(each["action"], each["actor"], each["reason"]) for each in store.do(read_audit(run_id))]


def test_agents_are_listed_and_shown_as_declared(env: dict[str, str], store: SyncStore) -> None:
    """One array, one object; also how many model requests a step can send (C4)."""
    (listed,) = inside("agents", "list", "--json", env=env).json
    shown = inside("agents", "show", "support", "--json", env=env).json
    assert listed == shown == json.loads(json.dumps(SUPPORT.declaration()))
    assert "max_sends_per_step  6" in inside("agents", "show", "support", env=env).out


def test_breakers_are_opened_and_closed_by_hand(env: dict[str, str], store: SyncStore) -> None:
    """Opened by hand it stays open; actor and reason go to the audit log; a name nobody uses gives a warning."""
    opened = inside(
        "breakers", "open", "warehouse", "--actor", "ada", "--reason", "migration", "--json", env=env
    )
    assert (opened.code, opened.json["state"], opened.json["held"], opened.err) == (0, "open", True, "")
    (listed,) = inside("breakers", "list", "--json", env=env).json
    assert listed == opened.json
    assert inside("breakers", "close", "warehouse", "--json", env=env).json["state"] == "closed"
    audit = store.redis.xrange(breakers.AUDIT)
    assert [(entry[b"action"], entry[b"actor"], entry[b"reason"]) for _, entry in audit][:1] == [  # type: ignore[union-attr,misc]
        (b"breaker_open", b"ada", b"migration")
    ]
    assert (
        "Warning: No published tool uses a breaker named 'typo'"
        in inside("breakers", "open", "typo", env=env).err
    )


def test_messages_that_were_set_aside_are_listed_newest_first(env: dict[str, str], store: SyncStore) -> None:
    """With the reason and as much of them as was kept."""
    store.do(catalog.set_aside("It is no JSON.", b"\x80old"))
    store.do(catalog.set_aside("There is no task 'x'.", b"new"))
    listed = inside("messages", "list", "--json", env=env).json
    assert [(each["reason"], each["raw"]) for each in listed] == [
        ("There is no task 'x'.", "new"),
        ("It is no JSON.", r"\x80old"),
    ]


def test_doctor_is_content_with_a_good_set_up(env: dict[str, str], store: SyncStore) -> None:
    """Every part is checked and every version is named."""
    ran = inside("doctor", "--json", env=env)
    assert (ran.code, ran.json["ok"], ran.json["agents"]) == (0, True, ["support"])
    assert {check["part"] for check in ran.json["findings"]} == {"settings", "agents", "store", "broker"}
    assert {"python", "celery", "litellm"} <= ran.json["versions"].keys()


def test_doctor_fails_for_agents_that_cannot_be_loaded(env: dict[str, str], store: SyncStore) -> None:
    """Exit code 1: there is an error, and all other checks are made all the same."""
    ran = inside("doctor", env={**env, "MAKEGOOD_AGENTS": "no_such_module"})
    assert ran.code == 1
    assert "there is no module no_such_module" in ran.out
    assert "Valkey" in ran.out


def test_doctor_says_which_server_does_not_answer(store_url: str) -> None:
    """Exit code 8 for the store as for the broker."""
    dead = f"redis://:hidden@127.0.0.1:{free_port()}/0"
    for url, broker, part in ((dead, store_url, "store"), (store_url, dead, "broker")):
        ran = inside("doctor", "--json", "--url", url, "--broker-url", broker, env=environment())
        assert (ran.code, ran.json["ok"]) == (8, False)
        assert [check["part"] for check in ran.json["findings"] if check["level"] == "error"] == [part]
        assert "hidden" not in ran.out


def test_config_shows_every_setting_and_no_password() -> None:
    """Value, default, description and example of each; secrets are masked with and without --redacted."""
    env = environment(MAKEGOOD_REDIS_URL="redis://:hidden@store/0", SENTRY_DSN="https://hidden@sentry/1")
    for options in ((), ("--redacted",)):
        ran = inside("config", "--json", *options, env=env)
        assert ran.code == 0
        assert "hidden" not in ran.out
        assert ran.json["MAKEGOOD_REDIS_URL"]["value"] == "redis://:***@store/0"
        assert set(ran.json["MAKEGOOD_LEASE_S"]) == {
            "value",
            "set",
            "default",
            "kind",
            "description",
            "example",
        }
        assert (ran.json["MAKEGOOD_REDIS_URL"]["set"], ran.json["MAKEGOOD_LEASE_S"]["set"]) == (True, False)
    assert "hidden" not in inside("config", env=env).out


def test_config_lists_the_settings_also_when_one_is_wrong() -> None:
    """Whoever made the mistake was told to look here."""
    ran = inside("config", "--json", env=environment(MAKEGOOD_LEASE_S="soon"))
    assert ran.code == 2
    assert "MAKEGOOD_LEASE_S" in ran.sentence
    assert ran.json["MAKEGOOD_LEASE_S"]["value"] is None


# --- exit codes -----------------------------------------------------------------------------------------------------


def test_not_found_is_3(env: dict[str, str], store: SyncStore) -> None:
    """A run that is not there, a text that is no run id, an agent nobody serves."""
    for words in (
        ("runs", "show", NOWHERE),
        ("runs", "cancel", "1"),
        ("enqueue", "suport", "hello"),
        ("agents", "show", "suport"),
    ):
        ran = inside(*words, env=env)
        assert (ran.code, ran.out) == (3, "")
        assert ran.sentence
    assert makegood("runs", "show", NOWHERE, env=env).code == 3


def test_invalid_input_is_2(env: dict[str, str], store: SyncStore) -> None:
    """Nothing is recorded."""
    ran = inside("enqueue", "support", "x" * (1024 * 1024 + 1), env=env)
    assert ran.code == 2
    assert "more than 1 MiB" in ran.sentence
    assert inside("runs", "list", "--state", "running_late", env=env).code == 2


def test_what_the_server_forbids_is_4(valkey: EmbeddedServer, store: SyncStore) -> None:
    """A user of the server who may only read gets one sentence."""
    store.redis.execute_command(
        "ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection", "+info"
    )
    try:
        url = valkey.url.replace("unix://", "unix://reader@") + "?password=pw"
        assert inside("runs", "list", "--url", url, env=environment()).code == 0
        for command in (("enqueue", "support", "hello"), ("breakers", "list"), ("breakers", "close", "x")):
            ran = makegood(*command, "--url", url)
            assert (ran.code, "does not allow" in ran.sentence) == (4, True)
            assert "pw" not in ran.sentence
    finally:
        store.redis.execute_command("ACL", "DELUSER", "reader")


def test_a_conflict_is_5(env: dict[str, str], store: SyncStore) -> None:
    """The key belongs to another input; the same input again is the same run."""
    run_id = enqueued(env, "hello", "--key", "k")
    assert enqueued(env, "hello", "--key", "k") == run_id
    ran = makegood("enqueue", "support", "other", "--key", "k", env=env)
    assert ran.code == 5
    assert run_id in ran.sentence


def test_a_server_that_does_not_answer_is_8(env: dict[str, str], store: SyncStore) -> None:
    """The store; or the broker, and then the run is stored."""
    dead = f"redis://127.0.0.1:{free_port()}/0"
    assert makegood("runs", "list", "--url", dead).code == 8
    worker = makegood("worker", "--queues", "cleanup", "--url", dead, env=env | SERVED)
    assert "cannot be reached" in worker.sentence
    ran = inside("enqueue", "support", "hello", env={**env, "MAKEGOOD_BROKER_URL": dead})
    assert ran.code == 8
    (stored,) = inside("runs", "list", "--json", env=env).json
    assert stored["run_id"] in ran.sentence


def test_waiting_longer_than_the_timeout_is_9(env: dict[str, str], store: SyncStore) -> None:
    """The run goes on; with --json it is printed as it stands."""
    ran = makegood("enqueue", "support", "hello", "--wait", "--timeout", "0.2", "--json", env=env)
    assert ran.code == 9
    assert ran.json["state"] == "queued"
    assert ran.json["run_id"] in ran.sentence
    ran = inside("enqueue", "support", "hello", "--follow", "--timeout", "0.2", "--json", env=env)
    assert (ran.code, [event["type"] for event in ran.ndjson]) == (9, ["run.enqueued"])


def test_ctrl_c_is_quiet_and_130(env: dict[str, str], store: SyncStore) -> None:
    """Nothing is printed any more; the run goes on."""
    with started("enqueue", "support", "hello", "--wait", env=env) as waiting:
        (said,) = heard(waiting, "Run ")
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, out, err) == (130, "", "")
    assert inside("runs", "show", said.split()[1], "--json", env=env).json["state"] == "queued"


def test_a_reader_that_went_away_is_quiet_and_141(env: dict[str, str], store: SyncStore) -> None:
    """`makegood … | head` prints no complaint."""
    enqueued(env)
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    done = subprocess.run(
        [sys.executable, "-m", "makegood", "runs", "list", "--json"],
        check=False,
        stdout=write_fd,
        stderr=subprocess.PIPE,
        env=env,
        timeout=60,
    )
    os.close(write_fd)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_are_for_terminals_that_want_them(
    env: dict[str, str], store: SyncStore, no_color: bool
) -> None:
    """On a terminal states are coloured, unless NO_COLOR is set."""
    store.do(breakers.set_breaker("warehouse", "open", "ada", ""))
    ours, theirs = pty.openpty()
    more = {"TERM": "xterm-256color", "COLUMNS": "120"} | ({"NO_COLOR": "1"} if no_color else {})
    command = [sys.executable, "-m", "makegood", "breakers", "list"]
    subprocess.run(command, check=True, stdout=theirs, stderr=theirs, env=env | more, timeout=60)
    os.close(theirs)
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    assert "warehouse" in seen
    assert ("\x1b[31mopen" in seen) is not no_color

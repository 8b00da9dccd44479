"""`makegood worker` as a process: one worker with its own server serves all of this file, the README's example included."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from makegood import Client
from makegood.testing import Behaviour, Provider, Reply, RequestRecord
from makegood.testing.shop import Shop
from support.cli import SERVED, below, environment, gone, heard, inside, makegood, started
from support.servers import ServerFactory

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

AGENTS = """
import asyncio
from makegood import agent

@agent(name="plain", model="openai/none")
async def plain(ctx, input):
    return {"said": input}

@agent(name="broken", model="openai/none")
async def broken(ctx, input):
    raise ValueError("no such thing")

@agent(name="patient", model="openai/none")
async def patient(ctx, input):
    await asyncio.sleep(60)
"""


def script(request: RequestRecord) -> Behaviour:
    """The model of the example: a ticket, then its number."""
    told = list(request.results.values())
    if not told:
        return Reply(tool_calls=[("create_ticket", {"customer": "ada", "title": "The lamp is broken"})])
    return Reply(f"Your ticket is {json.loads(told[0])['id']}.")


class Worker:
    """The worker of this file and what it runs on."""

    def __init__(
        self, process: subprocess.Popen[str], lines: list[str], shop: Shop, provider: Provider
    ) -> None:
        self.process, self.lines, self.shop, self.provider = process, lines, shop, provider
        self.url = lines[0].removeprefix("The embedded server is at ").partition(";")[0]
        self.env = environment(MAKEGOOD_REDIS_URL=self.url)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """`makegood worker --embedded` with the example's agent and three agents made of code."""
    folder = tmp_path_factory.mktemp("worker")
    (folder / "code_agents.py").write_text(AGENTS)
    with Shop() as shop, Provider(script) as provider:
        env = environment(
            MAKEGOOD_AGENTS="support,code_agents",
            MAKEGOOD_DATA_DIR=str(folder / "data"),
            MAKEGOOD_GRACE_S="5",
            PYTHONPATH=str(EXAMPLES),
            SHOP_URL=shop.url,
            OPENAI_API_BASE=provider.url,
            OPENAI_API_KEY="none",
        )
        with started("worker", "--embedded", "-c", "7", "--json", env=env, cwd=folder) as process:
            yield Worker(process, heard(process, "ready "), shop, provider)


def enqueue(worker: Worker, *words: str) -> Any:
    """`makegood enqueue … --wait`."""
    return inside("enqueue", *words, "--wait", "--timeout", "60", env=worker.env)


def test_it_says_where_its_server_is_and_when_it_is_ready(worker: Worker) -> None:
    """The ready line has exactly the promised form; with --json one object says what was started."""
    assert worker.lines[-1] == "ready queues=runs,cleanup slots=7"
    assert worker.process.stdout is not None
    said = json.loads(worker.process.stdout.readline())
    assert said == {"queues": ["runs", "cleanup"], "slots": 7, "url": worker.url}
    assert [each["name"] for each in inside("agents", "list", "--json", env=worker.env).json] == [
        "broken",
        "patient",
        "plain",
        "support",
    ]


def test_waiting_prints_the_output(worker: Worker) -> None:
    """Exit code 0; with --json the whole result."""
    assert enqueue(worker, "plain", "hello").out == '{"said": "hello"}\n'
    ran = enqueue(worker, "plain", '{"a": 1}', "--json")
    assert (ran.code, ran.json["state"], ran.json["output"]) == (0, "succeeded", {"said": {"a": 1}})


def test_a_run_that_ends_badly_is_7(worker: Worker) -> None:
    """Also as a process; the sentence says why and where to look."""
    ran = makegood("enqueue", "broken", "hello", "--wait", env=worker.env)
    assert (ran.code, ran.out) == (7, "")
    assert "failed (BUG: ValueError: no such thing)" in ran.sentence
    assert "makegood runs show" in ran.sentence


def test_following_prints_events_and_at_the_end_the_result(worker: Worker) -> None:
    """NDJSON: every event, and under --wait the result as the last line."""
    *events, result = enqueue(worker, "plain", "hello", "--follow", "--json").ndjson
    assert (events[0]["type"], events[-1]["type"]) == ("run.enqueued", "run.ended")
    assert (result["state"], result["agent"]) == ("succeeded", "plain")


def test_a_running_run_is_cancelled(worker: Worker) -> None:
    """`cancel --wait` returns once its work has stopped."""
    run_id = inside("enqueue", "patient", "hello", env=worker.env).out.strip()
    with Client(worker.url) as client:
        next(event for event in client.get(run_id).events(follow=True) if event["type"] == "attempt.started")
    ran = inside("runs", "cancel", run_id, "--wait", "--timeout", "30", "--json", env=worker.env)
    assert (ran.code, ran.json["state"]) == (0, "cancelled")


def test_the_example_of_the_readme_runs(worker: Worker) -> None:
    """As a script of its own, against the shop and a model; asking twice is one run, and a lost answer one ticket."""
    worker.shop.lose_answer("/tickets", stall=False)
    env = worker.env | {"PYTHONPATH": str(EXAMPLES)}
    for _ in range(2):
        command = [sys.executable, str(EXAMPLES / "support.py"), "The lamp is broken."]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=90)
        assert (done.stdout, done.stderr) == ("Your ticket is T-1.\n", "")
    assert len(worker.shop.tickets) == 1
    first, second = worker.shop.keys("POST", "/tickets")
    assert first == second


def test_a_second_worker_cannot_take_the_same_data_folder(worker: Worker) -> None:
    """Exit code 5, and the first one goes on."""
    data_dir = str(Path(worker.url.removeprefix("unix://")).parent)
    env = environment(MAKEGOOD_DATA_DIR=data_dir, **SERVED)
    assert makegood("worker", "--embedded", "--queues", "cleanup", env=env).code == 5
    assert enqueue(worker, "plain", "hello").code == 0


def test_a_server_that_dies_comes_back_with_its_data(worker: Worker) -> None:
    """At the same URL, and the worker goes on."""
    before = inside("runs", "list", "--json", env=worker.env).json
    (server,) = [each for each in below(worker.process) if each.name() == "valkey-server"]
    server.kill()
    heard(worker.process, "The embedded server ended with code 137")
    until_s = time.monotonic() + 60
    while (after := inside("runs", "list", "--json", env=worker.env)).code != 0:
        assert time.monotonic() < until_s, after.err
    assert after.json == before
    assert enqueue(worker, "plain", "hello").code == 0


def test_it_ends_in_order_and_leaves_nothing(worker: Worker) -> None:
    """SIGTERM: exit code 0, no process of it is left, nothing but data went to standard output."""
    processes = below(worker.process)
    assert len(processes) >= 4
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.stderr is not None
    worker.process.stderr.read()
    assert worker.process.wait(60) == 0
    assert gone(processes)
    assert worker.process.stdout is not None
    assert worker.process.stdout.read() == ""


# --- workers that do not start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "sentence"),
    [
        ("", "MAKEGOOD_AGENTS names no module"),
        ("no_such_module", "MAKEGOOD_AGENTS: there is no module no_such_module"),
        ("json", "MAKEGOOD_AGENTS: module json has no Agent"),
    ],
)
def test_wrong_agents_are_one_sentence_and_2(
    store_url: str, agents: str, sentence: str, tmp_path: Path
) -> None:
    """Also with several processes; it takes no model library to find out."""
    env = environment(MAKEGOOD_REDIS_URL=store_url, **({"MAKEGOOD_AGENTS": agents} if agents else {}))
    ran = makegood("worker", "--processes", "3", env=env, cwd=tmp_path)
    assert ran.code == 2
    assert ran.sentence.startswith(sentence)
    assert len(ran.err.splitlines()) == 1


def test_a_server_that_may_lose_writes_is_a_warning_and_refused_under_strict(
    fresh_server: ServerFactory,
) -> None:
    """Without --strict the worker says so and serves; here one for cleanup alone, which needs the agents as any other does."""
    server = fresh_server()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendfsync", "everysec")
    env = environment(MAKEGOOD_REDIS_URL=server.url, **SERVED)
    refused = makegood("worker", "--queues", "cleanup", "--strict", env=env)
    assert refused.code == 1
    assert "appendfsync everysec" in refused.sentence
    with started("worker", "--queues", "cleanup", "-c", "3", env=env) as process:
        warning, *_, ready = heard(process, "ready ")
        assert warning.startswith("Warning: The server writes to disk late")
        assert ready == "ready queues=cleanup slots=3"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0

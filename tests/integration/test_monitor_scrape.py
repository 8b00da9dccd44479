"""The collector on a real Valkey: every number, sums over shards, caps, and a store or broker that does not answer."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import orjson
import pytest
import redis

from makegood.monitoring import collector as module
from makegood.monitoring.collector import StoreCollector
from makegood.monitoring.label_caps import LabelCaps
from makegood.monitoring.limits import Hours
from makegood.monitoring.metrics import METRICS, sample_names
from makegood.store import keys
from makegood.store.sync_store import SyncStore
from makegood.tasks.flows import run_sync
from support.counted import (
    COUNTERS,
    SERIES,
    count_by_hand,
    count_series,
    labels_of,
    samples_of,
    scrape,
    value,
)
from support.engine import eventually
from support.servers import ServerFactory, free_port, kill

Make = Callable[..., StoreCollector]

ALONE = {"makegood_store_up", "makegood_exporter_last_success_timestamp_seconds", "makegood_build_info"}
"""What a scrape holds while the store does not answer."""

OF_LIMITS = {metric.full_name for metric in METRICS if metric.where == "limits"}


@pytest.fixture
def make() -> Iterator[Make]:
    """Collectors that are closed at the end; store and broker are the same server unless told otherwise."""
    with ExitStack() as stack:

        def made(url: str, broker_url: str | None = None, **options: Any) -> StoreCollector:
            one = StoreCollector(url, broker_url or url, **options)
            stack.callback(one.close)
            one.warm_up()
            return one

        yield made


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_every_metric_of_the_table_is_exported(store_url: str, make: Make) -> None:
    """From a store that has counted everything once; nothing is exported that the table does not name."""
    count_by_hand(store_url)
    names = {name for name, _ in samples_of(scrape(make(store_url)))}
    assert names == {name for metric in METRICS for name in sample_names(metric)}


def test_shards_are_summed(store_url: str, make: Make) -> None:
    """Three shards hold the same: every counter and histogram is three times that of one, in the table's units."""
    count_by_hand(store_url, shards=(0, 7, 15))
    found = samples_of(scrape(make(store_url)))
    assert value(found, "runs_enqueued_total", agent="support") == 3 * COUNTERS["runs_enqueued_total|support"]
    assert value(found, "breaker_transitions_total", name="tickets", to="open") == 1
    assert value(found, "operator_actions_total", action="resolve", result="done") == 3
    assert value(found, "operator_actions_total", action="breaker_open", result="done") == 2
    assert value(found, "operator_actions_total", action="timeout_set", result="done") == 4
    assert value(found, "calls_total", tool="create_ticket", result="ok") == 12
    assert value(found, "calls_total", tool="create_ticket", result="replayed") == 9
    assert value(found, "calls_total", tool="create_ticket", result="timeout") == 0
    assert value(found, "call_duration_seconds_count", tool="create_ticket", result="ok") == 12
    assert value(found, "call_duration_seconds_sum", tool="create_ticket", result="ok") == 394.5
    assert value(found, "call_duration_seconds_bucket", tool="create_ticket", result="ok", le="0.5") == 6
    assert value(found, "call_duration_seconds_bucket", tool="create_ticket", result="ok", le="1.0") == 9
    assert value(found, "run_steps_sum", agent="support") == 3 * SERIES["agent:support"]["run_steps|sum"]
    assert value(found, "run_calls_sum", agent="support", kind="model") == 18
    assert value(found, "tokens_total", model="openai/gpt", direction="prompt") == 300
    assert value(found, "cost_usd_total", model="openai/gpt") == pytest.approx(0.0045)
    assert value(found, "recovery_seconds_sum") == 21


def test_histograms_are_consistent(store_url: str, make: Make) -> None:
    """Buckets never fall, the last one is +Inf and equals the count."""
    count_by_hand(store_url)
    found = samples_of(scrape(make(store_url)))
    histograms: dict[tuple[str, Any], list[tuple[float, float]]] = {}
    for (name, labels), number in found.items():
        if name.endswith("_bucket"):
            rest = tuple(each for each in labels if each[0] != "le")
            histograms.setdefault((name, rest), []).append((float(dict(labels)["le"]), number))
    assert len({name for name, _ in histograms}) == sum(metric.type == "histogram" for metric in METRICS)
    for (name, rest), buckets in histograms.items():
        counts = [count for _, count in sorted(buckets)]
        assert counts == sorted(counts)
        assert max(buckets)[0] == float("inf")
        assert counts[-1] == found[name.replace("_bucket", "_count"), rest]


def test_gauges_are_what_is_so_now(store_url: str, make: Make) -> None:
    """States over all shards, the oldest run of any shard, workers by queue, one of three states of a breaker."""
    count_by_hand(store_url, shards=(0, 7))
    found = samples_of(scrape(make(store_url)))
    assert value(found, "runs_state", agent="support", state="queued") == 4
    assert value(found, "runs_state", agent="support", state="running") == 0
    assert value(found, "runs_oldest_age_seconds", queue="runs", state="queued") >= 90
    assert value(found, "runs_oldest_age_seconds", queue="cleanup", state="requires_manual_review") == 0
    assert {(queue, value(found, "workers_alive", queue=queue)) for queue in labels_of(found, "workers_alive", "queue")} == {("runs", 2), ("cleanup", 1), ("quarantine", 0)}  # fmt: skip
    assert value(found, "worker_slots", queue="runs") == 200
    assert value(found, "worker_loop_lag_seconds", queue="runs") == 0.5
    assert labels_of(found, "worker_loop_lag_seconds", "queue") == {"runs", "cleanup"}
    states = {state: value(found, "breaker_state", name="tickets", state=state) for state in ("open", "half_open", "closed")}  # fmt: skip
    assert states == {"open": 1, "half_open": 0, "closed": 0}
    assert value(found, "timeout_false_kill_ratio", agent="support") == 0.25
    assert value(found, "timeout_threshold_seconds", target="create_ticket", level="call") == 10
    assert value(found, "timeout_threshold_seconds", target="support", level="run") == 600
    assert value(found, "timeout_samples", target="create_ticket", level="call") == 200
    assert 1 < value(found, "timeout_suggested_seconds", target="create_ticket", level="call") < 10


def test_what_is_counted_of_limits_is_that_of_seven_days(store_url: str) -> None:
    """Hours that are over are read once; what is older does not count."""
    hour = int(time.time()) // 3600
    with redis.Redis.from_url(store_url) as raw:
        raw.hset(f"{keys.prefix(3)}h:{hour - 100}", mapping={"timeout_verdicts_total|a|false_kill": 1, "timeout_verdicts_total|a|unknown": 9})  # fmt: skip
        raw.hset(f"{keys.prefix(4)}h:{hour}", mapping={"timeout_verdicts_total|a|true_kill": 3, "timeout_verdicts_total|b|unknown": 1})  # fmt: skip
        raw.hset(f"{keys.prefix(4)}h:{hour - 200}", mapping={"timeout_verdicts_total|a|false_kill": 99})
        expected = {"timeout_verdicts_total|a|false_kill": 1, "timeout_verdicts_total|a|unknown": 9, "timeout_verdicts_total|a|true_kill": 3, "timeout_verdicts_total|b|unknown": 1}  # fmt: skip
        store, hours = SyncStore(store_url), Hours()
        now_ms = hour * 3_600_000
        assert run_sync(store, hours.read(now_ms)) == expected
        before = raw.info("commandstats")["cmdstat_hgetall"]["calls"]
        assert run_sync(store, hours.read(now_ms)) == expected
        assert raw.info("commandstats")["cmdstat_hgetall"]["calls"] - before == 16
        assert run_sync(store, hours.read(now_ms + 3_600_000)) == expected
        assert raw.info("commandstats")["cmdstat_hgetall"]["calls"] - before == 3 * 16
        store.close()


def test_what_is_declared_has_a_series_of_its_own_before_what_was_merely_counted(
    store_url: str, make: Make
) -> None:
    """More names than the cap: the rest is one series, `other`, and a later declaration moves nothing out of it."""
    with redis.Redis.from_url(store_url) as raw:
        for number in range(5):
            raw.hset(f"{keys.prefix(1)}counters", f"runs_enqueued_total|agent{number}", 1)
        raw.hset(keys.CATALOG, "zulu", orjson.dumps({"model": "m", "tools": []}))
        one = make(store_url, caps=LabelCaps({"agent": 3}))
        first = samples_of(scrape(one))
        assert labels_of(first, "runs_enqueued_total", "agent") == {"zulu", "agent0", "agent1", "other"}
        assert value(first, "runs_enqueued_total", agent="other") == 3
        raw.hset(keys.CATALOG, "agent4", orjson.dumps({"model": "m", "tools": []}))
        raw.hset(f"{keys.prefix(0)}counters", "runs_enqueued_total|agent3", 7)
        second = samples_of(scrape(one))
        assert value(second, "runs_enqueued_total", agent="other") == 10
        assert all(second[key] >= first[key] for key in first if key[0].endswith("_total"))


def test_what_this_version_does_not_know_stops_nothing(store_url: str, make: Make) -> None:
    """A newer worker may count what it likes."""
    count_by_hand(store_url)
    with redis.Redis.from_url(store_url) as raw:
        raw.hset(f"{keys.prefix(0)}counters", "moons_total|io", 1)
        count_series(raw, 0, "planet:mars", {"moons": 2})
    text = scrape(make(store_url))
    assert value(samples_of(text), "store_up") == 1
    assert "moons" not in text


# --- what a scrape costs the server -----------------------------------------------------------------------------------

READS = {"time", "hgetall", "smembers", "zcard", "zrange", "evalsha", "hget", "zrangebyscore"}
"""Each looks at one small key; `evalsha` is the script that lists the workers, which reads with the last two."""


def test_a_scrape_only_reads_and_never_looks_at_all_keys(store_url: str, make: Make) -> None:
    """No write, no KEYS, no SCAN, no key of a run: the server's own statistics and its slow log say so."""
    count_by_hand(store_url)
    one = make(store_url, "memory://")
    with redis.Redis.from_url(store_url) as raw:
        raw.config_resetstat()
        before = raw.info("persistence")["rdb_changes_since_last_save"]
        with raw.monitor() as watching:
            samples = samples_of(scrape(one))
            with redis.Redis.from_url(store_url) as other:
                other.echo("the scrape is over")
            seen = []
            for command in watching.listen():
                if command["command"] == "ECHO the scrape is over":
                    break
                seen.append(command["command"])
        stats = {name.removeprefix("cmdstat_") for name in raw.info("commandstats")}
        assert raw.info("persistence")["rdb_changes_since_last_save"] == before
    assert value(samples, "store_up") == 1
    assert (
        stats - {"info", "monitor", "echo", "config|resetstat", "client|setinfo", "hello", "select"} <= READS
    )
    assert not [each for each in seen if ":run:" in each or ":j:" in each or ":e:" in each]


def test_scrapes_at_the_same_time_share_reads(store_url: str, make: Make) -> None:
    """Eight at once are answered in full, by fewer looks at the store than eight."""
    count_by_hand(store_url)
    one = make(store_url, "memory://")
    with redis.Redis.from_url(store_url) as raw, ThreadPoolExecutor(8) as pool:
        raw.config_resetstat()
        texts = list(pool.map(lambda _: scrape(one), range(8)))
        looks = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert all(value(samples_of(text), "store_up") == 1 for text in texts)
    assert looks < 8


# --- a store that does not answer -------------------------------------------------------------------------------------


def test_without_the_store_a_scrape_says_only_that(fresh_server: ServerFactory, make: Make) -> None:
    """No old number, and the time of the last success; after a restart everything is there at the next scrape."""
    server = fresh_server()
    count_by_hand(server.url)
    one = make(server.url, "memory://")
    before = samples_of(scrape(one))
    kill(server)
    down = samples_of(scrape(one))
    assert {name for name, _ in down} == ALONE
    assert value(down, "store_up") == 0
    assert value(down, "exporter_last_success_timestamp_seconds") >= value(before, "exporter_last_success_timestamp_seconds")  # fmt: skip
    assert "cannot be reached" in one.not_ready()
    server.start()
    after = samples_of(scrape(one))
    assert value(after, "store_up") == 1
    assert after.keys() == before.keys()
    assert one.not_ready() == ""


def test_without_any_success_the_time_of_the_last_one_is_0(make: Make) -> None:
    """So that an alert on its age fires."""
    found = samples_of(scrape(make(f"redis://127.0.0.1:{free_port()}/0")))
    assert value(found, "exporter_last_success_timestamp_seconds") == 0
    assert value(found, "store_up") == 0


def test_a_frozen_store_holds_no_scrape(
    fresh_server: ServerFactory, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several at once are answered after the limit, and once it goes on, so do the numbers."""
    monkeypatch.setattr(module, "STORE_S", 0.3)
    server = fresh_server()
    one = make(server.url)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda _: scrape(one), range(16)))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert [value(samples_of(text), "store_up") for text in texts] == [0] * 16
    eventually(lambda: value(samples_of(scrape(one)), "store_up"), "the store is up again")


@pytest.mark.parametrize(
    "answer",
    [b"-LOADING Redis is loading the dataset in memory\r\n" * 50, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*-7\r\n$x\r\n", b"+OK\r\n" * 50, b""],
    ids=["loading", "http", "garbage", "OK to everything", "hangs up"],
)  # fmt: skip
def test_a_server_that_answers_nonsense_is_down(
    answer: bytes, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an error of the scrape."""
    monkeypatch.setattr(module, "STORE_S", 0.5)
    with answering(answer) as url:
        found = samples_of(scrape(make(url, "memory://")))
    assert {name for name, _ in found} == ALONE
    assert value(found, "store_up") == 0


def test_a_broken_number_in_the_store_is_no_error_of_the_scrape(store_url: str, make: Make) -> None:
    """Whoever writes into the store by hand finds the reason in the log."""
    with redis.Redis.from_url(store_url) as raw:
        raw.set(f"{keys.prefix(0)}counters", "no hash")
    one = make(store_url)
    assert value(samples_of(scrape(one)), "store_up") == 0


def test_limits_that_cannot_be_read_cost_only_their_own_numbers(
    store_url: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Each scrape tries anew and fails, while the numbers are being read: these lose no connection by it."""
    count_by_hand(store_url)
    with redis.Redis.from_url(store_url) as raw:
        raw.set(keys.LIMITS, "no hash")
        one = make(store_url, "memory://")
        for _ in range(50):
            found = samples_of(scrape(one))
            assert value(found, "store_up") == 1
            assert value(found, "runs_enqueued_total", agent="support") == 15
            assert not {name for name, _ in found if name in OF_LIMITS}
        raw.delete(keys.LIMITS)
        assert {name for name, _ in samples_of(scrape(one)) if name in OF_LIMITS} == OF_LIMITS
    told = [record.message for record in caplog.records]
    (failed,) = [at for at, each in enumerate(told) if "WRONGTYPE" in each]
    (again,) = [at for at, each in enumerate(told) if each.endswith("(limits) answers again")]
    assert failed < again


def test_a_broker_that_does_not_answer_costs_only_its_own_numbers(store_url: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Away or silent; the store's numbers are there, and readiness does not depend on it."""
    count_by_hand(store_url)
    monkeypatch.setattr(module, "BROKER_S", 0.3)
    with answering(None) as silent:
        for broker_url in (f"redis://127.0.0.1:{free_port()}/0", f"amqp://127.0.0.1:{free_port()}", silent):
            one = make(store_url, broker_url)
            found = samples_of(scrape(one))
            assert value(found, "store_up") == 1
            assert value(found, "runs_enqueued_total", agent="support") == 15
            assert not labels_of(found, "queue_length", "queue")
            assert one.not_ready() == ""


def test_the_length_of_the_queues_is_that_of_the_broker(store_url: str, make: Make) -> None:
    """Three queues; one that does not exist is empty."""
    with redis.Redis.from_url(store_url) as raw:
        raw.lpush("makegood.cleanup", "a", "b")
    found = samples_of(scrape(make(store_url)))
    assert {(queue, value(found, "queue_length", queue=queue)) for queue in labels_of(found, "queue_length", "queue")} == {("runs", 0), ("cleanup", 2), ("quarantine", 0)}  # fmt: skip


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """The URL of a server that gives one answer to whatever is sent, then hangs up; None: never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                clients.append(client)
                if answer is None:
                    continue
                with suppress(OSError):
                    client.recv(1 << 16)
                    client.sendall(answer)
                    client.shutdown(socket.SHUT_WR)

    threading.Thread(target=serve, daemon=True).start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    for each in (listener, *clients):
        each.close()

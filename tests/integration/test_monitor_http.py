"""`makegood monitor` as a process, over real HTTP: what it serves, when it says so, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from support.cli import environment, heard, makegood, started
from support.counted import count_by_hand, samples_of, value
from support.servers import ServerFactory, free_port, kill

READY = "ready http://"


@contextmanager
def monitored(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process on a free port, and its URL."""
    with started("monitor", "--port", "0", *words, env=environment()) as process:
        line = heard(process, READY)[-1]
        yield process, line.removeprefix("ready ").removesuffix("/metrics")


@pytest.fixture
def counted(store_url: str) -> str:
    """A store with every number in it."""
    count_by_hand(store_url)
    return store_url


def test_it_serves_what_prometheus_reads(counted: str) -> None:
    """GET and HEAD of /metrics, in the text format 0.0.4."""
    with monitored("--url", counted) as (_, url):
        got = httpx.get(f"{url}/metrics")
        assert (got.status_code, got.headers["content-type"]) == (
            200,
            "text/plain; version=0.0.4; charset=utf-8",
        )
        found = samples_of(got.text)
        assert value(found, "store_up") == 1
        assert value(found, "runs_enqueued_total", agent="support") == 15
        assert not [
            name for name, _ in found if not name.startswith("makegood_") or name.endswith("_created")
        ]
        head = httpx.head(f"{url}/metrics")
        assert (head.status_code, head.content) == (200, b"")


def test_health_and_readiness(fresh_server: ServerFactory) -> None:
    """It lives without a store and is not ready; it is ready without a broker."""
    server = fresh_server()
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    with monitored("--url", server.url, "--broker-url", nowhere) as (_, url):
        assert httpx.get(f"{url}/readyz").json() == {"status": "ok"}
        assert httpx.head(f"{url}/readyz").status_code == 200
        kill(server)
        refused = httpx.get(f"{url}/readyz")
        assert (refused.status_code, refused.json()["status"]) == (503, "not ready")
        assert "cannot be reached" in refused.json()["reason"]
        assert (httpx.get(f"{url}/healthz").status_code, httpx.get(f"{url}/healthz").json()) == (
            200,
            {"status": "ok"},
        )
        assert value(samples_of(httpx.get(f"{url}/metrics").text), "store_up") == 0
        server.start()
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert value(samples_of(httpx.get(f"{url}/metrics").text), "store_up") == 1


def test_a_frozen_store_is_a_scrape_and_no_hang(fresh_server: ServerFactory) -> None:
    """Within what Prometheus waits for; /healthz answers meanwhile."""
    server = fresh_server()
    with monitored("--url", server.url) as (_, url):
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert value(samples_of(httpx.get(f"{url}/metrics", timeout=10).text), "store_up") == 0
            assert httpx.get(f"{url}/readyz", timeout=10).status_code == 503
            assert httpx.get(f"{url}/healthz", timeout=10).status_code == 200
        finally:
            os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/", 404), ("GET", "/metrics/x", 404), ("GET", "/docs", 404), ("GET", "/openapi.json", 404), ("POST", "/metrics", 405)])  # fmt: skip
def test_anything_else_is_a_problem(
    store_url: str, one_monitor: str, method: str, path: str, status: int
) -> None:
    """RFC 9457, so that a program can tell."""
    got = httpx.request(method, f"{one_monitor}{path}")
    assert (got.status_code, got.headers["content-type"]) == (status, "application/problem+json")
    assert got.json()["status"] == status


@pytest.fixture(scope="module")
def one_monitor() -> Iterator[str]:
    """The URL of one that has no store: it starts all the same."""
    with monitored("--url", f"redis://127.0.0.1:{free_port()}/0") as (_, url):
        yield url


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order(store_url: str, signal_number: int) -> None:
    """Exit code 0, also with a connection that a scraper keeps open; nothing but its own lines on standard error."""
    with monitored("--url", store_url, "--json") as (process, url), httpx.Client() as client:
        assert client.get(f"{url}/metrics").status_code == 200
        process.send_signal(signal_number)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stderr.read() == ""
        assert process.stdout.read() == f'{{"url": "{url}"}}\n'


def test_a_port_that_is_taken_is_one_sentence() -> None:
    """Exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = makegood("monitor", "--port", str(port))
    assert ran.code == 1
    assert ran.sentence.startswith(f"Port {port} of 127.0.0.1 cannot be listened on (address already in use)")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_address_that_others_reach_is_refused(host: str) -> None:
    """Exit code 4: nobody is asked who he is yet."""
    ran = makegood("monitor", "--host", host, "--port", "0")
    assert ran.code == 4
    assert "--allow-remote" in ran.sentence


def test_an_address_that_is_none_is_one_sentence() -> None:
    """Exit code 1."""
    ran = makegood("monitor", "--host", "no such host", "--port", "0")
    assert ran.code == 1
    assert ran.sentence.startswith("There is no address 'no such host' to listen on")


def test_remote_readers_may_be_allowed(store_url: str) -> None:
    """As in a container."""
    with monitored("--url", store_url, "--host", "0.0.0.0", "--allow-remote") as (_, url):
        assert url.startswith("http://0.0.0.0:")
        assert httpx.get(f"{url.replace('0.0.0.0', '127.0.0.1')}/healthz").status_code == 200


def test_localhost_is_loopback(store_url: str) -> None:
    """By name too."""
    with monitored("--url", store_url, "--host", "localhost") as (_, url):
        assert httpx.get(f"{url}/healthz").status_code == 200


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "prometheus_client"])
def test_without_the_extra_one_sentence_says_what_to_install(package: str) -> None:
    """Exit code 2, no traceback."""
    code = f"import sys\nsys.modules[{package!r}] = None\nfrom makegood.cli.exits import run\nsys.exit(run(['monitor', '--port', '0']))"
    done: Any = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment())  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"Error: The monitor needs the package {package}: pip install 'makegood[server]' where it runs.\n"  # fmt: skip

"""docker-compose.yml and Dockerfile ask for what production needs: a durable store, workers that may end in peace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from makegood.cli.app import cli
from makegood.settings import setting_docs
from makegood.workers.embedded import DURABLE

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_store_is_as_durable_as_the_embedded_one() -> None:
    """The same options, its data on a volume, a health check that workers wait for."""
    valkey = SERVICES["valkey"]
    assert valkey["command"] == ["valkey-server", *DURABLE]
    assert valkey["volumes"] == ["valkey-data:/data"]
    assert "valkey-data" in COMPOSE["volumes"]
    assert "healthcheck" in valkey
    for name in ("worker", "cleanup-worker"):
        assert SERVICES[name]["depends_on"] == {"valkey": {"condition": "service_healthy"}}


def test_each_queue_has_a_worker_of_its_own() -> None:
    """Runs cannot starve cleanups."""
    assert SERVICES["worker"]["command"][:3] == ["worker", "--queues", "runs"]
    assert SERVICES["cleanup-worker"]["command"][:3] == ["worker", "--queues", "cleanup"]


def test_every_service_is_stopped_in_peace() -> None:
    """An init process reaps children, and a worker gets longer than its own grace time."""
    for service in SERVICES.values():
        assert service["init"] is True
    for name in ("worker", "cleanup-worker"):
        grace_s = float(SERVICES[name]["environment"]["MAKEGOOD_GRACE_S"])
        assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > grace_s + 5


def test_every_setting_in_it_exists() -> None:
    """No variable that a worker or the monitor would refuse."""
    known = {doc.name for doc in setting_docs()}
    for name in ("worker", "cleanup-worker", "monitor"):
        assert set(SERVICES[name]["environment"]) <= known


def test_one_exporter_speaks_for_all_workers() -> None:
    """It reads the workers' store, starts without it, and its health check asks the port that it was given."""
    monitor = SERVICES["monitor"]
    assert "profiles" not in monitor
    assert monitor["depends_on"] == {"valkey": {"condition": "service_started"}}
    url = SERVICES["worker"]["environment"]["MAKEGOOD_REDIS_URL"]
    assert monitor["environment"] == {"MAKEGOOD_REDIS_URL": url}
    command, *words = monitor["command"]
    with cli.commands[command].make_context(command, words) as context:
        assert context.params["port"] == 9464
        assert context.params["allow_remote"] is True
    assert any("http://127.0.0.1:9464/healthz" in word for word in monitor["healthcheck"]["test"])


def test_what_is_published_is_published_to_this_machine() -> None:
    """And the store not at all."""
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {
        name: [f"127.0.0.1:{port}:{port}"]
        for name, port in (("monitor", 9464), ("prometheus", 9090), ("grafana", 3000))
    }


def test_the_dashboard_is_a_profile_of_its_own() -> None:
    """Prometheus and Grafana start only when asked for, in fixed versions, and keep what they know on volumes."""
    optional = {name for name, service in SERVICES.items() if "profiles" in service}
    assert optional == {"prometheus", "grafana"}
    for name in optional:
        service = SERVICES[name]
        assert service["profiles"] == ["observability"]
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
        assert any(volume.startswith(f"{name}-data:/") for volume in service["volumes"])
        assert f"{name}-data" in COMPOSE["volumes"]
        mounted = [volume for volume in service["volumes"] if volume.startswith("./")]
        assert mounted
        assert all(volume.endswith(":ro") for volume in mounted)


def test_whoever_reaches_grafana_may_look_and_nothing_else() -> None:
    """Visitors are viewers, and there is no account with a well-known password."""
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


def test_the_image_does_not_run_as_root() -> None:
    """The last USER is an unprivileged one, and the image starts makegood."""
    assert re.findall(r"^USER (\w+)", DOCKERFILE, re.MULTILINE)[-1] == "makegood"
    assert 'ENTRYPOINT ["makegood"]' in DOCKERFILE


def test_the_image_has_what_workers_and_the_monitor_need() -> None:
    """One image for both: the extras of both."""
    assert ".whl)[worker,server]" in DOCKERFILE

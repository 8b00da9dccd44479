"""docker-compose.yml and Dockerfile ask for what production needs: a durable store, workers that may end in peace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

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
    """No variable that a worker would refuse."""
    known = {doc.name for doc in setting_docs()}
    for name in ("worker", "cleanup-worker"):
        assert set(SERVICES[name]["environment"]) <= known


def test_the_image_does_not_run_as_root() -> None:
    """The last USER is an unprivileged one, and the image starts makegood."""
    assert re.findall(r"^USER (\w+)", DOCKERFILE, re.MULTILINE)[-1] == "makegood"
    assert 'ENTRYPOINT ["makegood"]' in DOCKERFILE

"""Prometheus itself reads the rules, runs their unit tests, and accepts the configuration."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from makegood.monitoring.metrics import METRICS, sample_names

FOLDER = Path(__file__).resolve().parents[2] / "src" / "makegood" / "monitoring" / "prometheus"

Promtool = Callable[..., str]


@pytest.fixture
def promtool() -> Promtool:
    """Runs Debian's promtool in the folder of the rules; what it does not like fails the test, with its own words."""
    binary = shutil.which("promtool")
    if binary is None:
        pytest.fail("promtool is not installed; run: apt-get install -y --no-install-recommends prometheus")

    def run(*words: str, given: str = "") -> str:
        done = subprocess.run(
            [binary, *words],
            check=False,
            cwd=FOLDER,
            input=given,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_configuration_is_valid_and_finds_the_rules(promtool: Promtool) -> None:
    """Paths in it are relative to the folder that compose mounts."""
    assert "1 rule files found" in promtool("check", "config", "prometheus.yml")


def test_the_rules_are_valid(promtool: Promtool) -> None:
    """Expressions and templates, and no rule twice."""
    promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")


@pytest.mark.parametrize("tests", sorted(path.name for path in FOLDER.glob("*_test.yml")))
def test_alerts_fire_when_they_should_and_only_then(promtool: Promtool, tests: str) -> None:
    """Each has a series that fires it and a near miss that does not."""
    assert "SUCCESS" in promtool("test", "rules", tests)


def test_metrics_are_named_as_prometheus_recommends(promtool: Promtool) -> None:
    """Names, units and types of every metric, each with a help text."""
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.full_name} {metric.meaning}", f"# TYPE {metric.full_name} {metric.type}"]
        for name in sorted(sample_names(metric)):
            lines.append(f'{name}{{le="+Inf"}} 0' if name.endswith("_bucket") else f"{name} 0")
    promtool("check", "metrics", given="\n".join([*lines, ""]))

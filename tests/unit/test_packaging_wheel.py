"""What is built and installed is the whole package and nothing but the package."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "makegood"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist, without any network."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=100,
    )
    return folder


def wheel_names(dist: Path) -> list[str]:
    """All files in the wheel."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def source_files() -> set[str]:
    """All files of the package in the repository, as paths in the wheel."""
    return {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_only_top_level_is_makegood(dist: Path) -> None:
    """Nothing called tasks or workers lands beside a user's own modules."""
    tops = {name.partition("/")[0] for name in wheel_names(dist)}
    assert tops == {"makegood", "makegood-0.1.0.dist-info"}


def test_no_file_is_missing(dist: Path) -> None:
    """Every file of the package is in the wheel, Lua scripts and py.typed too, and no other."""
    in_wheel = {name for name in wheel_names(dist) if name.startswith("makegood/")}
    assert in_wheel == source_files()
    assert "makegood/py.typed" in in_wheel
    assert any(name.endswith(".lua") for name in in_wheel)


def test_the_dashboard_and_the_alert_rules_are_in_it(dist: Path) -> None:
    """Whoever has installed makegood has them, for a Grafana and a Prometheus of their own."""
    shipped = {
        "grafana/dashboards/makegood.json",
        "grafana/provisioning/dashboards/makegood.yml",
        "grafana/provisioning/datasources/prometheus.yml",
        "prometheus/prometheus.yml",
        "prometheus/rules.yml",
    }
    assert {f"makegood/monitoring/{name}" for name in shipped} <= set(wheel_names(dist))


def test_the_sdist_has_the_package_once(dist: Path) -> None:
    """The links at the repository's root do not become copies."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {name.partition("/")[0] for name in names} >= {"src", "pyproject.toml", "LICENSE", "README.md"}
    assert not {name.partition("/")[0] for name in names} & {"tasks", "workers", "cleanup", "monitoring"}


def test_the_metadata_names_the_command_and_the_extras(dist: Path) -> None:
    """`makegood` is a command; worker, server and test are extras."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        scripts = archive.read("makegood-0.1.0.dist-info/entry_points.txt").decode()
        metadata = archive.read("makegood-0.1.0.dist-info/METADATA").decode()
    assert "makegood = makegood.cli:main" in scripts
    for extra in ("worker", "server", "test"):
        assert f"Provides-Extra: {extra}\n" in metadata
    assert "Requires-Python: >=3.11\n" in metadata


def test_a_users_own_tasks_module_is_not_shadowed(dist: Path, tmp_path: Path) -> None:
    """With makegood installed, `import tasks` and `import workers` in a user's folder are the user's."""
    site, project = tmp_path / "site", tmp_path / "project"
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    project.mkdir()
    for name in ("tasks", "workers"):
        (project / f"{name}.py").write_text("OWNER = 'user'\n")
    code = "import makegood, makegood.tasks, tasks, workers; print(makegood.__file__, tasks.OWNER, workers.OWNER)"
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert printed.split() == [str(site / "makegood" / "__init__.py"), "user", "user"]

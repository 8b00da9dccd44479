"""Draws the Grafana dashboard with the data of a Prometheus, without a Grafana: docs/dashboard.png.

    python tests/tools/dashboard_picture.py http://127.0.0.1:9090 --minutes 12 --picture docs/dashboard.png

Every query of every panel is asked of Prometheus as Grafana would; one that it refuses is a failure. The panels are drawn
as HTML and SVG at their places in the dashboard, and the system's headless Chromium (Debian: apt-get install chromium)
takes the picture. For maintainers, not for CI; tests/tools/dashboard_traffic.py makes the data.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dashboard_panels
import httpx
from dashboard_panels import Series, Window

DASHBOARD = Path(__file__).resolve().parents[2] / "src/makegood/monitoring/grafana/dashboards/makegood.json"
WIDTH_PX = 1680
POINTS = 60
"""Points of a curve, at the most."""

LEAST_STEP_S = 15
RATE_WINDOW_S = 60

CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


class QueryRefused(Exception):
    """Prometheus does not take the query of a panel."""


def ask(prometheus: str, target: dict[str, Any], window: Window) -> list[Series]:
    """The series of one query of a panel, at one moment or over the time shown."""
    expr = target["expr"].replace("$__rate_interval", f"{RATE_WINDOW_S}s")
    expr = expr.replace("$__range", f"{round(window.end_s - window.start_s)}s").replace("$agent", ".*")
    if target.get("instant"):
        path, params = "query", {"query": expr, "time": str(window.end_s)}
    else:
        path = "query_range"
        params = {
            "query": expr,
            "start": str(window.start_s),
            "end": str(window.end_s),
            "step": str(window.step_s),
        }
    reply = httpx.get(f"{prometheus}/api/v1/{path}", params=params, trust_env=False).json()
    if reply["status"] != "success":
        raise QueryRefused(f"{expr}: {reply.get('error')}")
    found = [
        Series(
            name=name_of(target, each["metric"]),
            labels=each["metric"],
            points=[(float(at_s), float(value)) for at_s, value in each.get("values", [each.get("value")])],
            query=target["refId"],
        )
        for each in reply["data"]["result"]
    ]
    return sorted(found, key=lambda series: series.name)


def name_of(target: dict[str, Any], labels: dict[str, str]) -> str:
    """The legend of a series."""
    wanted = target.get("legendFormat", "")
    return re.sub(r"{{\s*(\w+)\s*}}", lambda match: labels.get(match[1], ""), wanted)


def html_of(prometheus: str, minutes: float) -> tuple[str, int]:
    """The page, and how high it is."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    end_s = time.time()
    step_s = max(LEAST_STEP_S, 60 * minutes / POINTS)
    window = Window(end_s - 60 * minutes, end_s, step_s)
    drawn = []
    for panel in dashboard["panels"]:
        found = [series for target in panel.get("targets", []) for series in ask(prometheus, target, window)]
        if not found and panel["type"] != "row":
            print(f"no data: {panel['title']}")
        drawn.append(dashboard_panels.draw(panel, found, window, WIDTH_PX))
    return dashboard_panels.page(drawn, WIDTH_PX), dashboard_panels.height_of(dashboard["panels"])


def draw(prometheus: str, minutes: float, picture: Path) -> None:
    """Ask, draw, take the picture."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("Please install chromium.")
    html, height_px = html_of(prometheus, minutes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "page.html").write_text(html, encoding="utf-8")
        command = [
            chromium,
            *CHROMIUM,
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={WIDTH_PX},{height_px}",
            f"--screenshot={picture.resolve()}",
            (folder / "page.html").as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(f"{picture}: {picture.stat().st_size / 1000:.0f} kB")


def main() -> int:
    """Parse the options and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prometheus", help="its address")
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--picture", type=Path, default=Path("docs/dashboard.png"))
    options = parser.parse_args()
    try:
        draw(options.prometheus.rstrip("/"), options.minutes, options.picture)
    except QueryRefused as error:
        print(f"Prometheus refuses {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

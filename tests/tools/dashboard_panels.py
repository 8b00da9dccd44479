"""Draws single panels of a Grafana dashboard as HTML and SVG; see dashboard_picture.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

COLUMNS = 24
ROW_PX = 36
GAP_PX = 8
HEAD_PX = 28
LEGEND_LINE_PX = 17
CHARACTER_PX = 6.1
MARGIN_PX = (52, 18)
"""Left of a chart, for its numbers, and below it, for the time."""

PALETTE = ("#3f8f5f", "#d9a514", "#3b6fb6", "#d1572e", "#7c55a6", "#1f9aa8", "#c2478f", "#7a6a4f", "#5f7f1f", "#a33b3b",
           "#4b4fc4", "#e08a3c")  # fmt: skip
NAMED = {"green": "#2f855a", "orange": "#c96f12", "yellow": "#d9a514", "red": "#c0362c", "blue": "#2b5fa8"}

STYLE = Path(__file__).with_name("dashboard.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is shown."""

    start_s: float
    end_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Series:
    """What one query gave: points in time, or one at the end."""

    name: str
    labels: dict[str, str]
    points: list[tuple[float, float]]
    query: str

    @property
    def last(self) -> float | None:
        """The last number."""
        known = [value for _, value in self.points if math.isfinite(value)]
        return known[-1] if known else None


# --- the page -------------------------------------------------------------------------------------------------------


def page(panels: list[str], width_px: int) -> str:
    """All panels."""
    body = "".join(panels)
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><body style='width:{width_px}px'>{body}</body>"


def height_of(panels: list[dict[str, Any]]) -> int:
    """How high the page is, in pixels."""
    rows: int = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    return rows * ROW_PX + GAP_PX


def draw(panel: dict[str, Any], found: list[Series], window: Window, page_px: int) -> str:
    """One panel at its place."""
    at = panel["gridPos"]
    column_px = (page_px - GAP_PX) / COLUMNS
    left, top = GAP_PX + at["x"] * column_px, GAP_PX + at["y"] * ROW_PX
    width, height = at["w"] * column_px - GAP_PX, at["h"] * ROW_PX - GAP_PX
    place = f"left:{left:.1f}px;top:{top:.1f}px;width:{width:.1f}px;height:{height:.1f}px"
    title = escape(panel["title"])
    if panel["type"] == "row":
        return f"<div class=row style='{place}'>{title}</div>"
    inner = DRAWERS[panel["type"]](panel, found, window, (width - 2, height - HEAD_PX - 2))
    return f"<div class=panel style='{place}'><div class=title>{title}</div>{inner}</div>"


# --- numbers --------------------------------------------------------------------------------------------------------


def shown(value: float | None, unit: str, decimals: int | None = None) -> str:
    """A number in its unit."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f} %"
    if unit == "currencyUSD":
        return f"${value:.2f}"
    if unit == "s":
        return _seconds(value)
    text = _rounded(value) if decimals is None else f"{value:.{decimals}f}"
    return f"{text}/min" if unit == "cpm" else text


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    if abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if abs(value) < 100 else f"{value / 60:.3g} min"


def _rounded(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value / 1000:.3g} K"
    return f"{value:.3g}"


def unit_of(panel: dict[str, Any]) -> tuple[str, int | None]:
    """Unit and decimals."""
    defaults = panel["fieldConfig"]["defaults"]
    return defaults["unit"], defaults.get("decimals")


def color_at(panel: dict[str, Any], value: float) -> str:
    """By the thresholds."""
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return [NAMED[each["color"]] for each in steps if each["value"] is None or value >= each["value"]][-1]


def fixed_color(panel: dict[str, Any], query: str) -> str:
    """Of all series of a query."""
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"] == {"id": "byFrameRefID", "options": query}:
            return NAMED[override["properties"][0]["value"]["fixedColor"]]
    return PALETTE[0]


def mapped(panel: dict[str, Any], value: float) -> str | None:
    """The word for a number."""
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
        if (option := mapping["options"].get(f"{value:g}")) is not None:
            return str(option["text"])
    return None


# --- panels without time --------------------------------------------------------------------------------------------

Size = tuple[float, float]


def stat(panel: dict[str, Any], found: list[Series], window: Window, size: Size) -> str:
    """One large number."""
    value = found[0].last if found else None
    color = "#8b949e" if value is None else color_at(panel, value)
    text = shown(value, *unit_of(panel))
    if value is not None:
        named = found[0].name if panel["options"]["textMode"] == "name" else None
        text = named or mapped(panel, value) or text
    style = f"color:{color};line-height:{size[1] - 10:.0f}px;font-size:{min(34, size[1] * 0.5):.0f}px"
    return f"<div class=stat style='{style}'>{escape(text)}</div>"


def bargauge(panel: dict[str, Any], found: list[Series], window: Window, size: Size) -> str:
    """A bar for each series."""
    known = [(series, value) for series in found if (value := series.last) is not None]
    if not known:
        return "<div class=none>nothing in this time</div>"
    most = max(value for _, value in known) or 1.0
    height = min(26.0, (size[1] - 8) / len(known))
    bars = []
    for series, value in sorted(known, key=lambda each: each[0].name):
        fill = (
            f"<i style='width:{100 * value / most:.1f}%;background:{fixed_color(panel, series.query)}'></i>"
        )
        text = shown(value, *unit_of(panel))
        bars.append(
            f"<div class=bar style='height:{height:.1f}px'><span>{escape(series.name)}</span><div>{fill}</div><b>{text}</b></div>"
        )
    return "".join(bars)


def table(panel: dict[str, Any], found: list[Series], window: Window, size: Size) -> str:
    """A line for each set of labels, a column for each query."""
    queries = {f"Value #{target['refId']}": target["legendFormat"] for target in panel["targets"]}
    columns = list(queries.values())
    labels = sorted({label for series in found for label in series.labels}, reverse=True)
    lines: dict[tuple[str, ...], dict[str, float | None]] = {}
    for series in found:
        key = tuple(series.labels.get(label, "") for label in labels)
        lines.setdefault(key, {})[queries[f"Value #{series.query}"]] = series.last
    fits = int((size[1] - 24) / 19)
    head = "".join(f"<th>{label}</th>" for label in labels) + "".join(
        f"<th class=n>{c}</th>" for c in columns
    )
    body = ""
    for key, values in sorted(lines.items())[:fits]:
        cells = "".join(f"<td>{escape(text)}</td>" for text in key)
        for column in columns:
            plain = column == "samples"
            text = shown(values.get(column), "short" if plain else unit_of(panel)[0], 0 if plain else None)
            cells += f"<td class=n>{text}</td>"
        body += f"<tr>{cells}</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


# --- panels over time -----------------------------------------------------------------------------------------------


def top_of(values: list[float]) -> float:
    """A round number that is not below any of them."""
    most = max((value for value in values if math.isfinite(value)), default=0.0)
    if most <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(most))
    return next(scale * step for step in (1, 2, 3, 4, 6, 8, 10) if scale * step >= most * 0.9999)


def at_x(at_s: float, window: Window, left: float, width: float) -> float:
    """Where a moment is."""
    return left + (at_s - window.start_s) / (window.end_s - window.start_s) * width


def time_marks(window: Window, left: float, width: float, height: float) -> str:
    """Whole minutes below a chart."""
    every_s = next(
        s for s in (60, 120, 300, 600, 1800, 3600, 21600, 86400) if (window.end_s - window.start_s) / s <= 7
    )
    marks, at_s = "", math.ceil(window.start_s / every_s) * every_s
    while at_s <= window.end_s:
        x = at_x(at_s, window, left, width)
        text = datetime.fromtimestamp(at_s, UTC).strftime("%H:%M")
        marks += f"<line x1={x:.1f} x2={x:.1f} y1=4 y2={height:.1f} stroke='#eef0f3'/>"
        marks += f"<text x={x:.1f} y={height + 13:.1f} text-anchor=middle>{text}</text>"
        at_s += every_s
    return marks


def legend(series: list[Series], panel: dict[str, Any], width: float) -> tuple[str, float]:
    """Names with the last number, and how high they stand."""
    unit, _ = unit_of(panel)
    items, lines, used = [], 1, 0.0
    for number, each in enumerate(series):
        plain = each.name.endswith("stuck threads")
        text = shown(each.last, "short" if plain else unit)
        length = (len(each.name) + len(text) + 1) * CHARACTER_PX + 34
        if used and used + length > width - 20:
            lines, used = lines + 1, 0.0
        used += length
        color = PALETTE[number % len(PALETTE)]
        items.append(f"<span><i style='background:{color}'></i>{escape(each.name)}<b>{text}</b></span>")
    height = lines * LEGEND_LINE_PX + 6
    return f"<div class=legend style='height:{height}px'>{''.join(items)}</div>", height


def timeseries(panel: dict[str, Any], found: list[Series], window: Window, size: Size) -> str:
    """Curves, or stacked areas or bars."""
    if not found:
        return "<div class=none>nothing in this time</div>"
    custom = panel["fieldConfig"]["defaults"]["custom"]
    names, names_px = legend(found, panel, size[0])
    left, below = MARGIN_PX
    width, height = size[0] - left - 12, size[1] - names_px - below
    times = sorted({at_s for series in found for at_s, _ in series.points})
    stacked = custom["stacking"]["mode"] == "normal"
    floors, ceilings = heights(found, times, stacked)
    top = top_of([value for line in ceilings for value in line])
    marks = time_marks(window, left, width, height)
    for part in range(5):
        y = height - part / 4 * (height - 6)
        text = shown(top * part / 4, unit_of(panel)[0]).removesuffix("/min")
        marks += f"<line x1={left} x2={left + width:.1f} y1={y:.1f} y2={y:.1f} stroke='#e3e6ea'/>"
        marks += f"<text x={left - 5} y={y + 3.5:.1f} text-anchor=end>{text}</text>"
    xs = [at_x(at_s, window, left, width) for at_s in times]
    pair = (height, (height - 6) / top)
    bar_px = (
        width * window.step_s / (window.end_s - window.start_s) * 0.8 if custom["drawStyle"] == "bars" else 0
    )
    shapes = "".join(
        bars(xs, floors[number], ceilings[number], pair, PALETTE[number % len(PALETTE)], bar_px)
        if bar_px
        else curve(xs, floors[number], ceilings[number], pair, PALETTE[number % len(PALETTE)], stacked)
        for number in range(len(found))
    )
    return f"<svg width={size[0]:.0f} height={height + below:.0f}>{marks}{shapes}</svg>{names}"


def heights(
    found: list[Series], times: list[float], stacked: bool
) -> tuple[list[list[float]], list[list[float]]]:
    """Where each series begins and ends at each moment; NaN where it has no number."""
    floors, ceilings = [], []
    base = [0.0] * len(times)
    for series in found:
        values = dict(series.points)
        line = [values.get(at_s, math.nan) for at_s in times]
        if stacked:
            line = [value if math.isfinite(value) else 0.0 for value in line]
        floors.append(list(base))
        ceilings.append([low + value for low, value in zip(base, line, strict=True)])
        if stacked:
            base = ceilings[-1]
    return floors, ceilings


def bars(xs: list[float], low: list[float], high: list[float], pair: Size, color: str, width: float) -> str:
    """A bar at each moment."""
    bottom, scale = pair
    return "".join(
        f"<rect x={x - width / 2:.1f} y={bottom - h * scale:.1f} width={width:.1f} height={(h - b) * scale:.1f} fill='{color}'/>"
        for x, b, h in zip(xs, low, high, strict=True)
        if math.isfinite(h) and h > b
    )


def curve(xs: list[float], low: list[float], high: list[float], pair: Size, color: str, filled: bool) -> str:
    """A line, broken where there is no number; of a stack with what is below it filled."""
    bottom, scale = pair
    pieces: list[list[int]] = [[]]
    for at, value in enumerate(high):
        if math.isfinite(value):
            pieces[-1].append(at)
        elif pieces[-1]:
            pieces.append([])
    drawn = ""
    for piece in filter(None, pieces):
        upper = [f"{xs[at]:.1f},{bottom - high[at] * scale:.1f}" for at in piece]
        if filled:
            lower = [f"{xs[at]:.1f},{bottom - low[at] * scale:.1f}" for at in reversed(piece)]
            drawn += f"<polygon points='{' '.join(upper + lower)}' fill='{color}' fill-opacity=0.45 />"
        if len(piece) == 1:
            drawn += (
                f"<circle cx={xs[piece[0]]:.1f} cy={bottom - high[piece[0]] * scale:.1f} r=2 fill='{color}'/>"
            )
        drawn += f"<polyline points='{' '.join(upper)}' fill=none stroke='{color}' stroke-width=1.6 />"
    return drawn


def state_timeline(panel: dict[str, Any], found: list[Series], window: Window, size: Size) -> str:
    """A band for each series, in the color of its state."""
    if not found:
        return "<div class=none>no breaker ever saw a failure</div>"
    left, below = 150.0, MARGIN_PX[1]
    width, height = size[0] - left - 12, size[1] - below - 24
    shapes = time_marks(window, left, width, height)
    band = min(34.0, height / len(found))
    for number, series in enumerate(found):
        y = 6 + number * band
        shapes += f"<text x={left - 8} y={y + band / 2 + 1:.1f} text-anchor=end>{escape(series.name)}</text>"
        for at_s, value in series.points:
            x = at_x(at_s, window, left, width)
            until = min(left + width, at_x(at_s + window.step_s, window, left, width) + 0.5)
            shapes += f"<rect x={x:.1f} y={y:.1f} width={max(0.0, until - x):.1f} height={band * 0.75:.1f} fill='{color_at(panel, value)}'/>"
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"].values()
    names = "".join(
        f"<span><i style='background:{NAMED[each['color']]}'></i>{each['text']}</span>" for each in options
    )
    return (
        f"<svg width={size[0]:.0f} height={height + below:.0f}>{shapes}</svg><div class=legend>{names}</div>"
    )


DRAWERS = {
    "stat": stat,
    "bargauge": bargauge,
    "table": table,
    "timeseries": timeseries,
    "state-timeline": state_timeline,
}

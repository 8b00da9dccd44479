"""Renders docs/telemetry.md from the tables in the code: `python -m makegood.monitoring.telemetry > docs/telemetry.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence

from makegood.monitoring import genai
from makegood.monitoring.label_caps import CLOSED_CAP, OPEN_CAP, OTHER
from makegood.monitoring.metrics import METRICS, Metric
from makegood.tasks.event_types import EVENTS, EventType

COMMAND = "python -m makegood.monitoring.telemetry > docs/telemetry.md"

HEAD = f"""# Telemetry: events, metrics, spans

Generated from the tables in the code; write it anew with `{COMMAND}`. What the numbers mean, and where to see them: [numbers.md](numbers.md).
"""

EVENTS_HEAD = """
## Events

`makegood runs events RUN`, `run.events()`. An event has `id`, `type`, `at`, `attempt`, `step`, `call_key` and `data`; step and call key are
null where it is about neither. It is written in the same step as the change that it tells of. Names and data are a contract: what is here
stays, new ones may be added. Data holds no prompt, no arguments and no answers; what an error says stands in `message`.

| type | when | data |
|---|---|---|
"""

METRICS_HEAD = f"""
## Metrics

Served by `makegood monitor` under `/metrics`, for all workers together. Counters and histograms are counted where the state changes, in the
store; gauges are read when they are asked for. At most {OPEN_CAP} agents, tools, models and breakers have series of their own, and at most
{CLOSED_CAP} values of any other label; what comes later is counted under `{OTHER}`. Bounds of histograms are in the unit; above the last one is `+Inf`.

| name | type | labels | meaning |
|---|---|---|---|
"""

SPANS_HEAD = """
## Spans

Sent to Sentry when `SENTRY_DSN` is set and traces are sampled. The names follow OpenTelemetry's conventions for generative AI, which still
change: they stand in `makegood/monitoring/genai.py` alone.

| span | attribute `gen_ai.operation.name` | one for each |
|---|---|---|
"""

SPANS = (
    (genai.INVOKE_AGENT, "attempt of a run that a worker executes"),
    (genai.EXECUTE_TOOL, "try of a call"),
    (genai.CHAT, "request to a model"),
)


def render() -> str:
    """The page."""
    return "".join(
        (
            HEAD,
            EVENTS_HEAD,
            *map(_event, EVENTS),
            METRICS_HEAD,
            *map(_metric, METRICS),
            SPANS_HEAD,
            *(_row(_code(name), _code(genai.operation(name)), what) for name, what in SPANS),
            *_attributes("Attributes, where they are known:", {"agent": genai.AGENT, **genai.FACTS}),
            *_attributes("Only where payloads are switched on:", genai.PAYLOADS),
        )
    )


def _event(event: EventType) -> str:
    data = "; ".join(f"{_code(name)}: {meaning}" for name, meaning in event.data.items())
    return _row(_code(event.type), event.when, data or "–")


def _metric(metric: Metric) -> str:
    labels = ", ".join(_label(metric, name) for name in metric.labels)
    meaning = metric.meaning
    if metric.buckets:
        unit = f" {metric.unit}" if metric.unit != "1" else ""
        meaning = f"{meaning} Bounds: {' '.join(f'{bound:g}' for bound in metric.buckets)}{unit}."
    return _row(_code(metric.full_name), metric.type, labels or "–", meaning)


def _label(metric: Metric, name: str) -> str:
    values: Sequence[str] = metric.values.get(name, ())
    return _code(name) + (f" ({', '.join(values)})" if values else "")


def _attributes(title: str, names: Mapping[str, str]) -> Iterator[str]:
    yield f"\n{title}\n\n"
    yield from (f"- {_code(attribute)}: {what.replace('_', ' ')}\n" for what, attribute in names.items())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(render())

"""The dashboard and the alert rules name only what the exporter has, and are put together as Grafana wants them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from makegood.cli.app import cli
from makegood.monitoring.metrics import METRICS, QUEUE_OF, Metric, sample_names
from support.promql import Matcher, Use, lists_of, uses_of

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "src" / "makegood" / "monitoring"
DASHBOARDS = MONITORING / "grafana" / "dashboards"
DASHBOARD: dict[str, Any] = json.loads((DASHBOARDS / "makegood.json").read_text(encoding="utf-8"))
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel, target) for panel in PANELS for target in panel["targets"]]
RULES = [
    rule
    for group in yaml.safe_load((MONITORING / "prometheus" / "rules.yml").read_text(encoding="utf-8"))[
        "groups"
    ]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"]: lists_of(rule["expr"])["by"] for rule in RULES if "record" in rule}
"""Names that rules define → the labels that they keep."""

RULE_TESTS = [
    test
    for file in sorted((MONITORING / "prometheus").glob("rules*_test.yml"))
    for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
]

SAMPLES = {name: metric for metric in METRICS for name in sample_names(metric)}
EXPRESSIONS = [
    *((f"{panel['title']} {target['refId']}", target["expr"]) for panel, target in TARGETS),
    *((rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES),
]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
FROM_GRAFANA = {"__rate_interval", "__range"}


def labels_of(name: str) -> set[str]:
    """The labels of a sample or of a recorded rule."""
    if name in RECORDED:
        return RECORDED[name]
    return {*SAMPLES[name].labels, *(["le"] if name.endswith("_bucket") else [])}


def strange_values(metric: Metric, matcher: Matcher) -> set[str]:
    """Values that a label of a closed list never has, but a matcher asks for."""
    if matcher.label not in metric.values or "$" in matcher.value:
        return set()
    wanted = matcher.value.split("|") if matcher.operator in ("=~", "!~") else [matcher.value]
    return set(wanted) - set(metric.values[matcher.label])


# --- reading PromQL -------------------------------------------------------------------------------------------------


def test_metrics_are_read_out_of_an_expression() -> None:
    """Not functions, labels, texts, ranges, variables, numbers or words between them."""
    expr = (
        '1e3 * sum by (agent, le) (rate(a_total{agent=~"$agent", x!="b_total"}[$__range])) / on (agent) '
        "group_left () (b:c:d > bool 5m) unless max(max_over_time(e[1m])) or label_replace(f > 0, \"g\", 'h', '', '')"
    )
    picks = (Matcher("agent", "=~", "$agent"), Matcher("x", "!=", "b_total"))
    assert uses_of(expr) == [
        Use("a_total", picks, frozenset({"agent", "le"})),
        *(Use(name, (), frozenset()) for name in ("b:c:d", "e", "f")),
    ]
    assert lists_of(expr) == {"by": {"agent", "le"}, "on": {"agent"}, "group_left": set()}


@pytest.mark.parametrize("expr", ["sum(a) by (b)", "a{b=c}", "sum by (a (b)", "a ? b"])
def test_what_cannot_be_read_is_an_error(expr: str) -> None:
    """No name is passed over in silence."""
    with pytest.raises(ValueError, match=r"."):
        uses_of(expr)


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("I1")
@pytest.mark.parametrize(("where", "expr"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_every_name_is_one_of_the_exporter(where: str, expr: str) -> None:
    """Metrics, labels and the values of closed lists, in each panel and each rule."""
    uses = uses_of(expr)
    assert uses, where
    for use in uses:
        assert use.metric in SAMPLES or use.metric in RECORDED, use.metric
        labels = labels_of(use.metric)
        assert use.grouped <= labels, use
        assert {matcher.label for matcher in use.matchers} <= labels, use
        for matcher in use.matchers:
            assert not strange_values(SAMPLES[use.metric], matcher), use
    known = {label for use in uses for label in labels_of(use.metric)}
    for names in lists_of(expr).values():
        assert names <= known


def test_every_metric_is_shown_somewhere() -> None:
    """A number that nobody can see need not be counted; requests for a key that is there already are the client's."""
    shown = {use.metric for _, expr in EXPRESSIONS for use in uses_of(expr)}
    unseen = {metric.name for metric in METRICS if not sample_names(metric) & shown}
    assert unseen <= {"runs_enqueued_total", "runs_deduplicated_total"}


def test_legends_use_labels_that_are_left() -> None:
    """`{{agent}}` needs `by (agent)`."""
    for panel, target in TARGETS:
        used = set(re.findall(r"{{\s*(\w+)\s*}}", target.get("legendFormat", "")))
        assert used <= lists_of(target["expr"]).get("by", set()), panel["title"]


def test_the_variable_agent_asks_for_a_label_that_exists() -> None:
    """All values of a label of a metric."""
    query = VARIABLES["agent"]["query"]["query"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
    assert found is not None
    assert found[2] in labels_of(found[1])
    assert VARIABLES["agent"]["definition"] == query
    assert VARIABLES["agent"]["multi"] is True
    assert VARIABLES["agent"]["includeAll"] is True


# --- the dashboard --------------------------------------------------------------------------------------------------


def test_panels_can_be_told_apart() -> None:
    """Ids and titles are unique, also those of rows; queries of a panel have letters of their own."""
    panels = DASHBOARD["panels"]
    for field in ("id", "title"):
        values = [panel[field] for panel in panels]
        assert sorted(set(values)) == sorted(values)
    for panel in PANELS:
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    """A description that is a sentence, and a unit."""
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_the_data_source_can_be_chosen() -> None:
    """Every panel, query and variable uses the variable, so that the dashboard works in any Grafana."""
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    assert VARIABLES["agent"]["datasource"] == wanted
    assert all(panel["datasource"] == wanted for panel in PANELS)
    assert all(target["datasource"] == wanted for _, target in TARGETS)


def test_every_variable_exists_and_what_has_an_agent_is_filtered_by_it() -> None:
    """Counted by agent means that the choice of agents matters."""
    names = {name for _, target in TARGETS for name in re.findall(r"\$(\w+)", target["expr"])}
    assert names == {"agent", *FROM_GRAFANA}
    for panel, target in TARGETS:
        if panel["title"] == "Are there enough slots?":  # compares with the workers, which serve all agents
            continue
        for use in uses_of(target["expr"]):
            filtered = Matcher("agent", "=~", "$agent") in use.matchers
            assert filtered == ("agent" in SAMPLES[use.metric].labels), panel["title"]


def test_panels_do_not_overlap_and_fill_their_rows() -> None:
    """24 columns, none twice, no hole between two panels."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert taken == {(x, y) for x in range(24) for y in range(max(y for _, y in taken) + 1)}
    assert all(row["gridPos"]["w"] == 24 for row in ROWS)


def test_the_dashboard_is_the_classic_model() -> None:
    """No id of somebody's Grafana, a fixed uid, nothing that was saved by the way."""
    assert DASHBOARD["schemaVersion"] == 39
    assert DASHBOARD["id"] is None
    assert (DASHBOARD["uid"], DASHBOARD["title"]) == ("makegood", "makegood")
    assert VARIABLES["datasource"]["current"] == {}


# --- alerts ---------------------------------------------------------------------------------------------------------


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """All commands, as they are typed."""
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


def test_every_alert_is_there_and_explained() -> None:
    """Severity, what happened, what to look at; a section of docs/alerts.md, in the order of the rules."""
    assert set(ALERTS) == {
        "MakegoodReviewWaits",
        "MakegoodCleanupStuck",
        "MakegoodCleanShareLow",
        "MakegoodBreakerOpen",
        "MakegoodQueueWaits",
        "MakegoodNoWorker",
        "MakegoodExporterStale",
        "MakegoodFalseKills",
        "MakegoodRunsFailFast",
        "MakegoodRunsFailSlowly",
    }
    for rule in ALERTS.values():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        assert "`makegood " in rule["annotations"]["description"]
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (Makegood\w+)$", page, re.MULTILINE) == list(ALERTS)


def test_commands_that_alerts_name_exist() -> None:
    """Also those of docs/alerts.md, with their options."""
    known = set(commands(cli))
    texts = [rule["annotations"]["description"] for rule in ALERTS.values()]
    texts.append((ROOT / "docs" / "alerts.md").read_text(encoding="utf-8"))
    named = [line.split() for text in texts for line in re.findall(r"`makegood ([^`]+)`", text)]
    assert named
    for words in named:
        path = tuple(words[:2]) if tuple(words[:2]) in known else tuple(words[:1])
        assert path in known, words
        command: click.Command = cli
        for name in path:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        assert not isinstance(command, click.Group), words
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, words


def test_the_unit_tests_of_rules_are_fed_with_series_that_exist() -> None:
    """All labels of the metric, with values that it has; a run in a state is in one queue only."""
    given = {each["series"] for test in RULE_TESTS for each in test["input_series"]}
    ours = [series for series in given if series.startswith("makegood_")]
    assert ours
    for series in ours:
        (use,) = uses_of(series)
        metric = SAMPLES[use.metric]
        labels = {matcher.label: matcher.value for matcher in use.matchers}
        assert labels.keys() - {"job", "instance"} == labels_of(use.metric), series
        assert not [matcher for matcher in use.matchers if strange_values(metric, matcher)], series
        if metric.name == "runs_oldest_age_seconds":
            assert labels["queue"] == QUEUE_OF[labels["state"]], series


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_case_that_fires_it_and_a_near_miss(name: str) -> None:
    """In the unit tests of the rules, which `promtool test rules` runs."""
    cases = [
        [each["exp_alerts"] for each in test["alert_rule_test"] if each["alertname"] == name]
        for test in RULE_TESTS
        if "alert_rule_test" in test
    ]
    assert any(expected and any(expected) for expected in cases)
    assert any(expected and not any(expected) for expected in cases)


# --- where the files are ----------------------------------------------------------------------------------------------


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Place in the container → place in the repository."""
    split = [volume.split(":") for volume in service["volumes"]]
    return {inside: outside for outside, inside, *_ in split if outside.startswith("./")}


def test_what_compose_mounts_is_what_grafana_and_prometheus_look_for() -> None:
    """Provisioning, dashboards, configuration and rules: each path leads to a file of the repository."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    grafana, prometheus = mounts(services["grafana"]), mounts(services["prometheus"])
    provisioning = ROOT / grafana["/etc/grafana/provisioning"]
    (providers,) = (provisioning / "dashboards").glob("*.yml")
    (provider,) = yaml.safe_load(providers.read_text(encoding="utf-8"))["providers"]
    assert (ROOT / grafana[provider["options"]["path"]]).resolve() == DASHBOARDS
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (ROOT / grafana[str(home.parent)] / home.name).is_file()

    (sources,) = (provisioning / "datasources").glob("*.yml")
    (source,) = yaml.safe_load(sources.read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"

    (config,) = [word for word in services["prometheus"]["command"] if word.startswith("--config.file=")]
    inside = Path(config.partition("=")[2])
    file = ROOT / prometheus[str(inside.parent)] / inside.name
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert all((file.parent / name).is_file() for name in written["rule_files"])
    targets = [each for job in written["scrape_configs"] for each in job["static_configs"]]
    assert targets == [{"targets": ["monitor:9464"]}]

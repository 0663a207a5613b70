"""The files of examples/monitoring: rules and a dashboard that name only what a server really shows."""

import importlib.util
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.testing import server
from tests.backup.support import backed_up, reading
from tests.gates.remits_client import Remits
from tests.test_docs import anchors
from tests.test_server import PATIENCE_S

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / "examples" / "monitoring"
RULES: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: Final[dict[str, Any]] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS: Final = {"up": {"instance", "job"}}
"""Prometheus adds this metric, and these labels to all others."""
DURATIONS: Final = {"$__rate_interval": "5m"}
"""Variables of Grafana where a duration stands."""
PARTS: Final = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
LAGS: Final = re.compile(r"penstock_(queue|subscription)_(lag_\w+|dead_letters)|penstock_lags_left_out")


def queries() -> Iterator[tuple[str, str]]:
    """Every expression of the rules and the dashboard, and where it stands."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*")
            for variable, value in DURATIONS.items():
                expression = expression.replace(variable, value)
            yield panel["title"], expression


class Used:
    """The metrics of an expression with the labels of their matchers, and the labels that aggregations keep."""

    def __init__(self, expression: str) -> None:
        self.metrics: list[tuple[str, set[str]]] = []
        self.kept: set[str] = set()
        self._look(promql_parser.parse(expression))

    def _look(self, node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            self.metrics.append((node.name or "", {matcher.name for matcher in node.matchers.matchers}))
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
            self.kept |= set(modifier.labels)
        for name in ("lhs", "rhs", "expr", "args", "vector_selector", "param"):
            found = getattr(node, name, None)
            for each in found if isinstance(found, list) else [found]:
                if each is not None and not isinstance(each, str | float):
                    self._look(each)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every sample that a server shows after some work; of a family without samples none are known."""
    data = tmp_path_factory.mktemp("monitoring") / "data"
    with server(data) as served, penstock.connect(served.url) as client, Remits(served.remits) as remits:
        client.append("shop", "order-1", [penstock.event("OrderPlaced")])
        client.queue("shop", "shipping", subscriber="worker").take()
        client.subscription("reader", context="shop").fetch()
        list(client.read_all())
        remits.log_add("visits")
        with reading(data) as store:
            backed_up(store, data.with_name("place"))
        text = httpx.get(f"{served.http}/metrics", timeout=PATIENCE_S).text
    found: defaultdict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for part in PARTS.get(family.type, ("",)):
            found[f"{family.name}{part}"] = set()
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return {**found, **OF_PROMETHEUS}


def is_counted_elsewhere(name: str) -> bool:
    """Lags are metrics of `penstock.engine.lags`, where there is this module."""
    return bool(LAGS.fullmatch(name)) and importlib.util.find_spec("penstock.engine.lags") is None


@pytest.mark.parametrize(("place", "expression"), [*queries()])
def test_every_query_parses_and_names_what_a_server_shows(
    scraped: dict[str, set[str]], place: str, expression: str
) -> None:
    used = Used(expression)
    assert used.metrics
    for name, labels in used.metrics:
        if is_counted_elsewhere(name):
            return
        assert name in scraped, f"{place} names {name}, which no server has"
        # A counter that counted nothing yet has no samples, and so tells no labels.
        if scraped[name] or not name.startswith(("penstock_refused", "penstock_gate", "penstock_busy")):
            assert labels | used.kept <= scraped[name] | OF_PROMETHEUS["up"] | {"le"}, expression


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_every_alert_has_a_summary_a_severity_and_a_runbook(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "docs/operations.md"
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(ROOT / page)
    if "for" in rule:
        assert promql_parser.parse_duration(rule["for"])


def test_summaries_name_labels_that_their_alerts_have() -> None:
    for rule in RULES:
        used = Used(rule["expr"])
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        aggregated = "by (" in rule["expr"].replace("(time", "")
        assert named <= (used.kept - {"le"} if aggregated else {"instance"}), rule["alert"]


def test_the_page_has_a_runbook_for_each_alert_and_for_no_other() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (Penstock\w+)$", page, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_the_dashboard_can_be_imported() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)\}?", json.dumps(PANELS))) - {"__rate_interval"} == variables
    for panel in PANELS:
        assert panel["title"]
        assert [target["refId"] for target in panel["targets"]] == [*"ABCDEFGH"][: len(panel["targets"])]
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_no_panels_overlap() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells


def test_the_configuration_of_prometheus_names_the_rules() -> None:
    configuration = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert [(FOLDER / name).is_file() for name in configuration["rule_files"]] == [True]
    assert [job["job_name"] for job in configuration["scrape_configs"]] == ["penstock"]


def test_a_query_that_is_none_does_not_pass() -> None:
    with pytest.raises(ValueError, match=r"unexpected|unclosed|expected"):
        Used("sum by (instance (penstock_store_up)")

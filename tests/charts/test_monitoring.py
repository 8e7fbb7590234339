"""What the chart has for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from pavane_operator.crds.definitions import KINDS as KINDS_WITH_PODS
from tests.charts.rendering import Object, find, pod_templates, render
from tests.test_telemetry_documented import METRIC, metric_names

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "operations.md"
ALL_ON = (
    "--set=monitoring.podMonitors.enabled=true",
    "--set=monitoring.alerts.enabled=true",
    "--set=monitoring.alerts.runbooks=https://wiki.test/operations",
    "--set=monitoring.dashboard.enabled=true",
    "--set=monitoring.labels.release=prometheus",
)
KINDS = {"PodMonitor", "PrometheusRule"}


@pytest.fixture(scope="module")
def documents() -> list[Object]:
    return render("pavane", *ALL_ON)


@pytest.fixture
def rules(documents: list[Object]) -> list[dict[str, Any]]:
    (group,) = find(documents, "PrometheusRule", "pavane")["spec"]["groups"]
    return list(group["rules"])


def dashboards(documents: list[Object]) -> dict[str, dict[str, Any]]:
    """By the name of their file."""
    data = find(documents, "ConfigMap", "pavane-dashboard")["data"]
    return {name: json.loads(text) for name, text in data.items()}


def questions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def anchors() -> set[str]:
    """Of the headings of the operations guide, as they are linked to."""
    headings = re.findall(r"^#+ (.+)$", RUNBOOKS.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_nothing_of_it_is_made_unless_asked_for() -> None:
    made = render("pavane")
    assert not {each["kind"] for each in made} & KINDS
    assert "pavane-dashboard" not in {each["metadata"]["name"] for each in made}


def test_alerts_and_dashboard_name_metrics_that_there_are(documents: list[Object], rules: list[dict[str, Any]]) -> None:
    asked = [rule["expr"] for rule in rules]
    asked += [each for dashboard in dashboards(documents).values() for each in questions(dashboard)]
    asked += [
        variable["query"]
        for dashboard in dashboards(documents).values()
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert len(asked) > 10
    named = {name for expression in asked for name in METRIC.findall(expression)}
    assert named - metric_names() == set()


def test_prometheus_can_read_what_dashboards_and_alerts_ask(
    documents: list[Object], rules: list[dict[str, Any]]
) -> None:
    for expression in [
        *(rule["expr"] for rule in rules),
        *(each for dashboard in dashboards(documents).values() for each in questions(dashboard)),
    ]:
        promql_parser.parse(expression)  # raises ValueError
    with pytest.raises(ValueError, match="parenthesis"):
        promql_parser.parse("sum by (kind")


def test_each_kind_with_pods_has_a_dashboard_of_its_own(documents: list[Object]) -> None:
    found = dashboards(documents)
    assert len({each["uid"] for each in found.values()}) == len(found)
    for kind in KINDS_WITH_PODS:
        (own,) = (each for each in found.values() if each["title"] == f"Pavane: {kind.name}")
        assert any(f'kind="{kind.name}"' in each for each in questions(own))
        assert any(f'app_kubernetes_io_name="{kind.name.lower()}"' in each for each in questions(own))


def test_the_labels_of_the_operator_are_those_of_resources(documents: list[Object]) -> None:
    """Prometheus renames the label `namespace` of a metric unless it is told to keep it, and alerts would name ours."""
    (endpoint,) = find(documents, "PodMonitor", "pavane")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True


def test_each_alert_leads_to_a_part_of_the_operations_guide(rules: list[dict[str, Any]]) -> None:
    for rule in rules:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "https://wiki.test/operations"
        assert anchor in anchors(), rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_prometheus_takes_the_rules(documents: list[Object], tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(find(documents, "PrometheusRule", "pavane")["spec"]))
    checked = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_monitors_choose_our_pods_and_a_port_that_they_have(documents: list[Object]) -> None:
    def chosen(monitor: Object, template: Object) -> bool:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ports = {port["name"] for each in template["spec"]["containers"] for port in each.get("ports", ())}
        return wanted <= template["metadata"]["labels"].items() and endpoint["port"] in ports

    platform = find(documents, "PodMonitor", "pavane")
    deployed = [each["spec"]["template"] for each in documents if each["kind"] == "Deployment"]
    assert len(deployed) == 2
    assert all(chosen(platform, template) for template in deployed)

    resources = find(documents, "PodMonitor", "pavane-resources")
    golden = ROOT / "tests" / "operator" / "golden" / "raft_objects.yaml"
    rendered_objects = yaml.safe_load_all(golden.read_text(encoding="utf-8"))
    objects = [each for each in rendered_objects if each["kind"] == "StatefulSet"]
    rendered = pod_templates(objects)
    assert rendered
    assert all(chosen(resources, template) for template in rendered)
    for monitor in (platform, resources):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"

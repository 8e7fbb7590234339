"""What the chart has for Prometheus and Grafana."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def panels(documents: list[Object]) -> list[dict[str, Any]]:
    text = find(documents, "ConfigMap", "pavane-dashboard")["data"]["pavane.json"]
    return list(json.loads(text)["panels"])


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
    asked += [target["expr"] for panel in panels(documents) for target in panel["targets"]]
    assert len(asked) > 10
    named = {name for expression in asked for name in METRIC.findall(expression)}
    assert named - metric_names() == set()


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

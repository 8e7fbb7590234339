"""The charts as Helm renders them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.requires import requires

CHARTS = Path(__file__).parents[2] / "charts"
SHAPES = sorted((CHARTS / "pavane" / "ci").glob("*-values.yaml"))
RELEASE = "pavane"
NAMESPACE = "pavane-system"

Object = dict[str, Any]


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([requires("helm"), *arguments], capture_output=True, text=True, check=False, timeout=50)
    assert not check or result.returncode == 0, result.stderr
    return result


def template(chart: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return helm("template", RELEASE, str(CHARTS / chart), "--namespace", NAMESPACE, *arguments, check=check)


def render(chart: str, *arguments: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(template(chart, *arguments).stdout) if document]


def find(documents: list[Object], kind: str, name: str) -> Object:
    (found,) = (one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name))
    return found


def pod_templates(documents: list[Object]) -> list[Object]:
    """Every pod, and every template of pods, that a chart makes."""
    pods = [document for document in documents if document["kind"] == "Pod"]
    return pods + [document["spec"]["template"] for document in documents if "template" in document.get("spec", {})]

"""A small custom resource with everything that a definition of ours uses, and short bodies for tests."""

from typing import Any

from pavane_operator.kube.resources import Object, Resource
from tests.local.api_server import WIDGET_DEFINITION

WIDGETS = Resource("test.dev", "v1", "widgets", "Widget")

__all__ = ["WIDGETS", "WIDGET_DEFINITION", "config_map", "widget"]


def widget(name: str = "a", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"size": "1Gi", **spec}}


def config_map(name: str = "a", data: Any = None, **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "data": {"a": "1"} if data is None else data}

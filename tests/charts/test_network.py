"""Whom operator and control plane reach, and who reaches them, by the policies of the chart."""

from __future__ import annotations

import pytest

from tests.charts.rendering import NAMESPACE, Object, pod_templates, render
from tests.operator.network import Party, connects

NAME = "kubernetes.io/metadata.name"
SERVER = Party("10.1.0.9", "data", {"app.kubernetes.io/managed-by": "pavane-operator"}, {NAME: "data"})
SHOP = Party("10.1.0.10", "data", {"app": "shop"}, {NAME: "data"})
API_SERVER = Party("10.0.0.1")
OUTSIDE = Party("198.51.100.7")
DNS = Party("169.254.20.10")


def policies(documents: list[Object]) -> list[Object]:
    return [one for one in documents if one["kind"] == "NetworkPolicy"]


def party(documents: list[Object], component: str) -> Party:
    (labels,) = (
        pod["metadata"]["labels"]
        for pod in pod_templates(documents)
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    return Party("10.1.0.1", NAMESPACE, labels, {NAME: NAMESPACE})


@pytest.fixture(scope="module")
def documents() -> list[Object]:
    return render("pavane")


@pytest.mark.parametrize("component", ["operator", "api"])
def test_each_reaches_the_pods_of_resources_names_and_the_api_server(documents: list[Object], component: str) -> None:
    found, here = policies(documents), party(documents, component)
    for port in (7070, 7071, 8047):
        assert connects(found, here, SERVER, port)
    assert connects(found, here, DNS, 53, "UDP")
    assert connects(found, here, API_SERVER, 6443)
    assert not connects(found, here, SHOP, 80)
    assert not connects(found, here, OUTSIDE, 80)


def test_the_operators_spans_reach_the_control_plane(documents: list[Object]) -> None:
    found = policies(documents)
    assert connects(found, party(documents, "operator"), party(documents, "api"), 8000)


def test_users_reach_the_control_plane_and_nobody_the_operator_but_for_its_health(documents: list[Object]) -> None:
    found = policies(documents)
    for source in (SHOP, OUTSIDE, SERVER):
        assert connects(found, source, party(documents, "api"), 8000)
        assert connects(found, source, party(documents, "operator"), 8080)
        assert not connects(found, source, party(documents, "operator"), 8000)
        assert not connects(found, source, party(documents, "api"), 22)


def test_the_api_servers_addresses_can_be_named() -> None:
    documents = render("pavane", "--set", "networkPolicy.apiServerCIDRs={10.0.0.1/32}")
    found, here = policies(documents), party(documents, "operator")
    assert connects(found, here, API_SERVER, 443)
    assert not connects(found, here, OUTSIDE, 443)


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://prometheus.data:9090/x", 9090), ("http://prometheus", 80), ("https://metrics.example", 443)],
)
def test_the_operator_alone_reaches_prometheus(url: str, port: int) -> None:
    documents = render("pavane", "--set", f"gates.prometheus.url={url}", "--set", "networkPolicy.apiServerPorts={6443}")
    found = policies(documents)
    assert connects(found, party(documents, "operator"), OUTSIDE, port)
    assert not connects(found, party(documents, "api"), OUTSIDE, port)
    assert not connects(found, party(documents, "operator"), OUTSIDE, 9091)


def test_without_policies_there_are_none() -> None:
    assert policies(render("pavane", "--set", "networkPolicy.enabled=false")) == []

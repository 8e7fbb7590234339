"""Who may reach the pods of a RaftCluster, and whom they may reach (docs/specs/operator.md 4.1, docs/security.md)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pavane_operator.kinds.backup.deciding import NAMES as NAMES_OF_BACKUPS
from pavane_operator.kinds.raft import names
from pavane_operator.kinds.raft.render import RaftRenderer
from pavane_operator.plan.model import Writers
from tests.charts.rendering import pod_templates, render
from tests.operator.network import Party, Policy, connects
from tests.operator.test_render_raft import DEFAULTS, resource

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
NAME = "kubernetes.io/metadata.name"
RAFT, PUBLISH, STAGE, OPS = 8047, 8048, 7070, 7071
PORTS = (RAFT, PUBLISH, STAGE, OPS)


def pod(namespace: str, labels: dict[str, str], address: str = "10.1.0.9") -> Party:
    return Party(address, namespace, labels, {NAME: namespace})


def platform(component: str) -> Party:
    labels = {"app.kubernetes.io/part-of": "pavane", "app.kubernetes.io/component": component}
    return pod("pavane-system", labels)


SERVER = pod("data", names.NAMES.labels("log", "0.1.0", 2))
SOURCES = {
    "a pod of the same resource, of any generation": pod("data", names.NAMES.labels("log", "0.2.0", 1)),
    "any other pod of the same namespace": pod("data", {"app": "shop"}),
    "the operator": platform("operator"),
    "the control plane (`pavane api`)": platform("api"),
    "another pod of the platform's namespace": pod("pavane-system", {"app": "shop"}),
    "a pod of another namespace, whatever its labels": pod("elsewhere", names.NAMES.labels("log", "0.1.0", 2)),
    "an address outside the cluster": Party("198.51.100.7"),
}
TARGETS = {
    "a pod of the same resource": (SERVER, RAFT, "TCP"),
    "DNS, wherever it is": (Party("169.254.20.10"), 53, "UDP"),
    "the collector of spans, where it is a Service": (platform("api"), 8000, "TCP"),
    "another pod of the same namespace": (pod("data", {"app": "shop"}), 80, "TCP"),
    "the Kubernetes API": (Party("10.96.0.1"), 443, "TCP"),
    "an address outside the cluster": (Party("198.51.100.7"), 443, "TCP"),
}


def policies(
    *, otlp_endpoint: str | None = DEFAULTS.otlp_endpoint, rollout: dict[str, Any] | None = None, **network: Any
) -> list[Policy]:
    renderer = RaftRenderer(replace(DEFAULTS, otlp_endpoint=otlp_endpoint))
    manifests = renderer.shared(resource(networkPolicy=network, rollout=rollout or {}), Writers((2,)), {})
    return [manifest.body for manifest in manifests if manifest.kind == "NetworkPolicy"]


def reached(source: Party, found: list[Policy]) -> set[int]:
    return {port for port in PORTS if connects(found, source, SERVER, port)}


def leaves(target: tuple[Party, int, str], found: list[Policy]) -> bool:
    party, port, protocol = target
    return connects(found, SERVER, party, port, protocol)


def test_the_documentation_says_who_reaches_whom() -> None:
    found = policies()
    rows = [
        f"| {who} | {' | '.join('yes' if port in reached(source, found) else '–' for port in PORTS)} |"
        for who, source in SOURCES.items()
    ]
    rows += [f"| {whom} | {'yes' if leaves(target, found) else '–'} |" for whom, target in TARGETS.items()]
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [row for row in rows if row not in text] == []


def test_each_party_reaches_what_it_needs_and_nothing_else() -> None:
    assert [reached(source, policies()) for source in SOURCES.values()] == [
        {RAFT},  # into the other one it may as a pod of the namespace, but it is not let out
        {RAFT, PUBLISH},
        {RAFT, STAGE, OPS},
        {RAFT, OPS},
        set(),
        set(),
        set(),
    ]


def test_a_gate_lets_the_operator_alone_ask_on_its_port() -> None:
    asked = {"name": "probe", "for": "5s", "http": {"port": 9000, "path": "/"}}
    found = policies(rollout={"gates": [asked]})
    assert [who for who, source in SOURCES.items() if connects(found, source, SERVER, 9000)] == ["the operator"]
    assert not connects(policies(), SOURCES["the operator"], SERVER, 9000)


def test_pods_leave_for_nothing_that_they_do_not_need() -> None:
    assert [leaves(target, policies()) for target in TARGETS.values()] == [True, True, True, False, False, False]


def test_peers_find_each_other_where_other_pods_of_the_namespace_are_no_clients() -> None:
    found = policies(clientSelector={"podSelector": {"matchLabels": {"role": "client"}}})
    assert reached(SOURCES["a pod of the same resource, of any generation"], found) == {RAFT}
    assert reached(pod("data", {"app": "shop"}), found) == set()
    assert reached(pod("data", {"role": "client"}), found) == {RAFT, PUBLISH}
    assert reached(pod("elsewhere", {"role": "client"}), found) == set()
    backup = NAMES_OF_BACKUPS["RaftCluster"].labels("nightly", "1")
    assert reached(pod("data", backup), found) == {RAFT, PUBLISH}, "it copies the cluster"
    assert reached(pod("elsewhere", backup), found) == set()
    assert reached(pod("data", {"app.kubernetes.io/name": "backup"}), found) == set(), "somebody else's"


def test_clients_of_other_namespaces_are_let_in_by_selectors() -> None:
    team = {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}}
    inside = Party("10.1.0.9", "elsewhere", {}, {"team": "b"})
    assert reached(inside, policies(clientSelector=team)) == {RAFT, PUBLISH}
    assert reached(replace(inside, namespace_labels={"team": "c"}), policies(clientSelector=team)) == set()
    everywhere = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": "client"}}}
    assert reached(replace(inside, labels={"role": "client"}), policies(clientSelector=everywhere)) == {RAFT, PUBLISH}
    assert reached(inside, policies(clientSelector=everywhere)) == set()


def test_addresses_are_let_in_and_out_by_ranges() -> None:
    outside = Party("198.51.100.7")
    assert reached(outside, policies(ingressCIDRs=["198.51.100.0/24"])) == {RAFT, PUBLISH}
    assert reached(Party("198.51.101.7"), policies(ingressCIDRs=["198.51.100.0/24"])) == set()
    assert not leaves((outside, 8047, "TCP"), policies(ingressCIDRs=["198.51.100.0/24"]))
    assert leaves((outside, 8047, "TCP"), policies(egressCIDRs=["198.51.100.0/24"]))


@pytest.mark.parametrize(
    ("endpoint", "collector", "port"),
    [
        ("http://traces.watch.svc.cluster.local:4318", pod("watch", {}), 4318),
        ("http://traces.watch", pod("watch", {}), 80),
        ("https://traces", pod("data", {}), 443),
        ("http://192.0.2.4:4318/v1/traces", Party("192.0.2.4"), 4318),
        ("http://[2001:db8::4]:4318", Party("2001:db8::4"), 4318),
    ],
)
def test_spans_reach_their_collector(endpoint: str, collector: Party, port: int) -> None:
    assert leaves((collector, port, "TCP"), policies(otlp_endpoint=endpoint))
    assert not leaves((collector, port + 1, "TCP"), policies(otlp_endpoint=endpoint))
    assert not leaves((collector, port, "TCP"), policies(otlp_endpoint=None))


def test_a_collector_with_a_name_outside_the_cluster_opens_nothing() -> None:
    assert policies(otlp_endpoint="https://traces.example.com/v1") == policies(otlp_endpoint=None)


def test_without_policies_everybody_reaches_everything() -> None:
    assert policies(enabled=False) == []
    assert reached(Party("198.51.100.7"), []) == set(PORTS)


def test_other_resources_are_not_concerned() -> None:
    other = pod("data", names.NAMES.labels("other", "0.1.0", 1))
    assert connects(policies(), Party("198.51.100.7"), other, STAGE)


def test_operator_and_control_plane_get_through_the_policies_of_the_chart_and_of_the_resource() -> None:
    documents = render("pavane", "--set", "networkPolicy.enabled=true")
    found = [*policies(), *(one for one in documents if one["kind"] == "NetworkPolicy")]
    made = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: pod("pavane-system", one["metadata"]["labels"])
        for one in pod_templates([one for one in documents if one["kind"] == "Deployment"])
    }
    assert {component: reached(party, found) for component, party in made.items()} == {
        "operator": {RAFT, STAGE, OPS},
        "api": {RAFT, OPS},
    }
    assert connects(found, SERVER, made["api"], 8000)
    assert not connects(found, SERVER, made["operator"], 8080)

"""NetworkPolicies: who may reach the pods of a resource, and whom they may reach (docs/specs/operator.md 4.1)."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pavane_operator.crds.exposure import ClientSelector
from pavane_operator.objects.names import MANAGER_LABEL_VALUE
from pavane_operator.objects.owned import owned
from pavane_operator.objects.pods import Port
from pavane_operator.plan.model import Manifest, Resource

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Set by the API server on each namespace, to its name."""
DNS_PORT = 53
DEFAULT_PORTS = {"http": 80, "https": 443}


Target = tuple[Mapping[str, str] | None, tuple[Port, ...]]
"""Labels of the pods of another resource of the namespace, None = anywhere, and their ports."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of a resource's pods, by who may connect to them."""

    peers: tuple[Port, ...]
    """Pods of the same resource, of all generations."""
    clients: tuple[Port, ...]
    operator: tuple[Port, ...]
    """The operator; also where it speaks to the store as a client of it."""
    control_plane: tuple[Port, ...]
    """The REST control plane."""
    of_clients: tuple[Port, ...] = ()
    """Ports of the clients to which the pods connect by themselves."""
    helpers: str = ""
    """Kind, in lower case, whose pods are clients whatever `clientSelector` says; empty = there is none."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What policies have to know about the installation."""

    platform_namespace: str
    """Where operator and control plane run."""
    otlp_endpoint: str | None
    """Url to which the pods send spans; None = nowhere."""


def network_policies(
    resource: Resource,
    labels: Mapping[str, str],
    selector: Mapping[str, str],
    ports: Ports,
    surroundings: Surroundings,
    targets: Sequence[Target] = (),
) -> tuple[Manifest, ...]:
    """NetworkPolicies `{name}-peers`, `-clients`, `-operator` and `-egress`; none if they are disabled.

    Args:
        resource: Whose pods.
        labels: Of the objects.
        selector: Labels of all pods of the resource, of every role and generation.
        ports: The ports of its pods.
        surroundings: The installation.
        targets: What the pods are clients of.
    """
    wanted = resource.spec.network_policy
    if not wanted.enabled:
        return ()
    peers = [{"podSelector": {"matchLabels": dict(selector)}}]
    clients = [_clients(wanted.client_selector), *_blocks(wanted.ingress_cidrs)]
    if wanted.client_selector is not None and ports.helpers:
        # Others may well call a pod of theirs `backup`.
        found = {"app.kubernetes.io/name": ports.helpers, "app.kubernetes.io/managed-by": MANAGER_LABEL_VALUE}
        clients.append({"podSelector": {"matchLabels": found}})
    platform = surroundings.platform_namespace
    http = (gate.http for gate in resource.spec.rollout.gates)
    asked = {each.port for each in http if each is not None} - {port.number for port in ports.operator}
    to_ask = tuple(Port("gate", number) for number in sorted(asked))
    ingress = {
        "peers": [_from(peers, ports.peers)],
        "clients": [_from(clients, ports.clients)],
        "operator": [
            _from([_platform_pods(platform, "operator")], (*ports.operator, *to_ask)),
            _from([_platform_pods(platform, "api")], ports.control_plane),
        ],
    }
    egress: list[dict[str, Any]] = [
        *_opening([{"to": peers, "ports": _ports(ports.peers)}]),
        *([{"to": clients, "ports": _ports(ports.of_clients)}] if ports.of_clients else []),
        *(rule_to(pods, of) for pods, of in targets),
        # Anywhere: the address of a cluster's DNS, often the node's own, is not known here.
        {"ports": [{"protocol": "UDP", "port": DNS_PORT}, {"protocol": "TCP", "port": DNS_PORT}]},
        *_collector(surroundings.otlp_endpoint),
    ]
    if wanted.egress_cidrs:
        egress.append({"to": _blocks(wanted.egress_cidrs)})
    # To an API server a rule without ports opens all of them.
    specs = {name: {"policyTypes": ["Ingress"], "ingress": _opening(rules)} for name, rules in ingress.items()}
    specs["egress"] = {"policyTypes": ["Egress"], "egress": egress}
    manifests = []
    for name, spec in specs.items():
        body = owned(resource, "networking.k8s.io/v1", "NetworkPolicy", f"{resource.name}-{name}", labels)
        body["spec"] = {"podSelector": {"matchLabels": dict(selector)}, **spec}
        manifests.append(Manifest.of(body))
    return tuple(manifests)


def rule_from(pods: Mapping[str, str], ports: tuple[Port, ...]) -> dict[str, Any]:
    """A rule of ingress from these pods of the namespace."""
    return _from([{"podSelector": {"matchLabels": dict(pods)}}], ports)


def rule_to(pods: Mapping[str, str] | None, ports: tuple[Port, ...]) -> dict[str, Any]:
    """A rule of egress to these pods of the namespace, or anywhere."""
    to = {} if pods is None else {"to": [{"podSelector": {"matchLabels": dict(pods)}}]}
    return {**to, "ports": _ports(ports)}


def _opening(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for rule in rules if rule["ports"]]


def _from(peers: list[dict[str, Any]], ports: tuple[Port, ...]) -> dict[str, Any]:
    return {"from": peers, "ports": _ports(ports)}


def _ports(ports: tuple[Port, ...]) -> list[dict[str, Any]]:
    return [{"protocol": port.protocol, "port": port.number} for port in ports]


def _blocks(cidrs: list[str]) -> list[dict[str, Any]]:
    return [{"ipBlock": {"cidr": cidr}} for cidr in cidrs]


def _clients(selector: ClientSelector | None) -> dict[str, Any]:
    if selector is None:
        return {"podSelector": {}}
    peer: dict[str, Any] = selector.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return peer or {"podSelector": {}}


def _platform_pods(namespace: str, component: str) -> dict[str, Any]:
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: namespace}},
        "podSelector": {
            "matchLabels": {"app.kubernetes.io/part-of": "pavane", "app.kubernetes.io/component": component}
        },
    }


def _collector(endpoint: str | None) -> list[dict[str, Any]]:
    """Egress to the collector of spans; one outside the cluster needs `egressCIDRs`, since policies know no names."""
    if endpoint is None:
        return []
    url = urlsplit(endpoint)
    host = url.hostname or ""
    port = url.port or DEFAULT_PORTS.get(url.scheme, DEFAULT_PORTS["http"])
    return [{"to": [peer], "ports": [{"protocol": "TCP", "port": port}]} for peer in _host(host)]


def _host(host: str) -> list[dict[str, Any]]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        service, *rest = host.split(".")
    else:
        return [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}]
    if not service:
        return []
    if not rest:
        return [{"podSelector": {}}]
    if len(rest) == 1 or rest[1] == "svc":
        return [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: rest[0]}}}]
    return []

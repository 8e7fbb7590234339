"""What a cluster's network lets through: NetworkPolicies of networking.k8s.io/v1, evaluated on paper."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Policy = Mapping[str, Any]
_PEER_FIELDS = {"podSelector", "namespaceSelector", "ipBlock"}


@dataclass(frozen=True)
class Party:
    """A pod, or, without a namespace, an address outside the cluster."""

    address: str
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)


def connects(policies: Sequence[Policy], source: Party, target: Party, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection comes about: the source's policies let it out and the target's let it in."""
    out = _lets(policies, "Egress", source, target, port, protocol)
    return out and _lets(policies, "Ingress", target, source, port, protocol)


def _lets(policies: Iterable[Policy], kind: str, here: Party, there: Party, port: int, protocol: str) -> bool:
    """Whether the policies of one kind that select `here` let it speak to `there`; unselected, a pod is open."""
    selecting = [
        policy["spec"]
        for policy in policies
        if kind in policy["spec"]["policyTypes"]
        and here.namespace == policy["metadata"]["namespace"]
        and _selects(policy["spec"]["podSelector"], here.labels)
    ]
    direction = ("ingress", "from") if kind == "Ingress" else ("egress", "to")
    rules = [(spec, rule) for spec in selecting for rule in spec.get(direction[0], ())]
    return not selecting or any(
        _matches_peers(rule.get(direction[1]), here, there) and _matches_ports(rule.get("ports"), port, protocol)
        for _, rule in rules
    )


def _matches_ports(ports: Sequence[Mapping[str, Any]] | None, port: int, protocol: str) -> bool:
    return not ports or any((each["protocol"], each["port"]) == (protocol, port) for each in ports)


def _matches_peers(peers: Sequence[Mapping[str, Any]] | None, here: Party, there: Party) -> bool:
    return not peers or any(_matches_peer(peer, here, there) for peer in peers)


def _matches_peer(peer: Mapping[str, Any], here: Party, there: Party) -> bool:
    assert peer, "an API server refuses an empty peer"
    assert peer.keys() <= _PEER_FIELDS, peer
    if "ipBlock" in peer:
        block = ipaddress.ip_network(peer["ipBlock"]["cidr"])
        return ipaddress.ip_address(there.address) in block
    if there.namespace is None:
        return False
    if "namespaceSelector" in peer:
        near = _selects(peer["namespaceSelector"], there.namespace_labels)
    else:
        near = there.namespace == here.namespace
    return near and _selects(peer.get("podSelector", {}), there.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}, selector
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        _holds(each, labels) for each in selector.get("matchExpressions", ())
    )


def _holds(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = requirement["key"], requirement.get("values", ())
    return {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[requirement["operator"]]

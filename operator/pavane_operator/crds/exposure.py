"""Who may reach the pods of a resource, and who may evict them (docs/specs/operator.md 1.2)."""

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from pavane_operator.crds.base import LIST_MAX_ITEMS, MAP_MAX_ENTRIES, Mark, Model, marked, rule, rules
from pavane_operator.crds.scheduling import LabelKey, LabelValue

CIDR_MAX_CHARACTERS = 43
"""The longest IPv6 address with its prefix length."""
_BYTE = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
CIDR_PATTERN = (
    rf"^(({_BYTE}\.){{3}}{_BYTE}/(3[0-2]|[12]?[0-9])"
    r"|[0-9a-fA-F]*:[0-9a-fA-F:.]+/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$"
)
UNAVAILABLE_MAX = 1000
"""More than any resource has pods."""

Cidr = Annotated[str, Field(max_length=CIDR_MAX_CHARACTERS, pattern=CIDR_PATTERN)]
"""A range of addresses such as `10.0.0.0/8` or `2001:db8::/32`."""


class SelectorOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class ServiceType(StrEnum):
    """How the public Service is reached."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class SelectorRequirement(Model):
    """One condition on a label."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
                "In and NotIn require values, Exists and DoesNotExist allow none",
            )
        )
    )

    key: LabelKey
    """Key of the label."""
    operator: SelectorOperator
    """How the label is compared."""
    values: list[LabelValue] = Field(default_factory=list, max_length=LIST_MAX_ITEMS)
    """Values for In and NotIn."""


class LabelSelector(Model):
    """Selects by labels; an empty one selects everything."""

    match_labels: dict[str, LabelValue] = Field(default_factory=dict, max_length=MAP_MAX_ENTRIES)
    """Labels with their values."""
    match_expressions: list[SelectorRequirement] = Field(default_factory=list, max_length=LIST_MAX_ITEMS)
    """Additional conditions; all must hold."""


class ClientSelector(Model):
    """Which pods are clients. Without `namespaceSelector` they are in the resource's own namespace."""

    namespace_selector: LabelSelector | None = None
    """Namespaces of the clients; if absent, the resource's own; if empty, all."""
    pod_selector: LabelSelector | None = None
    """The clients among the pods of these namespaces; if absent or empty, all of them."""


class NetworkPolicySpec(Model):
    """Which connections to and from the pods are allowed; effective only if the cluster's network enforces policies."""

    enabled: bool = Field(default=True, json_schema_extra=marked(Mark.LIVE))
    """Whether to create policies; without them anyone may connect."""
    ingress_cidrs: list[Cidr] = Field(
        default_factory=list,
        alias="ingressCIDRs",
        max_length=LIST_MAX_ITEMS,
        json_schema_extra=marked(Mark.LIVE),
    )
    """Addresses that may reach the public ports in addition to the clients, for example of a load balancer."""
    egress_cidrs: list[Cidr] = Field(
        default_factory=list,
        alias="egressCIDRs",
        max_length=LIST_MAX_ITEMS,
        json_schema_extra=marked(Mark.LIVE),
    )
    """Addresses that the pods may reach in addition to each other, the collector of spans and DNS."""
    client_selector: ClientSelector | None = Field(default=None, json_schema_extra=marked(Mark.LIVE))
    """Which pods may reach the public ports; if absent, all pods of the namespace."""


class DisruptionBudgetSpec(Model):
    """How many pods may be evicted at once, for example when a node is drained."""

    enabled: bool = Field(default=True, json_schema_extra=marked(Mark.LIVE))
    """Whether to create a budget."""
    max_unavailable: int = Field(default=1, ge=0, le=UNAVAILABLE_MAX, json_schema_extra=marked(Mark.LIVE))
    """Pods that may be unavailable at once. The operator lowers it to protect the quorum, and to 0 during a
    promotion."""

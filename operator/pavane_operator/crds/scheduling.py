"""Where and how the pods of a resource run: fields that end in the pod as they are (docs/specs/operator.md 1.2)."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, JsonValue

from pavane_operator.crds.base import (
    LIST_MAX_ITEMS,
    MAP_MAX_ENTRIES,
    Mark,
    Model,
    Name,
    Text,
    marked,
    rule,
    rules,
)

LABEL_MAX_CHARACTERS = 63
"""Longest value of a label, and name of a port or class, that Kubernetes takes."""
LABEL_KEY_MAX_CHARACTERS = 317
"""A DNS name of 253, a slash and a name of 63."""
LABEL_VALUE_PATTERN = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
TOLERATION_MAX_SECONDS = 1_000_000_000
"""About 30 years, which is for ever."""
SKEW_MAX = 1000
"""More than any resource has pods."""

RESERVED_KEYS = rules(
    rule(
        "self.all(key, !key.startsWith('pavane.dev/') && !key.startsWith('app.kubernetes.io/'))",
        "keys under pavane.dev/ and app.kubernetes.io/ are set by the operator",
    )
)
"""For maps of labels or annotations that are merged with ours."""

LabelValue = Annotated[str, Field(max_length=LABEL_MAX_CHARACTERS, pattern=LABEL_VALUE_PATTERN)]
LabelKey = Annotated[str, Field(max_length=LABEL_KEY_MAX_CHARACTERS)]


def _free_form() -> Any:
    """A field of any shape: the server checks it as part of the pod."""
    extra = marked(Mark.POD, **{"x-kubernetes-preserve-unknown-fields": True})
    return Field(default=None, max_length=MAP_MAX_ENTRIES, json_schema_extra=extra)


class PullPolicy(StrEnum):
    """When the image is pulled."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Operator(StrEnum):
    """How a toleration meets a taint."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class Effect(StrEnum):
    """What a taint does to pods."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Unsatisfiable(StrEnum):
    """What the scheduler does with a pod that cannot be spread."""

    SCHEDULE_ANYWAY = "ScheduleAnyway"
    DO_NOT_SCHEDULE = "DoNotSchedule"


class PullSecret(Model):
    """A Secret of type `kubernetes.io/dockerconfigjson` in the same namespace."""

    name: Name
    """Name of the Secret."""


class Toleration(Model):
    """A taint of nodes that the pods tolerate."""

    key: LabelKey | None = None
    """Key of the taint; if absent, with Exists, every taint."""
    operator: Operator = Operator.EQUAL
    """Equal, which counts if absent: the taint has this value. Exists: any value."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: Effect | None = None
    """Effect of the taint; if absent, every effect."""
    toleration_seconds: int | None = Field(default=None, ge=0, le=TOLERATION_MAX_SECONDS)
    """How long a NoExecute taint is tolerated; if absent, for ever."""


class Affinity(Model):
    """Which nodes, and nearness to which other pods, the pods prefer or require; as in a pod."""

    node_affinity: dict[str, JsonValue] | None = _free_form()
    """Rules about nodes, like `affinity.nodeAffinity` of a pod."""
    pod_affinity: dict[str, JsonValue] | None = _free_form()
    """Rules about pods to be near, like `affinity.podAffinity` of a pod."""
    pod_anti_affinity: dict[str, JsonValue] | None = _free_form()
    """Rules about pods to avoid, like `affinity.podAntiAffinity` of a pod."""


class SpreadConstraint(Model):
    """How evenly the pods of one generation are spread over a topology; the operator sets the selector."""

    topology_key: Name
    """Node label whose values are the domains, for example `topology.kubernetes.io/zone`."""
    max_skew: int = Field(default=1, ge=1, le=SKEW_MAX)
    """By how many pods two domains may differ; if absent, 1."""
    when_unsatisfiable: Unsatisfiable = Unsatisfiable.SCHEDULE_ANYWAY
    """ScheduleAnyway, which counts if absent, prefers an even spread, DoNotSchedule requires it."""


class PodSpec(Model):
    """The fields of all kinds that end in their pods as they are."""

    image_pull_policy: PullPolicy = Field(default=PullPolicy.IF_NOT_PRESENT, json_schema_extra=marked(Mark.POD))
    """When the image is pulled."""
    image_pull_secrets: list[PullSecret] = Field(
        default_factory=list,
        max_length=LIST_MAX_ITEMS,
        json_schema_extra=marked(Mark.POD, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    )
    """Secrets for pulling the image."""
    node_selector: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """Labels that a node must have."""
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=LIST_MAX_ITEMS, json_schema_extra=marked(Mark.POD)
    )
    """Taints that the pods tolerate; by default 30 s for a node that is not ready or unreachable."""
    affinity: Affinity = Field(default_factory=Affinity)
    """Which nodes, and nearness to which other pods, the pods prefer or require."""
    priority_class_name: Name = Field(default="", json_schema_extra=marked(Mark.POD))
    """Priority class of the pods; if empty, the cluster's default."""
    runtime_class_name: Name = Field(default="", json_schema_extra=marked(Mark.POD))
    """Runtime class of the pods; if empty, the node's default."""
    topology_spread_constraints: list[SpreadConstraint] | None = Field(
        default=None, max_length=LIST_MAX_ITEMS, json_schema_extra=marked(Mark.POD)
    )
    """How the pods of a generation are spread; if absent, over the nodes where possible; if empty, not at all."""
    pod_labels: dict[str, LabelValue] = Field(
        default_factory=dict, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD, **RESERVED_KEYS)
    )
    """Additional labels of the pods; keys under `pavane.dev/` and `app.kubernetes.io/` are refused."""
    pod_annotations: dict[str, Text] = Field(
        default_factory=dict, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD, **RESERVED_KEYS)
    )
    """Additional annotations of the pods; keys under `pavane.dev/` and `app.kubernetes.io/` are refused."""

"""The spec that all kinds share, and the rollout id over its pod-affecting fields (docs/specs/operator.md 1.2, 2.2)."""

import functools
import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, JsonValue
from pydantic.fields import FieldInfo

from pavane_operator.crds.base import (
    LIST_MAX_ITEMS,
    MAP_MAX_ENTRIES,
    MARK_KEY,
    NO_DEFAULT_KEY,
    Mark,
    Model,
    Name,
    Text,
    marked,
    rule,
    rules,
)
from pavane_operator.crds.exposure import DisruptionBudgetSpec, NetworkPolicySpec, ServiceType
from pavane_operator.crds.rollout import RolloutSpec
from pavane_operator.crds.scheduling import RESERVED_KEYS, PodSpec
from pavane_operator.crds.tls import TlsSpec
from pavane_operator.crds.values import USUAL, Duration, Quantity

ENV_NAME_PATTERN = "^[-._a-zA-Z][-._a-zA-Z0-9]*$"
ROLLOUT_ID_DIGITS = 16
"""Hex digits of a rollout id: 64 bit, far beyond the number of specs that a resource ever has."""


class DeletionPolicy(StrEnum):
    """What becomes of the volumes when the resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class ResourceRequirements(Model):
    """Computing resources of the container."""

    limits: dict[str, Quantity] | None = Field(
        default=None, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """The most that the container may use."""
    requests: dict[str, Quantity] | None = Field(
        default=None, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.POD)
    )
    """What the scheduler reserves."""


class FieldRef(Model):
    """A field of the pod."""

    field_path: Name
    """Path of the field, for example `status.podIP`."""


class KeyRef(Model):
    """A key of a Secret or ConfigMap in the same namespace."""

    name: Name
    """Name of the object."""
    key: Name
    """Key in its data."""
    optional: bool | None = None
    """Whether the object or key may be missing."""


class EnvSource(Model):
    """Where the value of an environment variable comes from; exactly one field."""

    field_ref: FieldRef | None = None
    """A field of the pod."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""
    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""


class EnvVar(Model):
    """An environment variable of the container."""

    name: Annotated[str, Field(pattern=ENV_NAME_PATTERN, min_length=1, max_length=253)] = Field(
        json_schema_extra=rules(
            rule("!self.startsWith('PAVANE_')", "names starting with PAVANE_ are set by the operator")
        ),
    )
    """Its name; names starting with PAVANE_ are refused."""
    value: Text | None = None
    """Its value."""
    value_from: EnvSource | None = Field(
        default=None,
        json_schema_extra=rules(
            rule(
                "[has(self.fieldRef), has(self.configMapKeyRef), has(self.secretKeyRef)].filter(x, x).size() == 1",
                "set exactly one of fieldRef, configMapKeyRef and secretKeyRef",
            )
        ),
    )
    """Source of the value, instead of `value`."""


class VolumeSpec(Model):
    """The volume of each pod of a role."""

    size: Quantity = Field(
        default="2Gi",
        json_schema_extra=marked(
            Mark.LIVE,
            **rules(
                rule("quantity(string(self)).compareTo(quantity(string(oldSelf))) >= 0", "storage.size cannot shrink")
            ),
        ),
    )
    """Size of the volume. It can grow if the storage class allows it, but never shrink."""
    storage_class_name: Name | None = Field(default=None, json_schema_extra=marked(Mark.POD))
    """Storage class; if absent, the cluster's default."""


class StorageSpec(VolumeSpec):
    """The volume of each pod."""

    retain: bool = Field(default=False, json_schema_extra=marked(Mark.CONTROL))
    """Whether the volumes of a retired generation are kept."""


class CommonSpec(PodSpec):
    """What every resource can be told. Subclasses add the fields of their kind, or of kinds with volumes."""

    image: Name = Field(default="", json_schema_extra=marked(Mark.POD))
    """Image of the pods; if empty, the operator's default image when the generation is created."""
    extra_env: list[EnvVar] = Field(
        default_factory=list,
        max_length=LIST_MAX_ITEMS,
        json_schema_extra=marked(
            Mark.POD,
            **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            **rules(
                rule("self.all(e, !(has(e.value) && has(e.valueFrom)))", "set only one of value and valueFrom"),
            ),
        ),
    )
    """Additional environment variables of the container."""
    termination_grace_period: Duration = Field(
        default="30s",
        json_schema_extra=marked(
            Mark.POD,
            **rules(
                rule(
                    "duration(self) >= duration('1s') && duration(self) <= duration('1h')",
                    "terminationGracePeriod must be between 1s and 1h",
                )
            ),
        ),
    )
    """How long a pod may take to stop, 1s to 1h."""
    tls: TlsSpec = Field(default_factory=TlsSpec)
    """How connections are encrypted."""
    network_policy: NetworkPolicySpec = Field(default_factory=NetworkPolicySpec)
    """Which connections to and from the pods are allowed."""
    pod_disruption_budget: DisruptionBudgetSpec = Field(default_factory=DisruptionBudgetSpec)
    """How many pods may be evicted at once."""
    service_type: ServiceType = Field(default=ServiceType.CLUSTER_IP, json_schema_extra=marked(Mark.LIVE))
    """Type of the public Service."""
    service_annotations: dict[str, Text] = Field(
        default_factory=dict, max_length=MAP_MAX_ENTRIES, json_schema_extra=marked(Mark.LIVE, **RESERVED_KEYS)
    )
    """Annotations of the public Service; keys under `pavane.dev/` and `app.kubernetes.io/` are refused."""
    suspend: bool = Field(default=False, json_schema_extra=marked(Mark.CONTROL, **{NO_DEFAULT_KEY: True}))
    """True stops all pods and keeps their volumes; false starts the same generation again."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """How a new generation becomes the active one."""

    def settled(self, status: Mapping[str, Any]) -> Self:
        """With what counts where it says nothing, as the operator has noted it in the stored status."""
        return self


class SingleRoleSpec(CommonSpec):
    """What a resource whose pods all have the same role can be told beside that."""

    resources: ResourceRequirements = Field(default_factory=ResourceRequirements)
    """Computing resources of the container."""
    config: dict[str, JsonValue] = Field(
        default_factory=dict,
        max_length=MAP_MAX_ENTRIES,
        json_schema_extra=marked(Mark.POD, **{"x-kubernetes-preserve-unknown-fields": True}),
    )
    """Additional settings of the process. With an unknown key the resource is Stalled with reason InvalidConfig."""


class VolumesSpec(SingleRoleSpec):
    """What a resource whose pods have volumes can be told beside that."""

    storage: StorageSpec = Field(default_factory=StorageSpec)
    """The volume of each pod."""
    deletion_policy: DeletionPolicy = Field(default=DeletionPolicy.RETAIN, json_schema_extra=marked(Mark.CONTROL))
    """Whether volumes are kept when the resource is deleted."""


def pod_fields(spec: Model, *, as_written: bool = False) -> dict[str, Any]:
    """All P fields of a spec that differ from their defaults, nested as in the spec, camelCase, JSON values.

    Durations and quantities are in the usual notation, or `as_written` by the user, with what release 0.1.0 counted.
    """
    counted = (Mark.POD, Mark.PLACED) if as_written else (Mark.POD,)
    found: dict[str, Any] = {}
    dumped = spec.model_dump(mode="json", by_alias=True, context=None if as_written else USUAL)
    defaults = _defaults(type(spec), as_written=as_written)
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        alias = info.alias or name
        if isinstance(value, Model):
            inner = pod_fields(value, as_written=as_written)
            if inner:
                found[alias] = inner
        elif _mark(info) in counted and value is not None and dumped[alias] != defaults.get(alias, ...):
            found[alias] = _without_nulls(dumped[alias])
    return found


def rollout_id(kind: str, spec: CommonSpec, *, as_written: bool = False) -> str:
    """The id of what a spec rolls out: equal for specs that differ in no P field, in every release (2.2).

    Release 0.1.0 took it from the values `as_written`, so that its generations have such ids.
    """
    fields = pod_fields(spec, as_written=as_written)
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"pavane-rollout-v1\0{kind}\0{text}".encode()).hexdigest()[:ROLLOUT_ID_DIGITS]


@functools.cache
def _defaults(model: type[Model], *, as_written: bool) -> dict[str, Any]:
    """What the fields of a model are dumped as where nobody sets them."""
    return model.model_construct().model_dump(mode="json", by_alias=True, context=None if as_written else USUAL)


def _mark(info: FieldInfo) -> Mark | None:
    extra = info.json_schema_extra
    return Mark(str(extra[MARK_KEY])) if isinstance(extra, dict) and MARK_KEY in extra else None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value

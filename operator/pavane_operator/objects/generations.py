"""What a generation consists of, the same for all kinds (docs/specs/operator.md 2.2, 4).

It is rendered once, into the revision of the generation, and taken from there for ever: neither a spec change nor a new
operator release touches running pods.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from pavane_operator.crds.common import pod_fields
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.objects.names import Names, StandingNames
from pavane_operator.objects.owned import owned
from pavane_operator.objects.pods import CONFIG_KEY, Port, image_of
from pavane_operator.plan.model import (
    GENERATION_LABEL,
    REPAIR_ANNOTATION,
    ROLLOUT_ID_ANNOTATION,
    SPEC_HASH_DIGITS,
    TEMPLATE_ANNOTATION,
    Child,
    Manifest,
    Problem,
    Repair,
    Resource,
    parse_number,
)

RENDER_VERSION = 1
"""Grows when templates change. For people: what a revision holds is used as it stands, whatever its version."""
RENDER_VERSION_ANNOTATION = "pavane.dev/render-version"


@dataclass(frozen=True, slots=True)
class Content:
    """What a kind puts into a generation."""

    config: Mapping[str, Any]
    """Settings of the process that stay for the life of the generation."""
    template: Mapping[str, Any]
    """Of the pods."""
    ports: Sequence[Port]
    """Of the headless Service, through which pods find each other before they are ready."""
    claims: Sequence[Mapping[str, Any]] = ()
    """Volume claims of each pod."""
    standing: Mapping[StandingNames, Content] = field(default_factory=dict)
    """What the roles that belong to the resource are made of once this generation serves."""
    followers: Mapping[Names, Content] = field(default_factory=dict)
    """The roles of the generation whose pods those of this one lead."""


def revision(
    resource: Resource,
    names: Names,
    defaults: RenderDefaults,
    number: int,
    rollout_id: str,
    content: Content,
    repair: Repair | None,
) -> Manifest:
    """The ControllerRevision `{name}-g{n}`, or `…-r{k}` of a repair; create only."""
    time = 0 if repair is None else repair.time
    labels = names.labels(resource.name, defaults.version, number)
    body = owned(resource, "apps/v1", "ControllerRevision", names.revision(resource.name, number, time), labels)
    annotations = {ROLLOUT_ID_ANNOTATION: rollout_id, RENDER_VERSION_ANNOTATION: str(RENDER_VERSION)}
    stateful_set = _stateful_set(resource, names, number, content)
    if repair is not None:
        annotations[REPAIR_ANNOTATION] = str(time)
        # No server lets these change; where the claims have grown since, they are the truth.
        former = Recorded.of(repair.former).stateful_set
        stateful_set |= {key: former[key] for key in ("volumeClaimTemplates",) if key in former}
    body["metadata"]["annotations"] = annotations
    body["revision"] = number
    body["data"] = {
        "version": defaults.version,
        "image": image_of(resource.spec, defaults),
        "fields": pod_fields(resource.spec),
        **_recorded(resource, names, number, content),
        "statefulSet": stateful_set,
    }
    if content.standing:
        body["data"]["standing"] = {
            each.role: _stamped(
                {**_recorded(resource, each, 0, own), "statefulSet": _stateful_set(resource, each, 0, own)}
            )
            for each, own in content.standing.items()
        }
    if content.followers:
        body["data"]["followers"] = {
            each.role: {
                **_recorded(resource, each, number, own),
                "statefulSet": _stateful_set(resource, each, number, own),
            }
            for each, own in content.followers.items()
        }
    return Manifest.of(body, create_only=True)


def repair_problem(resource: Resource, revision: Child, kept: Sequence[str]) -> Problem | None:
    """Why a repair is refused: one of the fields `kept` differs from what the revision holds."""
    recorded = revision.body["data"]["fields"]
    # Release 0.1.0 recorded them as written.
    wanted = [pod_fields(resource.spec, as_written=as_written) for as_written in (False, True)]
    differing = [name for name in kept if recorded.get(name) not in [fields.get(name) for fields in wanted]]
    if not differing:
        return None
    fields = " and ".join(f"spec.{name}" for name in differing)
    return Problem("InvalidConfig", f"a repair cannot change {fields}: set it back to what {revision.name} holds")


def objects(resource: Resource, names: Names, revision: Child, replicas: int) -> tuple[Manifest, ...]:
    """ConfigMap, headless Service and StatefulSet `{name}-{role}-g{n}` of the generation of this revision."""
    recorded = Recorded.of(revision)
    follower = (revision.body["data"].get("followers") or {}).get(names.role)
    if follower is not None:
        recorded = replace(
            recorded,
            config=str(follower["config"]),
            service=dict(follower["service"]),
            stateful_set=dict(follower["statefulSet"]),
        )
    config = recorded.object(resource, names, "v1", "ConfigMap")
    config["metadata"]["name"] = names.config_map(resource.name, recorded.generation, recorded.repair)
    config["immutable"] = True
    config["data"] = {CONFIG_KEY: recorded.config}
    service = recorded.object(resource, names, "v1", "Service")
    service["spec"] = dict(recorded.service)
    stateful_set = recorded.object(resource, names, "apps/v1", "StatefulSet")
    stateful_set["spec"] = {**recorded.stateful_set, "replicas": replicas}
    return Manifest.of(config), Manifest.of(service), Manifest.of(stateful_set)


def standing_objects(resource: Resource, names: StandingNames, revision: Child, replicas: int) -> tuple[Manifest, ...]:
    """ConfigMap, headless Service and StatefulSet `{name}-{role}` of a role that belongs to the resource."""
    version = Recorded.of(revision).version
    data = revision.body["data"]["standing"][names.role]

    def made(api_version: str, kind: str) -> dict[str, Any]:
        name = names.stateful_set(resource.name)
        return owned(resource, api_version, kind, name, names.labels(resource.name, version))

    config, service, stateful_set = made("v1", "ConfigMap"), made("v1", "Service"), made("apps/v1", "StatefulSet")
    config["data"] = {CONFIG_KEY: data["config"]}
    service["spec"] = dict(data["service"])
    stateful_set["spec"] = {**data["statefulSet"], "replicas": replicas}
    return Manifest.of(config), Manifest.of(service), Manifest.of(stateful_set)


def public_service(
    resource: Resource, names: Names, defaults: RenderDefaults, generation: int, ports: Sequence[Port]
) -> Manifest:
    """Service `{name}`: where clients connect; its selector names the generation that may write."""
    spec = resource.spec
    body = owned(resource, "v1", "Service", resource.name, names.labels(resource.name, defaults.version))
    if spec.service_annotations:
        body["metadata"]["annotations"] = dict(spec.service_annotations)
    body["spec"] = {
        "type": spec.service_type.value,
        "selector": names.selector(resource.name, generation),
        "ports": service_ports(ports),
    }
    return Manifest.of(body, guarded=True)


def service_ports(ports: Sequence[Port]) -> list[dict[str, Any]]:
    """`spec.ports` of a Service in front of these."""
    return [
        {"name": port.name, "port": port.number, "targetPort": port.name, "protocol": port.protocol} for port in ports
    ]


def _recorded(resource: Resource, names: Names, generation: int, content: Content) -> dict[str, Any]:
    """What a revision keeps of a role beside its StatefulSet."""
    return {
        "config": yaml.safe_dump(dict(content.config), sort_keys=True),
        "service": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(resource.name, generation),
            "ports": service_ports(content.ports),
        },
    }


def _stamped(recorded: dict[str, Any]) -> dict[str, Any]:
    """The same, its pods with a mark that differs whenever they, or their config file, do."""
    template = recorded["statefulSet"]["template"]
    text = json.dumps([recorded["config"], template], sort_keys=True, separators=(",", ":"))
    mark = hashlib.sha256(text.encode()).hexdigest()[:SPEC_HASH_DIGITS]
    metadata = template["metadata"]
    marked = {**metadata, "annotations": {**metadata.get("annotations", {}), TEMPLATE_ANNOTATION: mark}}
    return {**recorded, "statefulSet": {**recorded["statefulSet"], "template": {**template, "metadata": marked}}}


def _stateful_set(resource: Resource, names: Names, generation: int, content: Content) -> dict[str, Any]:
    """`spec` of the StatefulSet without the number of pods, which is live."""
    spec = {
        "serviceName": names.stateful_set(resource.name, generation),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 1,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "selector": {"matchLabels": names.selector(resource.name, generation)},
        "template": dict(content.template),
    }
    if content.claims:
        spec["volumeClaimTemplates"] = [dict(claim) for claim in content.claims]
    return spec


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a revision says about its generation."""

    generation: int
    repair: int
    rollout_id: str
    render_version: str
    version: str
    image: str
    config: str
    service: dict[str, Any]
    stateful_set: dict[str, Any]

    @classmethod
    def of(cls, revision: Child) -> Recorded:
        """Raises ValueError for an object that this release cannot use."""
        data = revision.body.get("data") or {}
        try:
            return cls(
                int(revision.labels[GENERATION_LABEL]),
                parse_number(revision.annotations.get(REPAIR_ANNOTATION)) or 0,
                revision.annotations.get(ROLLOUT_ID_ANNOTATION, ""),
                revision.annotations.get(RENDER_VERSION_ANNOTATION, ""),
                str(data["version"]),
                str(data["image"]),
                str(data["config"]),
                dict(data["service"]),
                dict(data["statefulSet"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"revision {revision.name} was written by another release ({error}); run the operator that made it"
            ) from error

    def object(self, resource: Resource, names: Names, api_version: str, kind: str) -> dict[str, Any]:
        """An object of the generation, without content."""
        name = names.stateful_set(resource.name, self.generation)
        labels = names.labels(resource.name, self.version, self.generation)
        body = owned(resource, api_version, kind, name, labels)
        body["metadata"]["annotations"] = {
            ROLLOUT_ID_ANNOTATION: self.rollout_id,
            RENDER_VERSION_ANNOTATION: self.render_version,
        }
        return body

"""RaftCluster's objects, as pure functions of the resource and of the revisions of its generations.

What generation n consists of is rendered once, into revision n, and taken from there for ever: neither a spec change
nor a new operator release touches running pods (docs/specs/operator.md 2.2, 4).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pavane_operator.crds.common import pod_fields
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.crds.tls import TlsMode
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft import keys, names, pod
from pavane_operator.kinds.raft.settings import config_problem, timers_ms
from pavane_operator.objects.budget import disruption_budget
from pavane_operator.objects.owned import owned, service_account
from pavane_operator.objects.policies import Ports, Surroundings, network_policies
from pavane_operator.plan.model import (
    GENERATION_LABEL,
    REPAIR_ANNOTATION,
    ROLLOUT_ID_ANNOTATION,
    UID_LABEL,
    Child,
    Manifest,
    Problem,
    Repair,
    Resource,
    Writers,
    parse_number,
)

RENDER_VERSION = 1
"""Grows when these templates change. For people: what a revision holds is used as it stands, whatever its version."""
RENDER_VERSION_ANNOTATION = "pavane.dev/render-version"
KEPT_BY_REPAIRS = ("clusterId", "secretRef", "stateMachine", "storage", "tls")
"""Fields that volumes, or the members of a generation among each other, depend on (2.13)."""
PORTS = Ports(
    peers=(names.RAFT_PORT,),
    clients=(names.RAFT_PORT, names.PUBLISH_PORT),
    operator=(names.RAFT_PORT, names.STAGE_PORT, names.OPS_PORT),
    control_plane=(names.RAFT_PORT,),
)
"""Who may connect to which port; `publish` is for subscribers, and no peer is one of another."""


class RaftRenderer:
    """Implements `pavane_operator.kinds.port.Renderer`."""

    def __init__(self, defaults: RenderDefaults) -> None:
        self._defaults = defaults

    def references(self, resource: Resource) -> tuple[str, ...]:
        """The Secret with the ident, where the user gives it."""
        reference = _spec(resource).secret_ref
        return () if reference is None else (reference.name,)

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """`InvalidConfig` for settings in `spec.config` that a server would refuse.

        `ReferenceNotReady` while there is no ident where `spec.secretRef` says.
        """
        spec, found = _spec(resource), list[Problem]()
        problem = config_problem(spec)
        if problem is not None:
            found.append(Problem("InvalidConfig", problem))
        if spec.secret_ref is not None:
            try:
                keys.ident_given(spec.secret_ref, references)
            except ValueError as error:
                found.append(Problem("ReferenceNotReady", str(error)))
        return tuple(found)

    def revision(self, resource: Resource, generation: int, rollout_id: str, repair: Repair | None = None) -> Manifest:
        """The ControllerRevision `{name}-g{n}`, or `…-r{k}` of a repair: what this generation is made of, for ever."""
        spec, time = _spec(resource), 0 if repair is None else repair.time
        name = names.revision(resource.name, generation, time)
        body = self._object(resource, "apps/v1", "ControllerRevision", name)
        body["metadata"]["labels"] = names.labels(resource.name, self._defaults.version, generation)
        body["metadata"]["annotations"] = {
            ROLLOUT_ID_ANNOTATION: rollout_id,
            RENDER_VERSION_ANNOTATION: str(RENDER_VERSION),
        }
        image = spec.image or self._defaults.image
        stateful_set = self._stateful_set(resource, spec, generation, image, time)
        if repair is not None:
            body["metadata"]["annotations"][REPAIR_ANNOTATION] = str(repair.time)
            # No server lets these change; where the claims have grown since, they are the truth.
            stateful_set["volumeClaimTemplates"] = _Recorded.of(repair.former).stateful_set["volumeClaimTemplates"]
        body["revision"] = generation
        body["data"] = {
            "version": self._defaults.version,
            "image": image,
            "fields": pod_fields(spec),
            "config": yaml.safe_dump(_server_config(resource, spec, generation), sort_keys=True),
            "service": _headless_service(resource, generation),
            "statefulSet": stateful_set,
        }
        return Manifest.of(body, create_only=True)

    def repair_problem(self, resource: Resource, revision: Child) -> Problem | None:
        """Volumes hold the data of one `clusterId` and `stateMachine`; a storage class is that of the volumes."""
        wanted, recorded = pod_fields(_spec(resource)), revision.body["data"]["fields"]
        differing = [field for field in KEPT_BY_REPAIRS if wanted.get(field) != recorded.get(field)]
        if not differing:
            return None
        fields = " and ".join(f"spec.{field}" for field in differing)
        return Problem("InvalidConfig", f"a repair cannot change {fields}: set it back to what {revision.name} holds")

    def labels(self, resource: Resource) -> Mapping[str, str]:
        """Labels of an object of the whole cluster."""
        return names.labels(resource.name, self._defaults.version)

    def dns_names(self, resource: Resource) -> tuple[str, ...]:
        """The public Service, and the pods of the generations that stand in the status."""
        status = resource.status
        numbers = (status.active_generation, status.next_generation) if status is not None else ()
        generations = [number for number in numbers if number]
        return names.dns_names(resource.name, resource.namespace, generations)

    def shared(self, resource: Resource, writers: Writers) -> tuple[Manifest, ...]:
        """What all generations share: Secret `{name}-keys` (whoever creates it first decides), ConfigMap `{name}-live`,
        ServiceAccount, NetworkPolicies and PodDisruptionBudget."""
        labels = self.labels(resource)
        secret = self._object(resource, "v1", "Secret", keys.name_of(resource.name))
        secret["type"] = "Opaque"
        spec = _spec(resource)
        secret["data"] = keys.generated(
            resource.uid,
            self._defaults.secret_key,
            encrypted=spec.tls.mode is not TlsMode.DISABLED,
            ident=spec.secret_ref is None,
        )
        live = self._object(resource, "v1", "ConfigMap", f"{resource.name}-live")
        kept = {"snapshot_entries": spec.snapshot.entries, "log_retention": spec.snapshot.log_retention}
        live["data"] = {pod.LIVE_KEY: yaml.safe_dump(kept)}
        pods = names.all_pods(resource.name)
        surroundings = Surroundings(self._defaults.platform_namespace, self._defaults.otlp_endpoint)
        spare = (spec.replicas - 1) // 2
        return (
            Manifest.of(secret, create_only=True),
            Manifest.of(live),
            service_account(resource, labels),
            *network_policies(resource, labels, pods, PORTS, surroundings),
            *disruption_budget(resource, names.ROLE, labels, pods, writers, spare=spare),
        )

    def public_service(self, resource: Resource, generation: int) -> Manifest:
        """Service `{name}`: where clients connect; its selector names the generation that may write."""
        spec = _spec(resource)
        body = self._object(resource, "v1", "Service", resource.name)
        if spec.service_annotations:
            body["metadata"]["annotations"] = dict(spec.service_annotations)
        body["spec"] = {
            "type": spec.service_type.value,
            "selector": names.selector(resource.name, generation),
            "ports": [_port("raft", names.RAFT_PORT), _port("publish", names.PUBLISH_PORT)],
        }
        return Manifest.of(body)

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-server-g{n}` of the generation of this revision."""
        recorded = _Recorded.of(revision)
        config = _generation_object(resource, recorded, "v1", "ConfigMap")
        config["metadata"]["name"] = names.config_map(resource.name, recorded.generation, recorded.repair)
        config["immutable"] = True
        config["data"] = {pod.CONFIG_KEY: recorded.config}
        service = _generation_object(resource, recorded, "v1", "Service")
        service["spec"] = dict(recorded.service)
        stateful_set = _generation_object(resource, recorded, "apps/v1", "StatefulSet")
        stateful_set["spec"] = {**recorded.stateful_set, "replicas": _spec(resource).replicas}
        return Manifest.of(config), Manifest.of(service), Manifest.of(stateful_set)

    def image(self, revision: Child) -> str:
        """The image that the revision recorded."""
        return _Recorded.of(revision).image

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        """Nothing, but in a bootstrap the members of the first configuration (docs/specs/raft.md 8.4)."""
        if not bootstrap:
            return {}
        members = names.members(resource.name, resource.namespace, generation, _spec(resource).replicas)
        return {"bootstrap": "entry", "initial": json.dumps(members)}

    def _stateful_set(
        self, resource: Resource, spec: RaftClusterSpec, generation: int, image: str, repair: int
    ) -> dict[str, Any]:
        """`spec` of the StatefulSet without the number of pods, which is live."""
        version = self._defaults.version
        selector = names.selector(resource.name, generation)
        return {
            "serviceName": names.stateful_set(resource.name, generation),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": selector},
            "template": pod.template(
                pod.PodInputs(
                    name=resource.name,
                    namespace=resource.namespace,
                    generation=generation,
                    image=image,
                    version=version,
                    otlp_endpoint=self._defaults.otlp_endpoint,
                    spec=spec,
                    repair=repair,
                )
            ),
            "volumeClaimTemplates": [_claim(resource, spec, names.labels(resource.name, version, generation))],
        }

    def _object(self, resource: Resource, api_version: str, kind: str, name: str) -> dict[str, Any]:
        return owned(resource, api_version, kind, name, self.labels(resource))


@dataclass(frozen=True, slots=True)
class _Recorded:
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
    def of(cls, revision: Child) -> _Recorded:
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


def _spec(resource: Resource) -> RaftClusterSpec:
    assert isinstance(resource.spec, RaftClusterSpec)  # noqa: S101 - the registry parses by the kind's model
    return resource.spec


def _generation_object(resource: Resource, recorded: _Recorded, api_version: str, kind: str) -> dict[str, Any]:
    name = names.stateful_set(resource.name, recorded.generation)
    labels = names.labels(resource.name, recorded.version, recorded.generation)
    body = owned(resource, api_version, kind, name, labels)
    body["metadata"]["annotations"] = {
        ROLLOUT_ID_ANNOTATION: recorded.rollout_id,
        RENDER_VERSION_ANNOTATION: recorded.render_version,
    }
    return body


def _headless_service(resource: Resource, generation: int) -> dict[str, Any]:
    """`spec` of the headless Service, through which pods find each other before they are ready."""
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.selector(resource.name, generation),
        "ports": [
            _port("raft", names.RAFT_PORT),
            _port("publish", names.PUBLISH_PORT),
            _port("stage", names.STAGE_PORT),
            _port("ops", names.OPS_PORT),
        ],
    }


def _server_config(resource: Resource, spec: RaftClusterSpec, generation: int) -> dict[str, Any]:
    """The server's settings by the keys of docs/specs/raft.md 16; times in milliseconds."""
    return {
        **spec.config,
        "cluster_id": spec.cluster_id or resource.name,
        "machine": spec.state_machine.value,
        "seeds": names.seeds(resource.name, resource.namespace, generation),
        **timers_ms(spec),
    }


def _claim(resource: Resource, spec: RaftClusterSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    size = str(spec.storage.size)  # as it is now: a server refuses to change it, the claims themselves grow
    claim: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if spec.storage.storage_class_name is not None:
        claim["storageClassName"] = spec.storage.storage_class_name
    return {"metadata": {"name": "data", "labels": {**labels, UID_LABEL: resource.uid}}, "spec": claim}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}

"""RaftCluster's objects, as pure functions of the resource and of the revisions of its generations.

Pods of generation n are rendered from revision n for ever, never from the live spec, so neither a spec change nor a new
operator release touches running pods (docs/specs/operator.md 2.2, 4).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from pavane_operator.crds.common import pod_fields
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.crds.values import parse_duration
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft import names, pod
from pavane_operator.kinds.raft.settings import config_problem, timers_ms
from pavane_operator.plan.model import (
    ROLLOUT_ID_ANNOTATION,
    UID_LABEL,
    Child,
    Manifest,
    Problem,
    Resource,
)

API_VERSION = "pavane.dev/v1alpha1"
RENDER_VERSION = 1
"""Grows when these templates change; a revision is rendered for ever by the templates of its version."""
RENDER_VERSION_ANNOTATION = "pavane.dev/render-version"
SECRET_BYTES = 16
"""Of the cluster secret, written as 32 hex digits."""


class RaftRenderer:
    """Implements `pavane_operator.kinds.port.Renderer`."""

    def __init__(self, defaults: RenderDefaults) -> None:
        self._defaults = defaults

    def problems(self, resource: Resource) -> tuple[Problem, ...]:
        """`InvalidConfig` for settings in `spec.config` that a server would refuse."""
        problem = config_problem(_spec(resource))
        return () if problem is None else (Problem("InvalidConfig", problem),)

    def revision(self, resource: Resource, generation: int, rollout_id: str) -> Manifest:
        """The ControllerRevision `{name}-g{n}`: what this generation is made of, for ever."""
        spec = _spec(resource)
        body = self._object(resource, "apps/v1", "ControllerRevision", names.revision(resource.name, generation))
        body["metadata"]["labels"] = names.labels(resource.name, self._defaults.version, generation)
        body["metadata"]["annotations"] = {
            ROLLOUT_ID_ANNOTATION: rollout_id,
            RENDER_VERSION_ANNOTATION: str(RENDER_VERSION),
        }
        body["revision"] = generation
        body["data"] = {
            "renderVersion": RENDER_VERSION,
            "version": self._defaults.version,
            "image": spec.image or self._defaults.image,
            "otlpEndpoint": self._defaults.otlp_endpoint,
            "fields": pod_fields(spec),
        }
        return Manifest.of(body, create_only=True)

    def shared(self, resource: Resource) -> tuple[Manifest, ...]:
        """Secret `{name}-keys` (whoever creates it first decides) and ConfigMap `{name}-live`."""
        keys = self._object(resource, "v1", "Secret", f"{resource.name}-keys")
        keys["type"] = "Opaque"
        keys["data"] = {pod.SECRET_KEY: base64.b64encode(self._secret(resource.uid).encode()).decode()}
        live = self._object(resource, "v1", "ConfigMap", f"{resource.name}-live")
        live["data"] = {"live.yaml": "{}\n"}
        return (Manifest.of(keys, create_only=True), Manifest.of(live))

    def public_service(self, resource: Resource, generation: int) -> Manifest:
        """Service `{name}`: where clients connect; its selector names the generation that may write."""
        body = self._object(resource, "v1", "Service", resource.name)
        body["spec"] = {
            "type": "ClusterIP",
            "selector": names.selector(resource.name, generation),
            "ports": [_port("raft", names.RAFT_PORT), _port("publish", names.PUBLISH_PORT)],
        }
        return Manifest.of(body)

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-server-g{n}` of the generation of this revision."""
        recorded = _Recorded.of(revision)
        return (
            self._config_map(resource, recorded),
            self._headless_service(resource, recorded),
            self._stateful_set(resource, recorded),
        )

    def image(self, revision: Child) -> str:
        """The image that the revision recorded."""
        return _Recorded.of(revision).image

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        """Nothing, but in a bootstrap the members of the first configuration (docs/specs/raft.md 8.4)."""
        if not bootstrap:
            return {}
        members = names.members(resource.name, resource.namespace, generation, _spec(resource).replicas)
        return {"bootstrap": "entry", "initial": json.dumps(members)}

    def _config_map(self, resource: Resource, recorded: _Recorded) -> Manifest:
        body = self._generation_object(resource, recorded, "v1", "ConfigMap")
        body["immutable"] = True
        body["data"] = {pod.CONFIG_KEY: yaml.safe_dump(_server_config(resource, recorded), sort_keys=True)}
        return Manifest.of(body)

    def _headless_service(self, resource: Resource, recorded: _Recorded) -> Manifest:
        body = self._generation_object(resource, recorded, "v1", "Service")
        body["spec"] = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(resource.name, recorded.generation),
            "ports": [
                _port("raft", names.RAFT_PORT),
                _port("publish", names.PUBLISH_PORT),
                _port("stage", names.STAGE_PORT),
                _port("ops", names.OPS_PORT),
            ],
        }
        return Manifest.of(body)

    def _stateful_set(self, resource: Resource, recorded: _Recorded) -> Manifest:
        spec = _spec(resource)
        template = pod.template(
            pod.PodInputs(
                name=resource.name,
                namespace=resource.namespace,
                generation=recorded.generation,
                image=recorded.image,
                version=recorded.version,
                otlp_endpoint=recorded.otlp_endpoint,
                resources=recorded.spec.resources.model_dump(mode="json", by_alias=True, exclude_none=True),
                extra_env=[
                    variable.model_dump(mode="json", by_alias=True, exclude_none=True)
                    for variable in recorded.spec.extra_env
                ],
                termination_grace_s=int(parse_duration(recorded.spec.termination_grace_period).total_seconds()),
            )
        )
        body = self._generation_object(resource, recorded, "apps/v1", "StatefulSet")
        body["spec"] = {
            "replicas": spec.replicas,
            "serviceName": names.stateful_set(resource.name, recorded.generation),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": names.selector(resource.name, recorded.generation)},
            "template": template,
            "volumeClaimTemplates": [_claim(resource, recorded, str(spec.storage.size))],
        }
        return Manifest.of(body)

    def _generation_object(
        self, resource: Resource, recorded: _Recorded, api_version: str, kind: str
    ) -> dict[str, Any]:
        name = names.stateful_set(resource.name, recorded.generation)
        body = self._object(resource, api_version, kind, name)
        body["metadata"]["labels"] = names.labels(resource.name, recorded.version, recorded.generation)
        body["metadata"]["annotations"] = {
            ROLLOUT_ID_ANNOTATION: recorded.rollout_id,
            RENDER_VERSION_ANNOTATION: str(recorded.render_version),
        }
        return body

    def _object(self, resource: Resource, api_version: str, kind: str, name: str) -> dict[str, Any]:
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": resource.namespace,
                "labels": names.labels(resource.name, self._defaults.version),
                "ownerReferences": [
                    {
                        "apiVersion": API_VERSION,
                        "kind": resource.kind,
                        "name": resource.name,
                        "uid": resource.uid,
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ],
            },
        }

    def _secret(self, uid: str) -> str:
        return hashlib.blake2b(uid.encode(), key=self._defaults.secret_key, digest_size=SECRET_BYTES).hexdigest()


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What a revision says about its generation."""

    generation: int
    rollout_id: str
    render_version: int
    version: str
    image: str
    otlp_endpoint: str | None
    spec: RaftClusterSpec
    """Only its P fields are those of the generation."""

    @classmethod
    def of(cls, revision: Child) -> _Recorded:
        """Raises ValueError for an object that this release cannot render."""
        data = revision.body.get("data") or {}
        generation = revision.generation
        if generation is None or data.get("renderVersion") != RENDER_VERSION:
            raise ValueError(
                f"revision {revision.name} was written by another release (render version {data.get('renderVersion')});"
                " run the operator release that made it"
            )
        try:
            spec = RaftClusterSpec.model_validate(data["fields"])
        except ValidationError as error:
            raise ValueError(
                f"revision {revision.name} holds fields that this release does not know: {error}"
            ) from error
        return cls(
            generation,
            revision.annotations.get(ROLLOUT_ID_ANNOTATION, ""),
            RENDER_VERSION,
            str(data["version"]),
            str(data["image"]),
            data.get("otlpEndpoint"),
            spec,
        )


def _spec(resource: Resource) -> RaftClusterSpec:
    assert isinstance(resource.spec, RaftClusterSpec)  # noqa: S101 - the registry parses by the kind's model
    return resource.spec


def _server_config(resource: Resource, recorded: _Recorded) -> dict[str, Any]:
    """The server's settings by the keys of docs/specs/raft.md 16; times in milliseconds."""
    return {
        **recorded.spec.config,
        "cluster_id": recorded.spec.cluster_id or resource.name,
        "machine": recorded.spec.state_machine.value,
        "seeds": names.seeds(resource.name, resource.namespace, recorded.generation),
        **timers_ms(recorded.spec),
    }


def _claim(resource: Resource, recorded: _Recorded, size: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    if recorded.spec.storage.storage_class_name is not None:
        spec["storageClassName"] = recorded.spec.storage.storage_class_name
    labels = {**names.labels(resource.name, recorded.version, recorded.generation), UID_LABEL: resource.uid}
    return {"metadata": {"name": "data", "labels": labels}, "spec": spec}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}

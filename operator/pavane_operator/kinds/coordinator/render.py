"""A Coordinator's objects, as pure functions of the resource and of the revisions of generations (operator.md 4)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pavane.pods.coordinator_settings import PEERS_FILE
from pavane.runtime.certificates import AUTHORITIES_FILE
from pavane_operator.crds.coordinator import CoordinatorSpec
from pavane_operator.crds.tls import TlsMode
from pavane_operator.kinds.base import BaseRenderer
from pavane_operator.kinds.coordinator import names, pod
from pavane_operator.kinds.waltz.leaving import secrets
from pavane_operator.kinds.waltz.names import SERVERS as WALTZ_SERVERS
from pavane_operator.kinds.waltz.names import WALTZ_PORT, client_secret
from pavane_operator.objects import generations
from pavane_operator.objects.claims import claim_spec
from pavane_operator.objects.generations import Content
from pavane_operator.objects.pods import OPS, STAGE, Inputs
from pavane_operator.objects.policies import Ports
from pavane_operator.plan.model import UID_LABEL, Child, Manifest, Problem, Resource, Writers
from pavane_operator.plan.port import NOTHING

OTHERS = "Secret/"
"""So begins in `references` what Coordinators of the namespace show on their links (`Kind.trusts_others`)."""
KEPT_BY_REPAIRS = ("instanceName", "log", "storage")
"""Fields that the volume or the partition depends on (2.13)."""
PORTS = Ports(
    peers=(names.LINK,),
    clients=(names.LINK, names.HTTP),
    operator=(STAGE, OPS),
    control_plane=(names.HTTP, OPS),
    of_clients=(names.LINK,),
)
"""Who may connect to which port: other immortals are clients, and are called."""


class CoordinatorRenderer(BaseRenderer[CoordinatorSpec]):
    """Implements `pavane_operator.plan.port.Renderer`."""

    model = CoordinatorSpec
    names = names.NAMES
    ports = PORTS
    kept_by_repairs = KEPT_BY_REPAIRS

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        """The Secrets with which that log is reached."""
        log = self._spec(resource).log
        return () if log is None else secrets(log.waltz_cluster_ref.name)

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """`ReferenceNotReady` without the log or its Secret."""
        log = self._spec(resource).log
        if log is None:
            return ()
        name = log.waltz_cluster_ref.name
        if names.target(log) not in references:
            return (Problem("ReferenceNotReady", f"there is no WaltzCluster {name}"),)
        if client_secret(name) not in references:
            return (Problem("ReferenceNotReady", f"WaltzCluster {name} has no Secret {client_secret(name)} yet"),)
        return ()

    def content(self, inputs: Inputs, spec: CoordinatorSpec) -> Content:
        """The immortal."""
        resource = inputs.resource
        return Content(
            config={
                "instance": spec.instance_name or resource.name,
                "version": spec.application.version,
                "log": names.folder(resource.name, resource.uid),
                "peers": dict(spec.peers),
                "checkpoint_mib": spec.checkpoint_mib,
                **({} if spec.log is None else {"partition": spec.log.partition}),
            },
            template=pod.template(inputs, spec),
            ports=(names.LINK, names.HTTP, STAGE, OPS),
        )

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """What all generations share: the volume's claim if there is one, ConfigMap `{name}-live`, also with the
        authorities that count on links, ServiceAccount, NetworkPolicies and PodDisruptionBudget."""
        spec = self._spec(resource)
        logs = () if spec.log is None else (WALTZ_SERVERS.of_resource(spec.log.waltz_cluster_ref.name),)
        return (
            *(() if logs else (_claim(resource, spec, self.labels(resource)),)),
            self._live(resource, files=_peers(resource, references)),
            *self._around(
                resource,
                writers,
                spare=0,
                waiting=spec.replicas - 1,
                selected=self.names.of_resource(resource.name),
                targets=tuple((log, (WALTZ_PORT,)) for log in logs),
            ),
        )

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-instance-g{n}` of the generation of this revision."""
        return generations.objects(resource, names.NAMES, revision, self._spec(resource).replicas)


def _peers(resource: Resource, references: Mapping[str, Any]) -> dict[str, str]:
    """The authorities of all Coordinators of the namespace for which the operator keeps one."""
    if resource.spec.tls.mode is not TlsMode.SELF_SIGNED:
        return {}
    found = [
        references[name].get("data", {}).get(AUTHORITIES_FILE, "") for name in references if name.startswith(OTHERS)
    ]
    return {PEERS_FILE: "".join(sorted(base64.b64decode(each).decode() for each in found))}


def _claim(resource: Resource, spec: CoordinatorSpec, labels: Mapping[str, str]) -> Manifest:
    """The claim of the volume. Nobody owns it: what becomes of it is `deletionPolicy`'s business."""
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim(resource),
            "namespace": resource.namespace,
            "labels": {**labels, UID_LABEL: resource.uid},
        },
        "spec": claim_spec(spec.storage, "ReadWriteMany" if spec.storage.shared else "ReadWriteOnce"),
    }
    return Manifest.of(body, create_only=True)

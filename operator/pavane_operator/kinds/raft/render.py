"""RaftCluster's objects, as pure functions of the resource and of the revisions of its generations.

What generation n consists of is rendered once, into revision n, and taken from there for ever: neither a spec change
nor a new operator release touches running pods (docs/specs/operator.md 2.2, 4).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from pavane.application.finding import FILE, Connection
from pavane_operator.crds.backup import DEFINITION as BACKUP
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.crds.tls import TlsMode
from pavane_operator.kinds.base import BaseRenderer
from pavane_operator.kinds.raft import keys, names, pod
from pavane_operator.kinds.raft.settings import config_problem, timers_ms
from pavane_operator.objects import generations
from pavane_operator.objects.claims import pod_claim
from pavane_operator.objects.generations import Content
from pavane_operator.objects.pods import OPS, STAGE, Inputs
from pavane_operator.objects.policies import Ports
from pavane_operator.plan.model import Child, Manifest, Problem, Resource, Writers
from pavane_operator.plan.port import NOTHING

KEPT_BY_REPAIRS = ("clusterId", "secretRef", "stateMachine", "storage", "tls")
"""Fields that volumes, or the members of a generation among each other, depend on (2.13)."""
PORTS = Ports(
    peers=(pod.RAFT,),
    clients=(pod.RAFT, pod.PUBLISH),
    operator=(pod.RAFT, STAGE, OPS),
    control_plane=(pod.RAFT, OPS),
    helpers=BACKUP.name.lower(),
)
"""Who may connect to which port; `publish` is for subscribers, and no peer is one of another."""


class RaftRenderer(BaseRenderer[RaftClusterSpec]):
    """Implements `pavane_operator.plan.port.Renderer`."""

    model = RaftClusterSpec
    names = names.NAMES
    ports = PORTS
    kept_by_repairs = KEPT_BY_REPAIRS

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        """The Secret with the keys, of which applications get a client's, and the user's own with the ident."""
        reference = self._spec(resource).secret_ref
        return (keys.name_of(resource.name), *(() if reference is None else (reference.name,)))

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """`InvalidConfig` for settings in `spec.config` that a server would refuse.

        `ReferenceNotReady` while there is no ident where `spec.secretRef` says.
        """
        spec, found = self._spec(resource), list[Problem]()
        problem = config_problem(spec)
        if problem is not None:
            found.append(Problem("InvalidConfig", problem))
        if spec.secret_ref is not None:
            try:
                keys.ident_given(spec.secret_ref, references)
            except ValueError as error:
                found.append(Problem("ReferenceNotReady", str(error)))
        return tuple(found)

    def content(self, inputs: Inputs, spec: RaftClusterSpec) -> Content:
        """The servers."""
        return Content(
            config=_server_config(inputs.resource, spec, inputs.generation),
            template=pod.template(inputs, spec),
            ports=(pod.RAFT, pod.PUBLISH, STAGE, OPS),
            claims=(pod_claim(inputs, self.names, spec.storage),),
        )

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """What all generations share: Secrets `{name}-keys` (whoever creates it first decides) and `{name}-client`,
        ConfigMap `{name}-live`, ServiceAccount, NetworkPolicies and PodDisruptionBudget."""
        spec = self._spec(resource)
        made = keys.generated(
            resource.uid,
            self._defaults.secret_key,
            encrypted=spec.tls.mode is not TlsMode.DISABLED,
            ident=spec.secret_ref is None,
        )
        kept = {"snapshot_entries": spec.snapshot.entries, "log_retention": spec.snapshot.log_retention}
        return (
            self._secret(resource, keys.name_of(resource.name), made, create_only=True),
            *self._client(resource, references),
            self._live(resource, kept),
            *self._around(resource, writers, spare=(spec.replicas - 1) // 2),
        )

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-server-g{n}` of the generation of this revision."""
        return generations.objects(resource, names.NAMES, revision, self._spec(resource).replicas)

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        """Nothing, but in a bootstrap the members of the first configuration (docs/specs/raft.md 8.4)."""
        if not bootstrap:
            return {}
        members = names.members(resource.name, resource.namespace, generation, self._spec(resource).replicas)
        return {"bootstrap": "entry", "initial": json.dumps(members)}

    def _client(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """Secret `{name}-client`, once there are the keys that it is made of; what was made stays meanwhile."""
        secret = references.get(keys.name_of(resource.name))
        if secret is None:
            return ()
        try:
            known = keys.known(secret, self._spec(resource).secret_ref, references)
        except ValueError:
            return ()  # `problems` tells of the user's ident, the promotion of keys that were lost
        url = names.public_url(resource.name, resource.namespace)
        connection = Connection(resource.name, (url,), known.ident, known.curve)
        content = base64.b64encode(connection.text().encode()).decode()
        return (self._secret(resource, names.client_secret(resource.name), {FILE: content}),)


def _server_config(resource: Resource, spec: RaftClusterSpec, generation: int) -> dict[str, Any]:
    """The server's settings by the keys of docs/specs/raft.md 16; times in milliseconds."""
    return {
        **spec.config,
        "cluster_id": spec.cluster_id or resource.name,
        "machine": spec.state_machine.value,
        "seeds": names.seeds(resource.name, resource.namespace, generation),
        **timers_ms(spec),
    }

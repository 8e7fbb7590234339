"""A ComputeCluster's objects, as pure functions of the resource and of the revisions of generations (operator.md 4)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pavane_operator.crds.computecluster import ComputeClusterSpec
from pavane_operator.crds.values import parse_duration
from pavane_operator.kinds.base import BaseRenderer
from pavane_operator.kinds.computecluster import executors, names
from pavane_operator.kinds.computecluster.scripts import faults
from pavane_operator.kinds.port import NOTHING
from pavane_operator.kinds.waltz.names import SERVERS as WALTZ_SERVERS
from pavane_operator.kinds.waltz.names import WALTZ_PORT, client_secret
from pavane_operator.objects import generations, pods
from pavane_operator.objects.budget import disruption_budget
from pavane_operator.objects.generations import Content
from pavane_operator.objects.owned import owned, service_account
from pavane_operator.objects.pods import LIVE_KEY, OPS, STAGE, Inputs, Mount, variable
from pavane_operator.objects.policies import Ports, network_policies
from pavane_operator.plan.model import Child, Manifest, Problem, Repair, Resource, Writers

KEPT_BY_REPAIRS = ("waltzClusterRef", "partitions")
"""Fields that the chains in the log depend on (2.13)."""
REPLICAS = 1
PORTS = Ports(peers=(), clients=(), operator=(STAGE, OPS), control_plane=(OPS,))
"""Who may connect to which port."""
CLIENT_MOUNT = "/etc/pavane/waltz"


class ComputeRenderer(BaseRenderer):
    """Implements `pavane_operator.kinds.port.Renderer`."""

    names = names.NAMES
    kept_by_repairs = KEPT_BY_REPAIRS

    def targets(self, resource: Resource) -> tuple[str, ...]:
        """The WaltzCluster."""
        return (names.target(_spec(resource)),)

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        """The Secret with which applications reach the log."""
        return (client_secret(_spec(resource).waltz_cluster_ref.name),)

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """`InvalidConfig` with line and column for a script that is refused; `ReferenceNotReady` without the log."""
        spec = _spec(resource)
        found = [
            Problem("InvalidConfig", text)
            for text in faults(spec.scripts, spec.partitions.ticks, spec.partitions.views)
        ]
        if not spec.scripts and (resource.status is None or resource.status.active_generation is None):
            found.append(Problem("ReferenceNotReady", "there is no Dataflow for it yet, and no script in spec.scripts"))
        log = spec.waltz_cluster_ref.name
        if names.target(spec) not in references:
            found.append(Problem("ReferenceNotReady", f"there is no WaltzCluster {log}"))
        elif client_secret(log) not in references:
            found.append(Problem("ReferenceNotReady", f"WaltzCluster {log} has no Secret {client_secret(log)} yet"))
        return tuple(found)

    def revision(self, resource: Resource, generation: int, rollout_id: str, repair: Repair | None = None) -> Manifest:
        """The ControllerRevision `{name}-g{n}`, or `…-r{k}` of a repair: what this generation is made of, for ever."""
        spec, defaults = _spec(resource), self._defaults
        inputs = Inputs.of(resource, generation, defaults, repair)
        template = pods.template(
            inputs,
            names.NAMES,
            (),
            [Mount("log", CLIENT_MOUNT, secret=client_secret(spec.waltz_cluster_ref.name))],
            [variable("PAVANE_WALTZ_CLIENT", CLIENT_MOUNT)],
            resources=spec.resources,
        )
        content = Content(
            config={
                "scripts": dict(spec.scripts),
                "ticks": spec.partitions.ticks,
                "views": spec.partitions.views,
                "engine": spec.engine.value,
                "interval_ms": parse_duration(spec.interval) // timedelta(milliseconds=1),
                **executors.config(spec, inputs),
            },
            template=executors.may_make_pods(spec, template),
            ports=(STAGE, OPS),
        )
        return generations.revision(resource, names.NAMES, defaults, generation, rollout_id, content, repair)

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """What all generations share: ConfigMap `{name}-live`, ServiceAccount, NetworkPolicies, PodDisruptionBudget."""
        labels = self.labels(resource)
        live = owned(resource, "v1", "ConfigMap", f"{resource.name}-live", labels)
        live["data"] = {LIVE_KEY: "{}\n"}
        own = names.NAMES.of_resource(resource.name)
        log = WALTZ_SERVERS.of_resource(_spec(resource).waltz_cluster_ref.name)
        selector = names.NAMES.all_pods(resource.name)
        return (
            Manifest.of(live),
            service_account(resource, labels),
            *network_policies(resource, labels, own, PORTS, self._surroundings, ((log, (WALTZ_PORT,)),)),
            *disruption_budget(resource, names.NAMES.role, labels, selector, writers, spare=0),
            *executors.shared(resource, _spec(resource), labels),
        )

    def public_service(self, resource: Resource, generation: int) -> Manifest:
        """Service `{name}`: the pod that writes the views."""
        return generations.public_service(resource, names.NAMES, self._defaults, generation, (OPS,))

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-replica-g{n}` of the generation of this revision."""
        return generations.objects(resource, names.NAMES, revision, REPLICAS)


def _spec(resource: Resource) -> ComputeClusterSpec:
    assert isinstance(resource.spec, ComputeClusterSpec)  # noqa: S101 - the registry parses by the kind's model
    return resource.spec

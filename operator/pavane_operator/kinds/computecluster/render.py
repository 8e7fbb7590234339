"""A ComputeCluster's objects, as pure functions of the resource and of the revisions of generations (operator.md 4)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from pavane.pods.compute_settings import LEFT
from pavane_operator.crds.common import ResourceRequirements
from pavane_operator.crds.computecluster import ComputeClusterSpec, ComputeResources
from pavane_operator.crds.status import Result, State
from pavane_operator.crds.values import parse_duration, parse_quantity
from pavane_operator.kinds.base import BaseRenderer
from pavane_operator.kinds.computecluster import executors, names
from pavane_operator.kinds.computecluster.scripts import faults
from pavane_operator.kinds.waltz.leaving import secrets
from pavane_operator.kinds.waltz.names import SERVERS as WALTZ_SERVERS
from pavane_operator.kinds.waltz.names import WALTZ_PORT, client_secret
from pavane_operator.objects import generations, pods
from pavane_operator.objects.budget import disruption_budget
from pavane_operator.objects.generations import Content, Recorded
from pavane_operator.objects.names import Names
from pavane_operator.objects.pods import OPS, STAGE, Inputs, Mount, variable
from pavane_operator.objects.policies import Ports, rule_from
from pavane_operator.plan.model import Child, Manifest, Problem, Resource, Writers
from pavane_operator.plan.port import NOTHING

KEPT_BY_REPAIRS = ("waltzClusterRef", "partitions", "replicas")
"""Fields that the chains in the log, or the pods of a generation among each other, depend on (2.13)."""
CONTROLLERS = 1
PORTS = Ports(peers=(), clients=(), operator=(STAGE, OPS), control_plane=(OPS,))
"""Who may connect to which port."""
CLIENT_MOUNT = "/etc/pavane/waltz"
STATE_FOLDER = f"{pods.TEMPORARY_MOUNT}/views"
"""Of the pod: it outlives the container."""
STATE_SHARE = Decimal("0.5")
"""Of a pod's memory for the state of views, which the scripts share, and of its disk for what they spill; the rest is
for the process, and for the files of the state."""
STATE_MIB_MIN = 32


class ComputeRenderer(BaseRenderer[ComputeClusterSpec]):
    """Implements `pavane_operator.plan.port.Renderer`."""

    model = ComputeClusterSpec
    names = names.CONTROLLER
    ports = PORTS
    kept_by_repairs = KEPT_BY_REPAIRS

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        """The Secrets with which the log is reached."""
        return secrets(self._spec(resource).waltz_cluster_ref.name)

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """`InvalidConfig` with line and column for a script that is refused; `ReferenceNotReady` without the log."""
        spec = self._spec(resource)
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

    def content(self, inputs: Inputs, spec: ComputeClusterSpec) -> Content:
        """The pod that writes the views, and with replicas those that compute them."""
        resource = inputs.resource
        common = {
            "ticks": spec.partitions.ticks,
            "views": spec.partitions.views,
            "interval_ms": parse_duration(spec.interval) // timedelta(milliseconds=1),
        }
        scripts = {"scripts": dict(spec.scripts)}
        computing = {"engine": spec.engine.value, **executors.config(spec, inputs)}
        if not spec.replicas:
            return _computing(inputs, names.CONTROLLER, spec, {**common, **scripts, **computing})
        addresses = names.replica_addresses(resource.name, resource.namespace, inputs.generation, spec.replicas)
        replicas = _computing(inputs, names.REPLICAS, spec, {**common, "scripts": {}, **computing})
        return Content(
            config={**common, **scripts, "replicas": addresses},
            template=_template(inputs, names.CONTROLLER, spec, ComputeResources()),
            ports=(STAGE, OPS),
            followers={names.REPLICAS: replicas},
        )

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """What all generations share: ConfigMap `{name}-live`, ServiceAccount, NetworkPolicies, PodDisruptionBudget."""
        spec, labels = self._spec(resource), self.labels(resource)
        log = WALTZ_SERVERS.of_resource(spec.waltz_cluster_ref.name)
        replicas = names.REPLICAS.all_pods(resource.name)
        # Also without replicas now: a former generation may have some.
        targets = ((log, (WALTZ_PORT,)), (replicas, (names.COMPUTE_PORT,)))
        return (
            self._live(resource),
            *self._around(resource, writers, spare=0, selected=self.names.of_resource(resource.name), targets=targets),
            *_replica_budget(resource, spec, labels, writers),
            *executors.shared(resource, spec, labels),
        )

    def public_service(self, resource: Resource, generation: int) -> Manifest:
        """Service `{name}`: the pod that writes the views."""
        return generations.public_service(resource, self.names, self._defaults, generation, (OPS,))

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        """From which later generation this one takes the right to write back, if it does."""
        return left_of(resource, generation)

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-controller-g{n}` of the generation of this revision, and
        with replicas the same of `{name}-replica-g{n}`, and the NetworkPolicy of these."""
        controller = generations.objects(resource, names.CONTROLLER, revision, CONTROLLERS)
        replicas = int(revision.body["data"]["fields"].get("replicas", 0))
        if not replicas:
            return controller
        led = generations.objects(resource, names.REPLICAS, revision, replicas)
        policy = (_replica_policy(resource, revision),) if resource.spec.network_policy.enabled else ()
        return (*policy, *led, *controller)


def left_of(resource: Resource, generation: int) -> dict[str, str]:
    """The setting that lets a generation take the right to write back from a later one, which it leaves or has left."""
    status = resource.status
    if status is None or status.rollout is None:
        return {}
    active, left = status.active_generation or 0, 0
    if generation == active:
        left = max((one.generation for one in status.history if one.result is Result.ROLLED_BACK), default=0)
    elif generation == status.next_generation and status.rollout.state is State.PROMOTING:
        left = active
    return {LEFT: str(left)} if left > generation else {}


def _computing(inputs: Inputs, role: Names, spec: ComputeClusterSpec, config: Mapping[str, Any]) -> Content:
    """A role whose pods compute."""
    template = executors.may_make_pods(spec, _template(inputs, role, spec, spec.resources))
    ports = (names.COMPUTE_PORT, OPS) if role is names.REPLICAS else (STAGE, OPS)
    return Content(config=config, template=template, ports=ports)


def _template(inputs: Inputs, role: Names, spec: ComputeClusterSpec, resources: ResourceRequirements) -> dict[str, Any]:
    computes = role is names.REPLICAS or not spec.replicas
    return pods.template(
        inputs,
        role,
        (names.COMPUTE_PORT,) if role is names.REPLICAS else (),
        [Mount("log", CLIENT_MOUNT, secret=client_secret(spec.waltz_cluster_ref.name))],
        [variable("PAVANE_WALTZ_CLIENT", CLIENT_MOUNT), *(_state(spec, resources) if computes else ())],
        resources=resources,
    )


def _state(spec: ComputeClusterSpec, resources: ResourceRequirements) -> list[dict[str, Any]]:
    """Where the state of views is, and how much memory and disk it has."""
    limits = resources.limits or {}
    there = {"MEMORY": {**(resources.requests or {}), **limits}.get("memory"), "DISK": limits.get("ephemeral-storage")}
    found = [variable("PAVANE_STATE", STATE_FOLDER)]
    for what, quantity in there.items():
        if quantity is not None:
            share = parse_quantity(quantity) * STATE_SHARE / max(1, len(spec.scripts)) / 2**20
            found.append(variable(f"PAVANE_STATE_{what}_MIB", str(max(STATE_MIB_MIN, int(share)))))
    return found


def _replica_budget(
    resource: Resource, spec: ComputeClusterSpec, labels: Mapping[str, str], writers: Writers
) -> tuple[Manifest, ...]:
    if not spec.replicas:
        return ()
    role, selector = names.REPLICAS.role, names.REPLICAS.all_pods(resource.name)
    return disruption_budget(resource, role, labels, selector, writers, spare=spec.replicas - 1)


def _replica_policy(resource: Resource, revision: Child) -> Manifest:
    """Only the controller of the generation reaches the port of its replicas."""
    recorded = Recorded.of(revision)
    number = recorded.generation
    body = recorded.object(resource, names.REPLICAS, "networking.k8s.io/v1", "NetworkPolicy")
    body["spec"] = {
        "podSelector": {"matchLabels": names.REPLICAS.selector(resource.name, number)},
        "policyTypes": ["Ingress"],
        "ingress": [rule_from(names.CONTROLLER.selector(resource.name, number), (names.COMPUTE_PORT,))],
    }
    return Manifest.of(body)

"""SwimGroup's objects, as pure functions of the resource and of the revisions of its generations (operator.md 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pavane_operator.crds.swimgroup import Encryption, SwimGroupSpec
from pavane_operator.kinds.base import BaseRenderer, known_generations
from pavane_operator.kinds.swim import keys, names, pod
from pavane_operator.kinds.swim.settings import config_problem
from pavane_operator.objects import generations
from pavane_operator.objects.generations import Content
from pavane_operator.objects.owned import owned
from pavane_operator.objects.pods import OPS, STAGE, Inputs
from pavane_operator.objects.policies import Ports
from pavane_operator.plan.model import Child, Manifest, Problem, Resource, Writers
from pavane_operator.plan.port import NOTHING

KEPT_BY_REPAIRS = ("encryption", "group", "tls")
"""Fields that the members of a generation depend on among each other (2.13)."""
PORTS = Ports(
    peers=(pod.SWIM,),
    clients=(pod.SWIM,),
    operator=(STAGE, OPS),
    control_plane=(OPS,),
    of_clients=(pod.SWIM,),
)
"""Who may connect to which port: members that others run are clients, and are probed."""


class SwimRenderer(BaseRenderer[SwimGroupSpec]):
    """Implements `pavane_operator.plan.port.Renderer`."""

    model = SwimGroupSpec
    names = names.NAMES
    ports = PORTS
    kept_by_repairs = KEPT_BY_REPAIRS

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        """The Secret with the keys, where the user gives them."""
        reference = self._spec(resource).keyring_secret_ref
        return () if reference is None else (reference.name,)

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """`InvalidConfig` for settings in `spec.config` that a member would refuse.

        `ReferenceNotReady` while there are no keys where `spec.keyringSecretRef` says.
        """
        spec, found = self._spec(resource), list[Problem]()
        problem = config_problem(spec)
        if problem is not None:
            found.append(Problem("InvalidConfig", problem))
        if spec.keyring_secret_ref is not None:
            try:
                keys.given(spec.keyring_secret_ref, spec.encryption, references)
            except ValueError as error:
                found.append(Problem("ReferenceNotReady", str(error)))
        return tuple(found)

    def content(self, inputs: Inputs, spec: SwimGroupSpec) -> Content:
        """The members."""
        config = _member_config(inputs.resource, spec, inputs.generation)
        return Content(config, pod.template(inputs, spec), ports=(pod.SWIM, STAGE, OPS))

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """What all generations share: ConfigMaps `{name}-active` and `{name}-live`, Secret `{name}-keys` unless
        nothing is protected, ServiceAccount, NetworkPolicies and PodDisruptionBudget."""
        spec = self._spec(resource)
        active = owned(resource, "v1", "ConfigMap", names.active(resource.name), self.labels(resource))
        active["data"] = {pod.ACTIVE_KEY: f"{writers.fence}\n"}
        return (
            Manifest.of(active, guarded=True),
            self._live(resource, _live(resource, spec, known_generations(resource))),
            *self._keys(resource, spec, references),
            *self._around(resource, writers, spare=spec.replicas - 1),
        )

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet `{name}-member-g{n}` of the generation of this revision."""
        return generations.objects(resource, names.NAMES, revision, self._spec(resource).replicas)

    def _keys(self, resource: Resource, spec: SwimGroupSpec, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """The Secret that pods mount; none while the user's cannot be used: what members have stays."""
        if spec.encryption is Encryption.NONE:
            return ()
        name = keys.name_of(resource.name)
        if spec.keyring_secret_ref is None:
            made = keys.generated(resource.uid, self._defaults.secret_key)
            return (self._secret(resource, name, made, create_only=True),)
        try:
            given = keys.given(spec.keyring_secret_ref, spec.encryption, references)
        except ValueError:
            return ()
        return (self._secret(resource, name, given),)


def _member_config(resource: Resource, spec: SwimGroupSpec, generation: int) -> dict[str, Any]:
    """The member's settings; those that live on are what it begins with, `{name}-live` has the present ones."""
    known = dict.fromkeys([*known_generations(resource), generation])
    return {
        **spec.config,
        "group": spec.group or f"{resource.namespace}/{resource.name}",
        "capacity": spec.capacity,
        "seal": spec.encryption is Encryption.E0,
        **_live(resource, spec, known),
    }


def _live(resource: Resource, spec: SwimGroupSpec, generations_known: Any) -> dict[str, Any]:
    own = names.seeds(resource.name, resource.namespace, generations_known)
    return {"profile": spec.profile.value, "seeds": [*own, *spec.seeds]}

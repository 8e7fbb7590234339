"""The CustomResourceDefinitions, built in memory from the models (docs/specs/operator.md 1)."""

from dataclasses import dataclass
from typing import Any

from pavane_operator.crds import raftcluster, swimgroup
from pavane_operator.crds.base import RESOURCE_NAME_MAX_CHARACTERS, rule
from pavane_operator.crds.common import CommonSpec
from pavane_operator.crds.schema import structural_schema
from pavane_operator.crds.status import Status

GROUP = "pavane.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

_NAME_RULES = [
    rule(
        f"size(self.metadata.name) <= {RESOURCE_NAME_MAX_CHARACTERS}",
        f"the name must have at most {RESOURCE_NAME_MAX_CHARACTERS} characters",
    ),
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "the name must start with a letter and contain only lower-case letters, digits and '-': a Service is named so",
    ),
    rule("self.metadata.name != 'default'", "the name must not be 'default': each namespace has an account of it"),
]


@dataclass(frozen=True, slots=True)
class Kind:
    """What is defined of a kind."""

    name: str
    """As in `kind:`."""
    plural: str
    """As in the path of the API."""
    short: str
    """What people type."""
    spec: type[CommonSpec]
    status: type[Status]
    columns: tuple[dict[str, Any], ...] = ()
    """Printer columns beside those of all kinds."""


def _column(name: str, kind: str, path: str, *, priority: int = 0) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if priority:
        column["priority"] = priority
    return column


KINDS = (
    Kind(
        name=raftcluster.KIND,
        plural=raftcluster.PLURAL,
        short="raft",
        spec=raftcluster.RaftClusterSpec,
        status=raftcluster.RaftClusterStatus,
        columns=(_column("Leader", "string", ".status.leader", priority=1),),
    ),
    Kind(
        name=swimgroup.KIND,
        plural=swimgroup.PLURAL,
        short="swim",
        spec=swimgroup.SwimGroupSpec,
        status=swimgroup.SwimGroupStatus,
        columns=(_column("Members", "integer", ".status.members.alive", priority=1),),
    ),
)
"""All kinds; operator, control plane and command line have no other list of what is defined."""


def definitions(*, cel: bool = True, marks: bool = False) -> tuple[dict[str, Any], ...]:
    """All CustomResourceDefinitions, ready to be applied.

    Args:
        cel: Whether they carry validation rules.
        marks: Whether the fields of specs carry their marks: for readers, no server takes them.
    """
    return tuple(_definition(kind, cel=cel, marks=marks) for kind in KINDS)


def spec_model(kind: str) -> type[CommonSpec]:
    """The model of the spec of a kind; raises KeyError for one that is not ours."""
    return {each.name: each.spec for each in KINDS}[kind]


def _definition(kind: Kind, *, cel: bool, marks: bool) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "description": f"{kind.name}: {' '.join((kind.spec.__doc__ or '').split())}",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(kind.spec, cel=cel, marks=marks),
            "status": structural_schema(kind.status, defaults=False, cel=cel),
        },
    }
    if cel:
        schema["x-kubernetes-validations"] = _NAME_RULES
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, **({"scale": scale} if "replicas" in kind.spec.model_fields else {})},
        "additionalPrinterColumns": [*_columns(), *kind.columns],
        "schema": {"openAPIV3Schema": schema},
    }
    names = {
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
        "shortNames": [kind.short],
        "categories": ["pavane"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def _columns() -> tuple[dict[str, Any], ...]:
    return (
        _column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        _column("Active", "integer", ".status.activeGeneration"),
        _column("Next", "integer", ".status.nextGeneration"),
        _column("State", "string", ".status.rollout.state"),
        _column("UpToDate", "string", '.status.conditions[?(@.type=="UpToDate")].reason'),
        _column("Age", "date", ".metadata.creationTimestamp"),
        _column("Image", "string", '.status.generations[?(@.role=="Active")].image', priority=1),
        _column("Blocker", "string", ".status.rollout.blockers[0].reason", priority=1),
    )

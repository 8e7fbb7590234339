"""The CustomResourceDefinitions, built in memory from the models (docs/specs/operator.md 1)."""

import functools
import json
from collections.abc import Mapping
from typing import Any

from pavane_operator.crds import backup, computecluster, coordinator, dataflow, raftcluster, swimgroup, waltzcluster
from pavane_operator.crds.base import RESOURCE_NAME_MAX_CHARACTERS, RESOURCE_NAME_PATTERN, Model, rule
from pavane_operator.crds.common import CommonSpec
from pavane_operator.crds.descriptor import Definition, Described, column
from pavane_operator.crds.schema import structural_schema

GROUP = "pavane.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

_NAME_RULES = [
    rule(
        f"size(self.metadata.name) <= {RESOURCE_NAME_MAX_CHARACTERS}",
        f"the name must have at most {RESOURCE_NAME_MAX_CHARACTERS} characters",
    ),
    rule(
        f"self.metadata.name.matches('{RESOURCE_NAME_PATTERN}')",
        "the name must start with a letter and contain only lower-case letters, digits and '-', like a Service",
    ),
    rule(
        "self.metadata.name != 'default'",
        "the name must not be 'default', because each namespace has a ServiceAccount of that name",
    ),
]


KINDS: tuple[Definition, ...] = (
    computecluster.DEFINITION,
    coordinator.DEFINITION,
    raftcluster.DEFINITION,
    swimgroup.DEFINITION,
    waltzcluster.DEFINITION,
)
"""All kinds whose pods are rolled out by generations."""
PODLESS: tuple[Described, ...] = (backup.DEFINITION, dataflow.DEFINITION)
"""All kinds without pods that are rolled out."""


def all_kinds() -> tuple[Described, ...]:
    """All kinds by name: operator, control plane and command line have no other list."""
    return tuple(sorted((*KINDS, *PODLESS), key=lambda each: each.name))


def definition_of(kind: str) -> Described:
    """The definition of a kind; raises KeyError for one that is not ours."""
    return {each.name: each for each in all_kinds()}[kind]


def referring(kind: str) -> tuple[Described, ...]:
    """The kinds whose resources may refer to one of this kind."""
    return tuple(each for each in all_kinds() if any(named == kind for _, named in each.refers))


def definitions(*, cel: bool = True, marks: bool = False) -> tuple[dict[str, Any], ...]:
    """All CustomResourceDefinitions, ready to be applied.

    Args:
        cel: Whether they carry validation rules.
        marks: Whether the fields of specs carry their marks: for readers, no server takes them.
    """
    return tuple(json.loads(_definitions(cel, marks)))


def spec_model(kind: str) -> type[Model]:
    """The model of the spec of a kind; raises KeyError for one that is not ours."""
    return definition_of(kind).spec


def settled_spec(kind: str, document: Mapping[str, Any]) -> Model:
    """The spec of a stored resource of ours, with what counts where it says nothing. Raises pydantic's errors."""
    spec = spec_model(kind).model_validate(document["spec"])
    return spec.settled(document.get("status") or {}) if isinstance(spec, CommonSpec) else spec


@functools.cache
def _definitions(cel: bool, marks: bool) -> str:
    """All definitions as JSON: they take a tenth of a second to make, and whoever gets them may change them."""
    return json.dumps([_definition(kind, cel=cel, marks=marks) for kind in all_kinds()])


def _definition(kind: Described, *, cel: bool, marks: bool) -> dict[str, Any]:
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
        "additionalPrinterColumns": [*_columns(kind)],
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


def _columns(kind: Described) -> tuple[dict[str, Any], ...]:
    age = column("Age", "date", ".metadata.creationTimestamp")
    if not isinstance(kind, Definition):
        return (*kind.columns, age)
    return (
        column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        column("Pods", "string", ".status.readyPods"),
        column("Active", "integer", ".status.activeGeneration"),
        column("Next", "integer", ".status.nextGeneration"),
        column("State", "string", ".status.rollout.state"),
        column("UpToDate", "string", '.status.conditions[?(@.type=="UpToDate")].reason'),
        age,
        column("Image", "string", '.status.generations[?(@.role=="Active")].image', priority=1),
        column("Blocker", "string", ".status.rollout.blockers[0].reason", priority=1),
        *kind.columns,
    )

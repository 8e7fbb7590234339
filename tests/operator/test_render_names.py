"""The longest name that a resource may have works in all that is made for it (docs/specs/operator.md 1.1, 4.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from pavane_operator.crds.base import RESOURCE_NAME_MAX_CHARACTERS
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.definitions import all_kinds
from pavane_operator.kinds.registry import kinds
from pavane_operator.plan.model import Resource, Writers
from pavane_operator.plan.port import Kind
from tests.operator.test_render_raft import DEFAULTS, UID, stored

LONGEST = "n" * RESOURCE_NAME_MAX_CHARACTERS
NAMESPACE = "s" * 63
GENERATION = 9_999_999  # one a minute for nineteen years
LABEL, HASH = (
    63,
    "-0123456789",
)  # of which the label `controller-revision-hash` of a pod is made, behind its StatefulSet
SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
SPECS: Mapping[str, dict[str, Any]] = {
    "RaftCluster": {"stateMachine": "Tree"},
    "SwimGroup": {"encryption": "psk"},
    "WaltzCluster": {
        "metadata": {"raftClusterRef": {"name": LONGEST}},
        "clients": {"authentication": "Certificate", "rights": [{"identity": "i" * 63, "may": ["read"]}]},
    },
    "Coordinator": {"application": {"command": ["run"]}, "log": {"waltzClusterRef": {"name": LONGEST}, "partition": 0}},
    "ComputeCluster": {
        "waltzClusterRef": {"name": LONGEST},
        "partitions": {"ticks": 0, "views": 1},
        "replicas": 8,
        "engine": "Spark",
        "spark": {"master": "kubernetes"},
    },
}
KINDS = kinds(DEFAULTS)


def made(kind: Kind) -> Iterator[dict[str, Any]]:
    """All that is made for a resource with the longest name."""
    spec = kind.definition.spec.model_validate(SPECS[kind.name])
    status = kind.definition.status.model_validate({"activeGeneration": GENERATION - 1, "nextGeneration": GENERATION})
    of = Resource(kind.name, LONGEST, NAMESPACE, UID, "7", 1, spec, status)
    revision = stored(kind.renderer.revision(of, GENERATION, rollout_id(kind.name, spec)))
    manifests = [
        *kind.renderer.shared(of, Writers((GENERATION,), fence=1), {}),
        kind.renderer.public_service(of, GENERATION),
        *kind.renderer.generation(of, revision),
        *kind.renderer.standing(of, revision),
    ]
    yield dict(revision.body)
    yield from (dict(each.body) for each in manifests)


def labels_in(value: Any) -> Iterator[str]:
    """The values of all labels and of all selectors of an object."""
    if isinstance(value, dict):
        for key, held in value.items():
            if key in ("labels", "matchLabels", "selector") and isinstance(held, dict):
                yield from (each for each in held.values() if isinstance(each, str))
            yield from labels_in(held)
    elif isinstance(value, list):
        for each in value:
            yield from labels_in(each)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_longest_name_is_one_for_all_that_is_made(kind: Kind) -> None:
    objects = list(made(kind))
    assert {"StatefulSet", "Service", "NetworkPolicy", "ConfigMap"} <= {each["kind"] for each in objects}
    for each in objects:
        name = each["metadata"]["name"]
        assert SUBDOMAIN.fullmatch(name), name
        assert each["kind"] != "Service" or SERVICE.fullmatch(name), name
        assert [text for text in labels_in(each) if not VALUE.fullmatch(text)] == []
        if each["kind"] == "StatefulSet":
            assert len(name + HASH) <= LABEL
            assert len(f"{name}-{each['spec']['replicas'] - 1}") <= LABEL
            for claim in each["spec"].get("volumeClaimTemplates", ()):
                assert SUBDOMAIN.fullmatch(f"{claim['metadata']['name']}-{name}-{each['spec']['replicas'] - 1}")
    (kept,) = [each for each in objects if each["kind"] == "Service" and each["metadata"]["name"] == LONGEST]
    assert all(len(part) <= LABEL for part in f"*.{kept['metadata']['name']}.{NAMESPACE}.svc".split("."))


REFERENCES = [(kind, path.removeprefix("spec.").split(".")) for kind in all_kinds() for path, _ in kind.refers]


@pytest.mark.parametrize(
    ("kind", "path"), REFERENCES, ids=lambda each: ".".join(each) if isinstance(each, list) else ""
)
@pytest.mark.parametrize("name", [LONGEST + "n", "../other", "A", "a.b", ""])
def test_a_reference_to_what_no_resource_can_be_called_is_refused(kind: Any, path: list[str], name: str) -> None:
    given: Any = name
    for part in reversed(path):
        given = {part: given}
    with pytest.raises(ValidationError) as refused:
        kind.spec.model_validate(given)
    wrong = [".".join(map(str, each["loc"])) for each in refused.value.errors() if each["type"].startswith("string")]
    assert wrong == [".".join(path)]

"""Claims of volumes (docs/specs/operator.md 4.2)."""

from typing import Any

from pavane_operator.crds.common import VolumeSpec
from pavane_operator.objects.names import Names
from pavane_operator.objects.pods import Inputs
from pavane_operator.plan.model import UID_LABEL


def pod_claim(inputs: Inputs, names: Names, storage: VolumeSpec) -> dict[str, Any]:
    """The claim `data` of each pod of a StatefulSet, as the storage is now: a server refuses to change it, the claims
    themselves grow."""
    resource = inputs.resource
    labels = names.labels(resource.name, inputs.version, inputs.generation)
    return {"metadata": {"name": "data", "labels": {**labels, UID_LABEL: resource.uid}}, "spec": claim_spec(storage)}


def claim_spec(storage: VolumeSpec, mode: str = "ReadWriteOnce") -> dict[str, Any]:
    """What a claim asks for."""
    claim: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": str(storage.size)}}}
    if storage.storage_class_name is not None:
        claim["storageClassName"] = storage.storage_class_name
    return claim

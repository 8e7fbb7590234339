"""The metadata of every object that belongs to a resource (docs/specs/operator.md 4.1)."""

from collections.abc import Mapping
from typing import Any

from pavane_operator.plan.model import Manifest, Resource

API_VERSION = "pavane.dev/v1alpha1"


def owned(resource: Resource, api_version: str, kind: str, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """An object without content that goes when the resource goes."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": resource.namespace,
            "labels": dict(labels),
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


def service_account(resource: Resource, labels: Mapping[str, str]) -> Manifest:
    """ServiceAccount `{name}`: a name for the pods, without a token and without rights."""
    body = owned(resource, "v1", "ServiceAccount", resource.name, labels)
    body["automountServiceAccountToken"] = False
    return Manifest.of(body)

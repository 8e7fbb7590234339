"""The resources that the local API server knows: built-in ones and those of custom definitions (6.1, 6.4)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pavane_local.api.errors import ApiError
from pavane_local.api.schema import CustomSchema

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Column:
    """A printer column: `path` is a JSON path below the object, `wide` columns show with `-o wide` alone."""

    name: str
    type: str
    path: str
    wide: bool = False
    description: str = ""


AGE = Column("Age", "date", ".metadata.creationTimestamp")


@dataclass(frozen=True)
class Resource:
    """One kind as the server serves it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    columns: tuple[Column, ...] = (AGE,)
    schema: CustomSchema | None = None
    """Structural schema of a custom resource; None for built-in ones."""
    scale: Mapping[str, str] = field(default_factory=dict)
    """JSON paths `specReplicasPath`, `statusReplicasPath`, `labelSelectorPath` of the subresource `scale`."""
    stored_as: str = ""
    singular: str = ""

    @property
    def key(self) -> str:
        """How callers of the cluster name this resource: `plural` or `plural.group`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> str:
        """Name in the store; the two shapes of Event share one."""
        return self.stored_as or self.key

    @property
    def api_version(self) -> str:
        """Return `version` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version


def _columns(*rows: str) -> tuple[Column, ...]:
    """Read columns from lines `Name type path [wide]`."""
    columns = (row.split() for row in rows)
    return (*(Column(name.replace("_", " "), kind, path, bool(wide)) for name, kind, path, *wide in columns), AGE)


POD_COLUMNS = _columns(
    "Ready string @pod-ready",
    "Status string @pod-status",
    "Restarts integer @pod-restarts",
    "IP string .status.podIP wide",
)
EVENT_COLUMNS = (
    Column("Last Seen", "date", ".lastTimestamp"),
    *_columns(
        "Type string .type", "Reason string .reason", "Object string @event-object", "Message string .message"
    )[:-1],
)  # fmt: skip
SERVICE_COLUMNS = _columns(
    "Type string .spec.type",
    "Cluster-IP string .spec.clusterIP",
    "External-IP string @none",
    "Port(s) string @service-ports",
)
BUILT_IN = (
    Resource("", "v1", "namespaces", "Namespace", False, ("ns",), ("status",), (),
             _columns("Status string .status.phase")),
    Resource("", "v1", "pods", "Pod", True, ("po",), ("status", "log", "eviction"), ("all",), POD_COLUMNS),
    Resource("", "v1", "services", "Service", True, ("svc",), ("status",), ("all",), SERVICE_COLUMNS),
    Resource("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
    Resource("", "v1", "secrets", "Secret"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",), ("token",)),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), ("status",)),
    Resource("", "v1", "nodes", "Node", False, ("no",), ("status",)),
    Resource("", "v1", "events", "Event", True, ("ev",), (), (), EVENT_COLUMNS),
    Resource("events.k8s.io", "v1", "events", "Event", True, ("ev",), (), (), EVENT_COLUMNS, stored_as="events"),
    Resource("apps", "v1", "statefulsets", "StatefulSet", True, ("sts",), ("status", "scale"), ("all",),
             _columns("Ready string @set-ready"),
             scale={"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}),
    Resource("apps", "v1", "controllerrevisions", "ControllerRevision"),
    Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False,
             ("crd", "crds"), ("status",)),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), ("status",)),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, ("netpol",)),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False),
    Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False),
    Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False),
)  # fmt: skip
REVIEWS = ("tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews")
"""Answered, never stored."""


@dataclass(frozen=True)
class Registry:
    """All served resources: the built-in ones and those of the established custom definitions."""

    resources: tuple[Resource, ...] = BUILT_IN

    @classmethod
    def of(cls, definitions: Iterable[Mapping[str, Any]]) -> "Registry":
        """Build the registry from the CustomResourceDefinition objects of the store."""
        return cls((*BUILT_IN, *(custom_resource(each) for each in definitions if _established(each))))

    @cached_property
    def _by_key(self) -> dict[str, Resource]:
        return {resource.key: resource for resource in self.resources}

    def by_key(self, key: str) -> Resource:
        """Return the resource named `plural` or `plural.group`.

        Raises:
            ApiError: 404, no such resource.

        """
        try:
            return self._by_key[key]
        except KeyError:
            raise ApiError(404, "NotFound", "the server could not find the requested resource") from None

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Return the resource of a path, or None."""
        resource = self._by_key.get(f"{plural}.{group}" if group else plural)
        return resource if resource and resource.version == version else None


def _established(definition: Mapping[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions", ())
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def custom_resource(definition: Mapping[str, Any]) -> Resource:
    """Read the resource of one CustomResourceDefinition that has passed its checks."""
    spec, names = definition["spec"], definition["spec"]["names"]
    version = spec["versions"][0]
    subresources = version.get("subresources", {})
    columns = tuple(
        Column(each["name"], each["type"], each["jsonPath"], each.get("priority", 0) > 0, each.get("description", ""))
        for each in version.get("additionalPrinterColumns", ())
    )
    return Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames", ())),
        subresources=tuple(subresources),
        categories=tuple(names.get("categories", ())),
        columns=columns or (AGE,),
        schema=CustomSchema(version["schema"]["openAPIV3Schema"]),
        scale=subresources.get("scale", {}),
        singular=names.get("singular") or names["kind"].lower(),
    )

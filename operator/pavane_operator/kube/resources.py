"""Names and paths of the resource types that Pavane talks about.

A resource type is a value, not a class: the client has one verb for all of them, and a kind of ours needs nothing but
its entry here (docs/specs/operator.md 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from .errors import NotFound

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object as JSON: `apiVersion`, `kind`, `metadata`, and what the kind brings."""

GROUP = "pavane.dev"
VERSION = "v1alpha1"


_FOLDERS = frozenset({".", ".."})
"""Parts of a path that clients and servers resolve, however they are quoted."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource type; `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What stands in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection (in `namespace`, or in all of them), of one object, or of its subresource.

        Raises ValueError when one object of a namespaced type is named without its namespace, NotFound for a name that
        a URL takes for a folder, so that the path would lead to something else.
        """
        if not _FOLDERS.isdisjoint((namespace, name)):
            raise NotFound(f"{self.plural}: no object and no namespace is named . or ..", status=404, reason="NotFound")
        if self.namespaced and name is not None and namespace is None:
            raise ValueError(f"{self.plural}/{name}: name the namespace")
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part is not None]
        return "/".join(parts)


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
CORE_EVENTS = Resource("", "v1", "events", "Event")
"""The same events in an older shape; the roles `view` and `edit` of a cluster let users read these alone."""
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
OWN_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)

CHILD_TYPES: tuple[Resource, ...] = (
    BUDGETS,
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    ENDPOINT_SLICES,
    NETWORK_POLICIES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
    VOLUME_CLAIMS,
)
"""Everything that may belong to a resource; watched by label, and listed before the first and each critical plan."""
BUILT_IN: tuple[Resource, ...] = (NAMESPACES, *CHILD_TYPES, LEASES, EVENTS, CRDS)


def custom(kind: str, plural: str) -> Resource:
    """The resource type of one of our own kinds."""
    return Resource(GROUP, VERSION, plural, kind)

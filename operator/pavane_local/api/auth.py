"""Who calls: the administrator, or the ServiceAccount of a pod (`docs/specs/operator.md` 6.6)."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple

from pavane_local.api.cluster import Cluster
from pavane_local.store import Object

PLATFORM_NAMESPACE = "pavane-system"
MASTERS = "system:masters"
RBAC = "rbac.authorization.k8s.io"


class Identity(NamedTuple):
    """A caller with a valid token."""

    username: str
    uid: str
    groups: tuple[str, ...]


def allowed(username: str, groups: Sequence[str]) -> bool:
    """Tell whether a user may do all; others may what a Role grants. Other rules are tested on a real API server."""
    return MASTERS in groups or username.startswith(f"system:serviceaccount:{PLATFORM_NAMESPACE}:")


def verb(method: str, watch: bool, *, named: bool) -> str:
    """Return what rules call a request."""
    of_one = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    of_many = {"GET": "watch" if watch else "list", "POST": "create", "DELETE": "deletecollection"}
    return (of_one if named else of_many).get(method, "")


def granted(cluster: Cluster, who: Identity, namespace: str, verb: str, group: str, resource: str) -> bool:
    """Tell whether a Role of the namespace, bound to this ServiceAccount, allows a verb on a resource."""
    for binding in cluster.list(f"rolebindings.{RBAC}", namespace) if namespace else ():
        subjects = (
            f"system:serviceaccount:{each.get('namespace')}:{each.get('name')}"
            for each in binding.get("subjects") or ()
            if each.get("kind") == "ServiceAccount"
        )
        if binding["roleRef"]["kind"] != "Role" or who.username not in subjects:
            continue
        role = cluster.find(f"roles.{RBAC}", namespace, binding["roleRef"]["name"])
        for rule in (role or {}).get("rules") or ():
            if verb in rule["verbs"] and resource in rule["resources"] and group in rule["apiGroups"]:
                return True
    return False


class Tokens:
    """Issues and checks tokens. One of a pod is signed, and ends with the pod or its ServiceAccount."""

    def __init__(self, cluster: Cluster, admin_token: str, signing_key: bytes) -> None:
        self._cluster = cluster
        self._admin_token = admin_token
        self._signing_key = signing_key

    def issue(self, pod: Object, audience: str = "") -> str:
        """Return the token of a pod, which with an audience is good for that one alone."""
        parts = [pod["metadata"][key] for key in ("namespace", "name", "uid")]
        body = "/".join([*parts, audience] if audience else parts)
        return f"{body}.{self._signature(body)}"

    def identify(self, token: str, audience: str = "") -> Identity | None:
        """Return who a token belongs to, or None if it is not good for the audience; "" is the API server."""
        if hmac.compare_digest(token.encode(), self._admin_token.encode()):
            return Identity("pavane-admin", "pavane-admin", (MASTERS, "system:authenticated"))
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            return None
        namespace, name, uid, *bound = body.split("/", 3)
        if bound and bound != [audience]:
            return None
        pod = self._cluster.find("pods", namespace, name)
        if pod is None or pod["metadata"]["uid"] != uid:
            return None
        account = self._cluster.find("serviceaccounts", namespace, pod["spec"]["serviceAccountName"])
        if account is None:
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        metadata = account["metadata"]
        return Identity(f"system:serviceaccount:{namespace}:{metadata['name']}", metadata["uid"], groups)

    def _signature(self, body: str) -> str:
        return hmac.new(self._signing_key, body.encode(), hashlib.sha256).hexdigest()

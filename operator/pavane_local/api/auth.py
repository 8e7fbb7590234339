"""Who calls: the admin token and signed tokens of ServiceAccounts (`docs/specs/operator.md` 6.6)."""

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from pavane_local.api.admission import timestamp
from pavane_local.api.cluster import Cluster
from pavane_local.api.errors import bad_request, section

AUDIENCE = "https://kubernetes.default.svc"
"""The API server itself, as audience of a token."""
PLATFORM_NAMESPACE = "pavane-system"
DEFAULT_TOKEN_SECONDS = 3600
MINIMUM_TOKEN_SECONDS = 600
MASTERS = "system:masters"


class Identity(NamedTuple):
    """A caller whose token is good, and the audiences that it is good for."""

    username: str
    uid: str
    groups: tuple[str, ...]
    audiences: tuple[str, ...]


def allowed(username: str, groups: Sequence[str]) -> bool:
    """Tell whether a user may do all; whoever may not, may nothing. Rules are tested on a real API server."""
    return MASTERS in groups or username.startswith(f"system:serviceaccount:{PLATFORM_NAMESPACE}:")


class Tokens:
    """Issues and checks tokens."""

    def __init__(self, cluster: Cluster, admin_token: str, signing_key: bytes) -> None:
        self._cluster = cluster
        self._admin_token = admin_token
        self._signing_key = signing_key

    def issue(self, namespace: str, account: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return a TokenRequest with its status; `request` is its `spec`: `audiences`, `expirationSeconds`,
        `boundObjectRef`. A token bound to a pod ends with the pod and not by time (6.8).

        Raises `ApiError`: 404 no such account; 400 a lifetime below ten minutes.
        """
        spec: dict[str, Any] = {"audiences": [AUDIENCE], "expirationSeconds": DEFAULT_TOKEN_SECONDS}
        spec |= {key: value for key, value in request.items() if value}
        seconds, pod = spec["expirationSeconds"], section(request, "boundObjectRef")
        if not isinstance(seconds, int) or seconds < MINIMUM_TOKEN_SECONDS:
            raise bad_request(f"spec.expirationSeconds: may not specify a duration less than {MINIMUM_TOKEN_SECONDS} s")
        uid = self._cluster.get("serviceaccounts", namespace, account)["metadata"]["uid"]
        end = self._cluster.now() + timedelta(seconds=seconds)
        claims = {"aud": spec["audiences"], "namespace": namespace, "account": account, "uid": uid}
        claims |= {"pod": pod.get("name", ""), "pod_uid": pod.get("uid", "")} if pod else {"exp": int(end.timestamp())}
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()
        status = {"token": f"{body}.{self._signature(body)}", "expirationTimestamp": timestamp(end)}
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec, "status": status}

    def identify(self, token: str, audiences: Sequence[str] = (AUDIENCE,)) -> Identity | None:
        """Return who a token belongs to if it is good for one of the audiences, else None."""
        if hmac.compare_digest(token.encode(), self._admin_token.encode()):
            return Identity("pavane-admin", "pavane-admin", (MASTERS, "system:authenticated"), tuple(audiences))
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            return None
        claims = json.loads(base64.urlsafe_b64decode(body))
        namespace, good = claims["namespace"], tuple(each for each in audiences if each in claims["aud"])
        bound = [("serviceaccounts", claims["account"], claims["uid"])]
        if "exp" not in claims:
            bound.append(("pods", claims["pod"], claims["pod_uid"]))
        elif claims["exp"] < self._cluster.now().timestamp():
            return None
        held = [self._cluster.find(kind, namespace, name) for kind, name, _ in bound]
        if not good or [each and each["metadata"]["uid"] for each in held] != [uid for *_, uid in bound]:
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return Identity(f"system:serviceaccount:{namespace}:{claims['account']}", claims["uid"], groups, good)

    def _signature(self, body: str) -> str:
        return hmac.new(self._signing_key, body.encode(), hashlib.sha256).hexdigest()

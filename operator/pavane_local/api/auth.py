"""Who calls: the admin token and signed tokens of ServiceAccounts (`docs/specs/operator.md` 6.6)."""

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pavane_local.api.admission import timestamp
from pavane_local.api.cluster import Cluster
from pavane_local.api.errors import bad_request, section

AUDIENCE = "https://kubernetes.default.svc"
"""The API server itself, as audience of a token."""
PLATFORM_NAMESPACE = "pavane-system"
DEFAULT_TOKEN_SECONDS = 3600
MINIMUM_TOKEN_SECONDS = 600
MASTERS = "system:masters"


@dataclass(frozen=True)
class Identity:
    """A caller whose token is good."""

    username: str
    uid: str
    groups: tuple[str, ...]
    audiences: tuple[str, ...]

    def user(self) -> dict[str, Any]:
        """Return the `user` of a TokenReview."""
        return {"username": self.username, "uid": self.uid, "groups": list(self.groups)}


def allowed(username: str, groups: Sequence[str]) -> bool:
    """Tell whether a user may do all; whoever may not, may nothing. Rules are tested on a real API server."""
    return MASTERS in groups or username.startswith(f"system:serviceaccount:{PLATFORM_NAMESPACE}:")


class Tokens:
    """Issues and checks tokens."""

    def __init__(self, cluster: Cluster, admin_token: str, signing_key: bytes) -> None:
        self._cluster = cluster
        self._admin_token = admin_token
        self._signing_key = signing_key

    def issue(self, namespace: str, account: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a TokenRequest with its status for a ServiceAccount.

        `request` is a TokenRequest's `spec`: `audiences`, `expirationSeconds`, `boundObjectRef`. A token bound to a pod
        ends with the pod and not by time (6.8).

        Raises `ApiError`: 404 no such account; 400 a lifetime below ten minutes.
        """
        spec: dict[str, Any] = {"audiences": [AUDIENCE], "expirationSeconds": DEFAULT_TOKEN_SECONDS}
        spec |= {key: value for key, value in (request or {}).items() if value}
        seconds = spec["expirationSeconds"]
        if not isinstance(seconds, int) or seconds < MINIMUM_TOKEN_SECONDS:
            raise bad_request(f"spec.expirationSeconds: may not specify a duration less than {MINIMUM_TOKEN_SECONDS} s")
        uid = self._cluster.get("serviceaccounts", namespace, account)["metadata"]["uid"]
        pod = section(request or {}, "boundObjectRef")
        end = self._cluster.now() + timedelta(seconds=seconds)
        claims = {
            "aud": spec["audiences"],
            "namespace": namespace,
            "account": account,
            "uid": uid,
            "exp": int(end.timestamp()),
        }
        if pod:
            claims |= {"pod": pod.get("name", ""), "pod_uid": pod.get("uid", "")}
        body = f"{_encode({'alg': 'HS256', 'typ': 'JWT'})}.{_encode(claims)}"
        status = {"token": f"{body}.{self._sign(body)}", "expirationTimestamp": timestamp(end)}
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec, "status": status}

    def identify(self, token: str, audiences: Sequence[str] = (AUDIENCE,)) -> Identity | None:
        """Return who a token belongs to if it is good for one of the audiences, else None."""
        if hmac.compare_digest(token.encode(), self._admin_token.encode()):
            return Identity("pavane-admin", "pavane-admin", (MASTERS, "system:authenticated"), tuple(audiences))
        body, _, signature = token.rpartition(".")
        if not body or not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            return None
        claims = json.loads(base64.urlsafe_b64decode(body.split(".")[1] + "=="))
        account = self._cluster.find("serviceaccounts", claims["namespace"], claims["account"])
        good = tuple(each for each in audiences if each in claims["aud"])
        if not good or account is None or account["metadata"]["uid"] != claims["uid"]:
            return None
        if "pod" in claims:
            pod = self._cluster.find("pods", claims["namespace"], claims["pod"])
            if pod is None or pod["metadata"]["uid"] != claims["pod_uid"]:
                return None
        elif claims["exp"] < self._cluster.now().timestamp():
            return None
        name = f"system:serviceaccount:{claims['namespace']}:{claims['account']}"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{claims['namespace']}", "system:authenticated")
        return Identity(name, claims["uid"], groups, good)

    def _sign(self, body: str) -> str:
        digest = hmac.digest(self._signing_key, body.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _encode(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

"""Who may do what: the cluster decides, so kubectl's permissions are the API's permissions.

A bearer token is shown to TokenReview (audience ``pavane-api``), and each verb on each resource to
SubjectAccessReview. Both answers are kept for a short time, by the hash of the token, in bounded tables.
"""

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.problems import Forbidden, Unauthenticated
from pavane_operator.crds.definitions import KINDS
from pavane_operator.kube import Identity, KubeClient, Resource
from pavane_operator.kube.resources import custom

TOKEN_SECONDS_MAX = 60.0  # a revoked token works at most this much longer
ACCESS_SECONDS_MAX = 10.0  # a withdrawn permission too
NAMESPACE_PATTERN = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
GATES_AUDIENCE = "pavane-gates"  # of the operator's token: with it gates ask views, and it opens nothing else
GATES_PATH = re.compile("/api/v1/namespaces/[^/]+/computeclusters/[^/]+/sql")
CACHE_ENTRIES_MAX = 10_000  # per table; the oldest answer goes first
STRANGER = "Send a token of the cluster as `Authorization: Bearer …`."

Value = TypeVar("Value")


def audience_at(path: str) -> str | None:
    """Return the audience whose tokens are good at this path too; None = there is none."""
    return GATES_AUDIENCE if GATES_PATH.fullmatch(path) else None


class _Cache(Generic[Value]):
    """Values for a limited time, at most CACHE_ENTRIES_MAX of them."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._entries: OrderedDict[Hashable, tuple[float, Value]] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        entry = self._entries.get(key)
        if entry is None or entry[0] < self._clock():
            return None
        return entry[1]

    def put(self, key: Hashable, value: Value) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (self._clock() + self._seconds, value)
        while len(self._entries) > CACHE_ENTRIES_MAX:
            self._entries.popitem(last=False)


class Authority:
    """Asks the cluster behind ``kube`` about tokens and permissions."""

    def __init__(self, kube: KubeClient, audience: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._audience = audience
        self._identities: _Cache[Identity] = _Cache(TOKEN_SECONDS_MAX, clock)
        self._permissions: _Cache[bool] = _Cache(ACCESS_SECONDS_MAX, clock)

    async def identify(self, token: str, audience: str | None = None, also: str | None = None) -> Identity:
        """Return whose token this is, made for ``audience`` (default: that of REST) or for ``also``.

        Raises ``Unauthenticated``.
        """
        audience = audience or self._audience
        audiences = [audience] if also is None else [audience, also]
        key = (*audiences, hashlib.sha256(token.encode()).digest())
        identity = self._identities.get(key)
        if identity is None:
            identity = await self._kube.token_review(token, audiences)
            if identity is None:
                raise Unauthenticated(
                    f"The token is not valid for audience {audience}: "
                    f"make one with `kubectl create token NAME --audience {audience}`.",
                    headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
                )
            self._identities.put(key, identity)
        return identity

    async def require(
        self, identity: Identity, verb: str, resource: Resource, namespace: str | None, name: str | None
    ) -> None:
        """Raise ``Forbidden`` unless ``identity`` may do ``verb`` on the resource."""
        if not await self._allows(identity, verb, resource, namespace, name):
            where = f" in namespace {namespace}" if namespace else ""
            raise Forbidden(f"{identity.user} may not {verb} {resource.plural}{where}.")

    async def sees(self, identity: Identity, namespace: str | None) -> bool:
        """Whether ``identity`` may get resources of one of our kinds there; None is everywhere."""
        for kind in KINDS:
            if await self._allows(identity, "get", custom(kind.name, kind.plural), namespace, None):
                return True
        return False

    async def _allows(
        self, identity: Identity, verb: str, resource: Resource, namespace: str | None, name: str | None
    ) -> bool:
        key = (identity, verb, resource, namespace, name)
        allowed = self._permissions.get(key)
        if allowed is None:
            allowed = await self._kube.access_review(identity, verb, resource, namespace=namespace, name=name)
            self._permissions.put(key, allowed)
        return allowed


_bearer = HTTPBearer(auto_error=False, description="A token of the cluster, made for audience pavane-api")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
"""Parameter type of an endpoint that looks at the token by itself."""


async def _identity(request: Request, credentials: Credentials) -> Identity:
    if credentials is None:
        raise Unauthenticated(STRANGER, headers={"WWW-Authenticate": "Bearer"})
    authority: Authority = request.app.state.control.authority
    return await authority.identify(credentials.credentials, also=audience_at(request.scope["path"]))


Caller = Annotated[Identity, Depends(_identity)]
"""Parameter type of an endpoint for anybody whom the cluster knows."""


OneNamespace = Annotated[
    str | None,
    Query(
        max_length=63,
        pattern=NAMESPACE_PATTERN,
        description="Only those of this namespace; default: of all, which takes the right to see all",
    ),
]
"""Parameter type of an endpoint that shows what is in one namespace or in all; None: in all."""


def may(verb: str, resource: Resource) -> Callable[..., object]:
    """Return the dependency of a route whose caller must be allowed ``verb`` on the resource that the path names."""

    async def check(request: Request, caller: Caller) -> Identity:
        authority: Authority = request.app.state.control.authority
        path = request.path_params
        await authority.require(caller, verb, resource, path.get("namespace"), path.get("name"))
        return caller

    return check


MayGet = Annotated[Identity, Depends(may("get", RAFT_CLUSTERS))]
"""Parameter type: the caller may ``get`` the RaftCluster that the path names. The other one alike."""
MayUpdate = Annotated[Identity, Depends(may("update", RAFT_CLUSTERS))]

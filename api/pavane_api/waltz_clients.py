"""One client per WaltzCluster, kept while it is used; it follows fail-overs and rollouts by itself."""

import base64
import binascii
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pavane.waltz import errors
from pavane.waltz.client import Waltz, trusting
from pavane.waltz.errors import RejectCode
from pavane_api.kept_clients import KeptClients
from pavane_api.kinds import WALTZ_CLUSTERS
from pavane_api.problems import (
    BadRequest,
    Conflict,
    LockConflict,
    NotFound,
    OutcomeUnknown,
    Problem,
    TooLarge,
    Unavailable,
)
from pavane_operator import kube
from pavane_operator.kube.resources import SECRETS

PATIENCE_S = 20.0  # for a server that can serve a request; callers wait 30 s for an answer


class WaltzClients:
    """Clients by namespace and name."""

    def __init__(self, client: kube.KubeClient) -> None:
        self._kube = client
        self._clients: KeptClients[Waltz] = KeptClients()

    @asynccontextmanager
    async def of(self, namespace: str, name: str) -> AsyncIterator[Waltz]:
        """Lend the client of a WaltzCluster; what it raises while it is lent becomes a problem.

        Raises ``kube.NotFound``, and ``Unavailable`` while the resource does not serve.
        """
        try:
            uid, made_of = await self._found(namespace, name)

            async def made() -> Waltz:
                return _made(name, *made_of)

            async with self._clients.lent((namespace, name), uid, made_of, made) as log:
                yield log
        except errors.WaltzError as error:
            raise problem_of(error, name) from error

    async def close(self) -> None:
        """Close all clients."""
        await self._clients.close()

    async def _found(self, namespace: str, name: str) -> tuple[str, tuple[str, str]]:
        """Return the uid of the resource, and the addresses and the authority of its servers."""
        document = await self._kube.get(WALTZ_CLUSTERS, name, namespace)
        try:
            secret = await self._kube.get(SECRETS, f"{name}-client", namespace)
        except kube.NotFound as error:
            raise Unavailable(_waits(name)) from error
        try:
            data = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
            return str(document["metadata"]["uid"]), (data["servers"], data.get("ca.crt", ""))
        except (KeyError, ValueError, binascii.Error) as error:
            raise _damaged(name, error) from error


def _made(name: str, servers: str, authority: str) -> Waltz:
    try:
        return Waltz(servers.split(), tls=trusting(authority) if authority else None, patience=PATIENCE_S)
    except (ValueError, ssl.SSLError) as error:
        raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> Unavailable:
    return Unavailable(f"Secret {name}-client is damaged: {error}. {_waits(name)}")


def problem_of(error: errors.WaltzError, name: str) -> Problem:
    """Return the problem that tells a caller what the log answered."""
    match error:
        case errors.Conflict():
            return LockConflict(f"{error}.")
        case errors.OutcomeUnknown():
            return OutcomeUnknown(str(error))
        case errors.NotFound():
            return NotFound(str(error))
        case errors.Unavailable():
            return Unavailable(f"{error}. {_waits(name)}", headers={"Retry-After": "1"})
        case errors.Rejected(code=RejectCode.TOO_LARGE):
            return TooLarge(str(error))
        case errors.Rejected(code=RejectCode.BAD_REQUEST):
            return BadRequest(str(error))
    return Conflict(str(error))


def _waits(name: str) -> str:
    return f"`pavane why waltz/{name}` says what the WaltzCluster waits for."

"""One client per WaltzCluster, kept while it is used; it follows fail-overs and rollouts by itself."""

import asyncio
import base64
import binascii
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from pavane.waltz import errors
from pavane.waltz.client import Waltz, trusting
from pavane.waltz.errors import RejectCode
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

CLIENTS_MAX = 64  # a client is a connection per server; the one not used for longest is closed first
PATIENCE_S = 20.0  # for a server that can serve a request; callers wait 30 s for an answer


@dataclass(slots=True)
class _Slot:
    log: Waltz
    resources: AsyncExitStack
    made_of: tuple[str, str, str]
    users: int = 0
    dropped: bool = False


class WaltzClients:
    """Clients by namespace and name, at most CLIENTS_MAX."""

    def __init__(self, client: kube.KubeClient) -> None:
        self._kube = client
        self._slots: OrderedDict[tuple[str, str], _Slot] = OrderedDict()
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def of(self, namespace: str, name: str) -> AsyncIterator[Waltz]:
        """Lend the client of a WaltzCluster; what it raises while it is lent becomes a problem.

        Raises ``kube.NotFound``, and ``Unavailable`` while the resource does not serve.
        """
        try:
            slot = await self._slot(namespace, name)
            slot.users += 1
            try:
                yield slot.log
            finally:
                slot.users -= 1
                if slot.dropped and slot.users == 0:
                    await slot.resources.aclose()
        except errors.WaltzError as error:
            raise problem_of(error, name) from error

    async def close(self) -> None:
        """Close all clients."""
        while self._slots:
            _, slot = self._slots.popitem()
            slot.dropped = True
            await slot.resources.aclose()

    async def _slot(self, namespace: str, name: str) -> _Slot:
        document = await self._kube.get(WALTZ_CLUSTERS, name, namespace)
        try:
            secret = await self._kube.get(SECRETS, f"{name}-client", namespace)
        except kube.NotFound as error:
            raise Unavailable(_waits(name)) from error
        try:
            data = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
            made_of = (str(document["metadata"]["uid"]), data["servers"], data.get("ca.crt", ""))
            tls = trusting(made_of[2]) if made_of[2] else None
            log = Waltz(made_of[1].split(), tls=tls, patience=PATIENCE_S)
        except (KeyError, ValueError, binascii.Error, ssl.SSLError) as error:
            raise Unavailable(f"Secret {name}-client is damaged: {error}. {_waits(name)}") from error
        async with self._opening:
            slot = self._slots.get((namespace, name))
            if slot is not None and slot.made_of != made_of:
                # Of another uid it is a resource that was deleted and made again: another log.
                await self._drop(self._slots.pop((namespace, name)))
                slot = None
            if slot is None:
                resources = AsyncExitStack()
                slot = _Slot(await resources.enter_async_context(log), resources, made_of)
                self._slots[namespace, name] = slot
                while len(self._slots) > CLIENTS_MAX:
                    await self._drop(self._slots.popitem(last=False)[1])
            self._slots.move_to_end((namespace, name))
            return slot

    async def _drop(self, slot: _Slot) -> None:
        slot.dropped = True
        if slot.users == 0:
            await slot.resources.aclose()


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

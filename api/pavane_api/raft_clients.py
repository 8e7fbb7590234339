"""One Raft client per RaftCluster, kept while it is used.

A client that is used during a promotion follows it by itself, since the members that it knows name the new ones. One
that was idle meanwhile may know only members that are gone, so it is made anew when the endpoints have changed, and
when it has reached nobody.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pavane.raft import errors
from pavane.raft.client import RaftClient
from pavane.raft.errors import Code
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.problems import BadRequest, Conflict, Invalid, NotFound, Problem, TooLarge, Unavailable
from pavane_operator import kube
from pavane_operator.crds.raftcluster import StateMachine
from pavane_operator.kinds.raft.access import NotServing, Suspended, raft_client, refuse_suspended

CLIENTS_MAX = 64  # a client is a few sockets; the one not used for longest is closed first


class Use(Enum):
    """What a request does with a cluster; not every state machine serves it."""

    STATUS = "status"
    APPEND = "append"
    KEYS = "keys"
    TREE = "tree"


_SERVED: Mapping[Use, frozenset[StateMachine]] = {
    Use.STATUS: frozenset(StateMachine),
    Use.APPEND: frozenset({StateMachine.BROADCAST}),
    Use.KEYS: frozenset({StateMachine.KEY_VALUE, StateMachine.TREE}),
    Use.TREE: frozenset({StateMachine.TREE}),
}
_ADVICE: Mapping[Use, str] = {
    Use.APPEND: "its log takes commands alone. Write keys (`pavane raft kv put`), or append to a cluster with "
    "stateMachine: Broadcast.",
    Use.KEYS: "it is a plain log without keys. Append to it (`pavane raft append`), or use a cluster with "
    "stateMachine: KeyValue or Tree.",
    Use.TREE: "it has no tree. Use a cluster with stateMachine: Tree.",
}
_REFUSALS: Mapping[int, type[Problem]] = {
    Code.BAD_COMMAND: BadRequest,
    Code.TOO_LARGE: TooLarge,
    Code.NO_LEASE: NotFound,
    Code.NO_NODE: NotFound,
}
"""The rest is a Conflict with what is stored."""


@dataclass(slots=True)
class _Slot:
    client: RaftClient
    resources: AsyncExitStack
    uid: str
    endpoints: Any
    users: int = 0
    dropped: bool = False


class RaftClients:
    """Clients by namespace and name, at most CLIENTS_MAX."""

    def __init__(self, client: kube.KubeClient) -> None:
        self._kube = client
        self._slots: OrderedDict[tuple[str, str], _Slot] = OrderedDict()
        self._opening = asyncio.Lock()

    async def check(self, namespace: str, name: str, use: Use) -> kube.Object:
        """Return the RaftCluster if it serves ``use``; raises ``kube.NotFound``, ``Conflict`` if it does not so."""
        document = await self._kube.get(RAFT_CLUSTERS, name, namespace)
        try:
            refuse_suspended(document)
        except Suspended as error:
            raise Conflict(f"{error}.") from error
        machine = StateMachine(document["spec"]["stateMachine"])
        if machine not in _SERVED[use]:
            raise Conflict(f"RaftCluster {name} has the state machine {machine}: {_ADVICE[use]}")
        return document

    @asynccontextmanager
    async def of(self, namespace: str, name: str, use: Use = Use.STATUS) -> AsyncIterator[RaftClient]:
        """Lend the client of a RaftCluster; what it raises while it is lent becomes a problem.

        Raises ``kube.NotFound``, ``Unavailable`` while the resource has no endpoint yet, and ``Conflict`` where its
        state machine does not serve this use. A client that reached nobody is forgotten: the next use reads endpoints
        and secret afresh.
        """
        document = await self.check(namespace, name, use)
        try:
            async with self._lent(document, namespace, name) as client:
                yield client
        except errors.Unreachable as error:
            await self._forget(namespace, name)
            raise Unavailable(str(error)) from error
        except errors.RaftError as error:
            raise problem_of(error) from error

    @asynccontextmanager
    async def _lent(self, document: kube.Object, namespace: str, name: str) -> AsyncIterator[RaftClient]:
        slot = await self._slot(document, namespace, name)
        slot.users += 1
        try:
            yield slot.client
        finally:
            slot.users -= 1
            if slot.dropped and slot.users == 0:
                await slot.resources.aclose()

    async def _forget(self, namespace: str, name: str) -> None:
        slot = self._slots.pop((namespace, name), None)
        if slot is not None:
            await self._drop(slot)

    async def close(self) -> None:
        """Close all clients."""
        while self._slots:
            _, slot = self._slots.popitem()
            slot.dropped = True
            await slot.resources.aclose()

    async def _slot(self, document: kube.Object, namespace: str, name: str) -> _Slot:
        async with self._opening:
            key, uid, endpoints = (namespace, name), document["metadata"]["uid"], _endpoints(document)
            slot = self._slots.get(key)
            if slot is not None and (slot.uid != uid or endpoints not in (None, slot.endpoints)):
                # Of another uid it is a resource that was deleted and made again: another cluster with another secret.
                await self._drop(self._slots.pop(key))
                slot = None
            if slot is None:
                slot = await self._open(document)
                self._slots[key] = slot
                while len(self._slots) > CLIENTS_MAX:
                    _, oldest = self._slots.popitem(last=False)
                    await self._drop(oldest)
            self._slots.move_to_end(key)
            return slot

    async def _open(self, document: kube.Object) -> _Slot:
        try:
            made = await raft_client(self._kube, document)
        except (NotServing, ValueError) as error:
            raise Unavailable(f"{error}.") from error
        resources = AsyncExitStack()
        client = await resources.enter_async_context(made)
        return _Slot(client, resources, document["metadata"]["uid"], _endpoints(document))

    async def _drop(self, slot: _Slot) -> None:
        slot.dropped = True
        if slot.users == 0:
            await slot.resources.aclose()


def _endpoints(document: kube.Object) -> Any:
    """What a client is made from; None while nothing serves."""
    return (document.get("status") or {}).get("endpoints") or None


def problem_of(error: errors.RaftError) -> Problem:
    """Return the problem that tells a caller what the cluster answered."""
    match error:
        case errors.Overloaded() | errors.Behind():
            return Unavailable(str(error), headers={"Retry-After": "1"})
        case errors.ReqidTaken(reqid=reqid):
            return Invalid(f"The Idempotency-Key {reqid.hex()} came with another request before: send a new key.")
        case errors.TooLarge():
            return TooLarge(str(error))
        case errors.Compacted():
            return NotFound(str(error))
        case errors.Refused(code=code, text=text):
            return _REFUSALS.get(code, Conflict)(text)
    return Conflict(str(error))

"""One Raft client per RaftCluster, kept while it is used.

A client that is used during a promotion follows it by itself, since the members that it knows name the new ones. One
that was idle meanwhile may know only members that are gone, so it is made anew when the endpoints have changed, and
when it has reached nobody.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

from pavane.raft import errors
from pavane.raft.client import RaftClient
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.lending import Pool
from pavane_api.problems import Conflict, Problem, Unavailable, problem_type
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


class RaftClients:
    """Clients by namespace and name, at most CLIENTS_MAX."""

    def __init__(self, client: kube.KubeClient) -> None:
        self._kube = client
        self._pool = Pool[RaftClient](CLIENTS_MAX)

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
        """Give the client of a RaftCluster until the context ends; what it raises meanwhile becomes a problem.

        Raises ``kube.NotFound``, ``Unavailable`` while the resource has no endpoint yet, and ``Conflict`` where its
        state machine does not serve this use. A client that reached nobody is forgotten: the next use reads endpoints
        and secret afresh.
        """
        document = await self.check(namespace, name, use)
        # Of another uid it is a resource that was deleted and made again: another cluster with another secret.
        key, made_of = (namespace, name), (document["metadata"]["uid"], _endpoints(document))
        try:
            async with self._pool.lend(key, made_of, lambda: self._make(document)) as client:
                yield client
        except errors.RaftError as error:
            if isinstance(error, errors.Unreachable):
                await self._pool.drop(key)
            raise problem_of(error) from error

    async def close(self) -> None:
        """Close all clients."""
        await self._pool.close()

    async def _make(self, document: kube.Object) -> RaftClient:
        try:
            return await raft_client(self._kube, document)
        except (NotServing, ValueError) as error:
            raise Unavailable(f"{error}.") from error


def _endpoints(document: kube.Object) -> Any:
    """What a client is made from; None while nothing serves."""
    return (document.get("status") or {}).get("endpoints") or None


def problem_of(error: errors.RaftError) -> Problem:
    """Return the problem that tells a caller what the cluster answered."""
    problem = problem_type(error)
    match error:
        case errors.Overloaded() | errors.Behind():
            return problem(str(error), headers={"Retry-After": "1"})
        case errors.ReqidTaken(reqid=reqid):
            return problem(f"The Idempotency-Key {reqid.hex()} came with another request before: send a new key.")
        case errors.Refused(text=text):
            return problem(text)
    return problem(str(error))

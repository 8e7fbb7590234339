"""How a generation of servers of a WaltzCluster gets the right to write (docs/specs/operator.md 3.3).

One number in the metadata store says which generation is to own the partitions; the servers move them one after the
other by themselves. Nothing here believes an answer: what counts is what the store says afterwards.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

import structlog

from pavane.raft.client import RaftClient
from pavane.raft.client.tree import TreeKeys
from pavane.raft.errors import Code, RaftError, Refused
from pavane.raft.keys import RaftKeys
from pavane.runtime import names as host_names
from pavane.waltz.errors import WaltzError
from pavane.waltz.wire import blobs
from pavane_operator.crds.waltzcluster import WaltzClusterSpec
from pavane_operator.kinds.port import PromotionStep
from pavane_operator.kinds.waltz import metadata, names
from pavane_operator.kinds.waltz.facts import ALLOW_WRITES, SET_ROLLOUT, Registry, facts
from pavane_operator.plan.model import Facts, Observed, Resource

STEPS = (PromotionStep(SET_ROLLOUT, irreversible=True), PromotionStep(ALLOW_WRITES, allow_writes=True))
BOOTSTRAP_STEPS = (PromotionStep(ALLOW_WRITES, allow_writes=True),)
"""In a bootstrap the servers make the cluster's nodes, and set the number, when they are allowed to write."""
LOOK_TIMEOUT_S = 3.0
"""Of all reads of one look: a store without a leader must not hold up every plan."""
READS_MAX = 32
"""Reads of partitions under way at a time."""

log = structlog.get_logger(__name__)


class WaltzPromotion:
    """Implements `pavane_operator.kinds.port.Promotion` for one resource."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        self._name = name
        self._client: RaftClient | None = None
        self._client_keys: RaftKeys | None = None

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """Read who serves what, and how many replicas take part."""
        return facts(resource, await self._look(resource, observed))

    async def step(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        """Write which generation is to own the partitions, unless a later one stands there already.

        Raises RaftError when the store does not answer, ValueError when it may not be asked.
        """
        if name != SET_ROLLOUT:
            raise ValueError(f"WaltzCluster has no step {name} of its own")
        spec = _spec(resource)
        coming = resource.status.next_generation if resource.status is not None else None
        if coming is None:
            raise ValueError("no generation is being rolled out")
        path = f"{names.root(resource, spec)}/rollout".encode()
        data = bytes(blobs.ROLLOUT.encode(blobs.Rollout(coming, spec.servers.replicas)))
        client = await self._connect(resource, observed)
        if client is None:
            raise ConnectionError("the keys of the RaftCluster with the metadata are missing or damaged")
        present = await client.tree.get(path)
        if present is None:
            try:
                await client.tree.create(path, data)
            except Refused as error:
                if error.code != Code.NODE_EXISTS:
                    raise
        elif blobs.ROLLOUT.decode(present.data).number < coming:
            await client.tree.set(path, data, version=present.version)

    async def undo(self, generation: int, resource: Resource, observed: Observed) -> None:
        """Nothing to take back: a server that is stopped leaves the registry by itself."""

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _look(self, resource: Resource, observed: Observed) -> Registry | None:
        spec = _spec(resource)
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                client = await self._connect(resource, observed)
                return None if client is None else await _registry(client.tree, names.root(resource, spec), spec)
        except (RaftError, WaltzError, TimeoutError) as error:
            log.info("the metadata store does not answer", resource=self._name, error=str(error))
            return None

    async def _connect(self, resource: Resource, observed: Observed) -> RaftClient | None:
        """A client of the metadata store; None while there are no keys. One that is open goes on without them."""
        spec = _spec(resource)
        try:
            keys = metadata.keys(spec, observed.references)
        except ValueError:
            return self._client
        if self._client is not None and self._client_keys != keys:
            await self.close()
        if self._client is None:
            url = metadata.url(spec, resource.namespace)
            client = RaftClient([url], keys.ident, curve=keys.curve, resolve=host_names.resolve)
            self._client = await client.__aenter__()
            self._client_keys = keys
        return self._client


def _spec(resource: Resource) -> WaltzClusterSpec:
    assert isinstance(resource.spec, WaltzClusterSpec)  # noqa: S101 - the registry parses by the kind's model
    return resource.spec


async def _registry(tree: TreeKeys, root: str, spec: WaltzClusterSpec) -> Registry:
    """Everything that stands below the root and matters here."""
    parent = f"{root}/serverDescriptors"
    node, rollout = await asyncio.gather(tree.get(parent.encode()), tree.get(f"{root}/rollout".encode()))
    if node is None:
        return Registry()
    listed, _ = await tree.children(parent.encode())
    descriptors = await asyncio.gather(*(tree.get(f"{parent}/{name.decode()}".encode()) for name in listed))
    ids = [blobs.SERVER_DESCRIPTOR.decode(found.data).server_id for found in descriptors if found is not None]
    numbers = await asyncio.gather(*(tree.get(f"{root}/rollout/s_{server}".encode()) for server in ids))
    limit = asyncio.Semaphore(READS_MAX)

    async def partition(number: int) -> blobs.PartitionMetadata | None:
        async with limit:
            found = await tree.get(f"{root}/store/partition/{number}".encode())
        return None if found is None else blobs.PARTITION_METADATA.decode(found.data)

    states = await asyncio.gather(*(partition(number) for number in range(spec.partitions)))
    assignment = blobs.PARTITION_ASSIGNMENT.decode(node.data)
    return Registry(
        rollout=None if rollout is None else blobs.ROLLOUT.decode(rollout.data),
        assignment=assignment,
        consistent=assignment.cversion == node.cversion,
        servers={
            server: 0 if found is None else blobs.SERVER_ROLLOUT.decode(found.data).number
            for server, found in zip(ids, numbers, strict=True)
        },
        partitions={number: state for number, state in enumerate(states) if state is not None},
    )

"""How a generation of servers of a WaltzCluster gets the right to write (docs/specs/operator.md 3.3).

One number in the metadata store says which generation is to own the partitions; the servers move them one after the
other by themselves. Nothing here believes an answer: what counts is what the store says afterwards.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import datetime

import httpx2
import structlog

from pavane.pods.waltz_metadata import RaftMetadata, store_of
from pavane.pods.waltz_settings import Metadata as Peers
from pavane.pods.waltz_settings import ZooKeeperServers
from pavane.waltz.aio.cluster import ClusterConfig, check_tree, set_replicas, set_rollout
from pavane.waltz.aio.zookeeper import ZooKeeperMetadata
from pavane.waltz.errors import WaltzError
from pavane.waltz.state.metadata import Metadata, MetadataError, OtherCluster, Paths
from pavane.waltz.wire import blobs
from pavane_operator.crds.waltzcluster import WaltzClusterSpec
from pavane_operator.kinds.base import spec_of
from pavane_operator.kinds.waltz import archives, copies, metadata, names
from pavane_operator.kinds.waltz.absent import noted
from pavane_operator.kinds.waltz.copies import told_by, told_in
from pavane_operator.kinds.waltz.facts import ALLOW_WRITES, SET_REPLICAS, SET_ROLLOUT, Registry, facts
from pavane_operator.kube import pods_http
from pavane_operator.plan.model import Facts, Observed, Resource
from pavane_operator.plan.port import PromotionStep

STEPS = (PromotionStep(SET_ROLLOUT, irreversible=True), PromotionStep(ALLOW_WRITES, allow_writes=True))
BOOTSTRAP_STEPS = (PromotionStep(ALLOW_WRITES, allow_writes=True),)
"""In a bootstrap the servers make the cluster's nodes, and set the number, when they are allowed to write."""
LOOK_TIMEOUT_S = 3.0
"""Of all reads of one look: a store without a leader must not hold up every plan."""
READS_MAX = 32
"""Reads of partitions under way at a time."""

log = structlog.get_logger(__name__)


class WaltzPromotion:
    """Implements `pavane_operator.plan.port.Promotion` for one resource."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        self._name = name
        self._http: httpx2.AsyncClient | None = None
        self._store: RaftMetadata | ZooKeeperMetadata | None = None
        self._found: Peers | ZooKeeperServers | None = None

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """Read who serves what, how many replicas take part, which storage nodes cannot use their copies, and how far
        the archive is."""
        if self._http is None:
            self._http = pods_http()
        servers = observed.pods if spec_of(resource, WaltzClusterSpec).archive is not None else ()
        told, owned, registry = await asyncio.gather(
            told_by(self._http, observed.standing, copies.PATH, told_in),
            told_by(self._http, servers, archives.PATH, archives.Owned.model_validate),
            self._look(resource, observed),
        )
        ready = {pod.name for pod in observed.standing if pod.ready}
        found = facts(resource, registry, told, ready, owned, {pod.name for pod in observed.standing})
        own = {**found.own_status, "clients": noted(resource, observed.children)}
        return replace(found, own_status=own)

    async def step(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        """Write which generation is to own the partitions, unless a later one stands there already; or how many of
        them there are, and where.

        Raises MetadataError when the store does not answer, ValueError when it may not be asked.
        """
        if name not in (SET_ROLLOUT, SET_REPLICAS):
            raise ValueError(f"WaltzCluster has no step {name} of its own")
        spec = spec_of(resource, WaltzClusterSpec)
        coming = resource.status.next_generation if resource.status is not None else None
        if coming is None and name == SET_ROLLOUT:
            raise ValueError("no generation is being rolled out")
        store = await self._connect(resource, observed)
        if store is None:
            raise ConnectionError("the keys of the RaftCluster with the metadata are missing or damaged")
        await check_tree(store, _cluster(resource, spec))
        if coming is None:
            await set_replicas(store, _cluster(resource, spec))
        else:
            active = (resource.status.active_generation if resource.status is not None else None) or 0
            back_from = active if coming < active else 0
            root, wanted = names.root(resource, spec), spec.servers.replicas
            await set_rollout(store, root, coming, wanted, back_from=back_from)

    async def undo(self, generation: int, resource: Resource, observed: Observed) -> None:
        """Nothing to take back: a server that is stopped leaves the registry by itself."""

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
        await self._leave_store()

    async def _leave_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.__aexit__(None, None, None)

    async def _look(self, resource: Resource, observed: Observed) -> Registry | None:
        spec = spec_of(resource, WaltzClusterSpec)
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                store = await self._connect(resource, observed)
                if store is None:
                    return None
                await check_tree(store, _cluster(resource, spec))
                return await _registry(store, names.root(resource, spec))
        except OtherCluster as error:
            return Registry(foreign=str(error))
        except (MetadataError, WaltzError, TimeoutError) as error:
            log.info("the metadata store does not answer", resource=self._name, error=str(error))
            return None

    async def _connect(self, resource: Resource, observed: Observed) -> RaftMetadata | ZooKeeperMetadata | None:
        """The metadata store; None while there are no keys of it. A way that is open goes on without them."""
        try:
            found = metadata.servers(spec_of(resource, WaltzClusterSpec), resource.namespace, observed.references)
        except ValueError:
            return self._store
        if self._store is not None and self._found != found:
            await self._leave_store()
        if self._store is None:
            self._store = await store_of(found).__aenter__()
            self._found = found
        return self._store


def _cluster(resource: Resource, spec: WaltzClusterSpec) -> ClusterConfig:
    name = spec.cluster_name or resource.name
    storage = names.storage_addresses(resource.name, resource.namespace, spec.storage.nodes)
    return ClusterConfig(
        name,
        names.root(resource, spec),
        names.key(resource.uid),
        spec.partitions,
        tuple(storage),
        admin_port=names.NODE_ADMIN_PORT.number,
    )


async def _registry(store: Metadata, root: str) -> Registry:
    """Everything that stands below the root and matters here."""
    paths = Paths(root)
    node, rollout, placed, params = await asyncio.gather(
        *map(store.get, (paths.servers, paths.rollout, paths.assignment, paths.root))
    )
    if node is None or placed is None or params is None:
        return Registry()
    replicas = blobs.REPLICA_ASSIGNMENTS.decode(placed.data).replicas
    total = max((1 + one for each in replicas for one in each.partitions), default=0)
    listed = await store.children(paths.servers)
    descriptors = await asyncio.gather(*(store.get(f"{paths.servers}/{name}") for name in listed))
    ids = [blobs.SERVER_DESCRIPTOR.decode(found.data).server_id for found in descriptors if found is not None]
    numbers = await asyncio.gather(*(store.get(f"{paths.rollout}/s_{server}") for server in ids))
    limit = asyncio.Semaphore(READS_MAX)

    async def partition(number: int) -> blobs.PartitionMetadata | None:
        async with limit:
            found = await store.get(paths.partition(number))
        return None if found is None else blobs.PARTITION_METADATA.decode(found.data)

    states = await asyncio.gather(*(partition(number) for number in range(total)))
    assignment = blobs.PARTITION_ASSIGNMENT.decode(node.data)
    return Registry(
        rollout=None if rollout is None else blobs.ROLLOUT.decode(rollout.data),
        assignment=assignment,
        consistent=assignment.cversion == node.cversion,
        servers={
            server: 0 if found is None else blobs.SERVER_ROLLOUT.decode(found.data).number
            for server, found in zip(ids, numbers, strict=True)
        },
        storage=tuple(each.address for each in replicas if each.partitions),
        total=total,
        keys=blobs.CLUSTER_PARAMS.decode(params.data).partitions,
        partitions={number: state for number, state in enumerate(states) if state is not None},
        looked_ms=time.time_ns() // 1_000_000,
    )

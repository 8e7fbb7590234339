"""Make the nodes of a cluster again whose metadata store was lost, from what its storage nodes hold (13.6)."""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pavane.waltz.aio.admin import StorageAdmin
from pavane.waltz.aio.cluster import COUNTER_BYTES, ClusterConfig, check_tree, make_tree
from pavane.waltz.aio.stream import Asker, connect
from pavane.waltz.errors import StorageRefused, WaltzError
from pavane.waltz.state.adoption import CLIENTS_MAX, Adopted, Copy, adopt, counter
from pavane.waltz.state.metadata import Metadata, Paths
from pavane.waltz.state.recovery import EMPTY, NEVER
from pavane.waltz.wire import blobs
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.frame import STORAGE_CLIENT

ANSWER_S = 5.0  # for a storage node to connect, and for each of its answers: one that takes longer counts as away
TAIL_RECORDS = 1000  # looked through for generations and client ids
NOBODY = 0  # id of the server that owned all partitions before: ids of servers begin with 1


async def adopt_cluster(
    metadata: Metadata,
    config: ClusterConfig,
    admins: Sequence[str],
    tls: ssl.SSLContext | None,
    rollout: blobs.Rollout | None,
    *,
    dry_run: bool = False,
    hold: bool = False,
    keys: int = 0,
) -> list[Adopted]:
    """Make the tree again, so that servers of ``rollout`` open every partition with all that was acknowledged.

    ``admins`` are the admin ports of ``config.storage``, in its order. With ``dry_run`` nothing is fenced or changed.
    ``hold``: servers drop what is old unless consumers need it, so nothing goes before these have begun again. ``keys``
    is how many partitions the cluster was made with, 0: as many as there are.
    Raises ``StorageRefused`` where the metadata store holds this cluster, or a partition has too few copies, and
    ``MetadataError`` as the store does. It may be called again after a failure.
    """
    paths = Paths(config.root)
    await check_tree(metadata, config)
    looks = await asyncio.gather(*(_look(admin, config, tls) for admin in admins))
    # The log may have more partitions than this server was started with.
    config = replace(config, partitions=max([config.partitions, *(1 + max(copies) for copies in looks if copies)]))
    # Read before the store is seen to be lost: a server that claims a partition afterwards has changed the version.
    numbers = range(config.partitions)
    written = (*map(paths.partition, numbers), paths.client_ids, paths.server_ids, paths.rollout)
    before = {path: await metadata.get(path) for path in written}
    if await metadata.get(paths.servers) is not None:
        raise StorageRefused(f"the metadata store holds this log, at {config.root}: there is nothing to be adopted")
    # A node that has answered has not made the partitions beyond its last: they were added, and never open.
    told = {
        node: copies | dict.fromkeys(range(max(copies) + 1, config.partitions), Copy(NEVER, EMPTY, EMPTY))
        for node, copies in zip(config.storage, looks, strict=True)
        if copies
    }
    hold_ms = int(1000 * time.time()) if hold else 0
    found = _judge(config, told, {}, hold_ms)
    if dry_run:
        return found
    fences = {one.partition: one.metadata.session for one in found if one.metadata is not None}
    held = await asyncio.gather(*(_fenced(node, config, tls, fences) for node in told))
    unopened = {one.partition for one in found} - fences.keys()
    known = {
        node: {number: copy for number, copy in told[node].items() if number in unopened} | copies
        for node, copies in zip(told, held, strict=True)
    }
    found = _judge(config, known, fences, hold_ms)
    used = max((copy.client for copies in held for copy in copies.values()), default=0)
    number = counter(time.time(), used).to_bytes(COUNTER_BYTES, "big")
    nodes = {paths.client_ids: number, paths.server_ids: number}
    if rollout is not None:
        nodes[paths.rollout] = blobs.ROLLOUT.encode(rollout)
    adopted = {one.partition: one.metadata for one in found if one.metadata is not None}
    nodes |= {paths.partition(number): blobs.PARTITION_METADATA.encode(meta) for number, meta in adopted.items()}
    for path, data in nodes.items():  # left by an adoption that did not come to its end
        if (node := before[path]) is not None:
            await metadata.set(path, data, node.version)
    owned = tuple(blobs.AssignedPartition(number, meta.generation) for number, meta in adopted.items())
    former = blobs.PartitionAssignment(-1, config.partitions, (blobs.ServerPartitions(NOBODY, owned),))
    nodes[paths.servers] = blobs.PARTITION_ASSIGNMENT.encode(former)
    if keys:
        nodes[paths.root] = blobs.CLUSTER_PARAMS.encode(blobs.ClusterParams(config.name, keys))
    await make_tree(metadata, config, nodes)
    return found


def _judge(
    config: ClusterConfig, told: Mapping[str, Mapping[int, Copy]], fences: Mapping[int, int], hold_ms: int
) -> list[Adopted]:
    def of(number: int) -> dict[str, Copy]:
        return {node: copies[number] for node, copies in told.items() if number in copies}

    return [adopt(one, config.storage, of(one), fences.get(one, NEVER), hold_ms) for one in range(config.partitions)]


async def _look(address: str, config: ClusterConfig, tls: ssl.SSLContext | None) -> dict[int, Copy]:
    """Return what a storage node says of its copies by its admin port, which fences nobody; none: it is away."""
    try:
        async with asyncio.timeout(ANSWER_S):
            admin = await StorageAdmin.connect(address, config.key, config.partitions, tls)
            try:
                answer: s.MetricsResponse = await admin.ask(s.MetricsRequest(admin.head()))
            finally:
                admin.hang_up("done")
    except (WaltzError, TimeoutError):
        return {}
    told: dict[str, dict[str, Any]] = json.loads(answer.json)["partitions"]
    return {
        int(number): Copy(
            one["session-id"],
            one["low-water-mark"],
            one["max-transaction-id"],
            "" if one["available"] else one["fault"] or "switched off",
        )
        for number, one in told.items()
    }


async def _fenced(
    address: str, config: ClusterConfig, tls: ssl.SSLContext | None, fences: Mapping[int, int]
) -> dict[int, Copy]:
    """Let a node obey nobody but ``fences``' sessions and later ones, durably, then return what it holds."""
    found = {}
    with suppress(WaltzError, OSError, TimeoutError):  # what it has not told counts as away
        async with asyncio.timeout(ANSWER_S):
            node = await connect(lambda: _Node(address), address, tls)
        try:
            await node.ask(s.Open(s.OPEN_HEAD, config.key, config.partitions))
            for partition, session in fences.items():
                found[partition] = await node.copy(partition, session)
        finally:
            node.hang_up("done")
    return found


class _Node(Asker):
    """A connection to a storage node as a server has it: one question at a time."""

    def __init__(self, address: str) -> None:
        super().__init__(STORAGE_CLIENT, f"storage node {address}")
        self._seq = 0

    async def ask(self, message: Any) -> Any:
        """Return the answer to a message. Raises ``Unavailable``, ``StorageRefused``."""
        answer = await self.answer(message.head.seq, message, ANSWER_S)
        if isinstance(answer, s.Failure):
            raise StorageRefused(answer.message)
        return answer

    async def copy(self, partition: int, session: int) -> Copy:
        """Raise the fence of a partition by the first question; what it refuses to tell is its fault."""

        async def ask(kind: Any, *arguments: Any) -> Any:
            self._seq += 1
            return await self.ask(kind(s.Head(session, self._seq, partition), *arguments))

        try:
            info = await ask(s.LastSessionInfoRequest, False)
            last = (await ask(s.MaxTransactionIdRequest, False)).txid
            first = (
                (await ask(s.Retain, 0, -1, -1)).first if self.channel.version else 0
            )  # else it never drops anything
            tail = await ask(s.RecordHeaderListRequest, max(first, last - TAIL_RECORDS + 1), TAIL_RECORDS)
        except StorageRefused as error:
            return Copy(NEVER, EMPTY, EMPTY, str(error))
        used = [(record.reqid.generation, record.reqid.client) for record in tail.records]
        generation = max((each[0] for each in used), default=0)
        client = max((each[1] for each in used if each[1] < CLIENTS_MAX), default=0)
        return Copy(info.session, info.lwm, last, "", first, generation, client)

    def heard(self, message: Any) -> None:
        self.answered(message.head.seq, message)

"""A writer whose every acknowledged update must be in the log, once, and equal in every peer's folder."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from pavane.raft.client import RaftClient
from pavane.raft.wire.entry import EntryType, entry_data, entry_type
from tests.interop.cluster import Cluster
from tests.interop.raw import IDENT
from tests.services.eventually import eventually

AT_ONCE = 4  # updates under way
ENOUGH_S = 40.0


class Writer:
    """Writes numbers, AT_ONCE at a time; ``acknowledged`` are (index, data)."""

    def __init__(self, client: RaftClient) -> None:
        self._client = client
        self._number = 0
        self._stop = False
        self.acknowledged: list[tuple[int, bytes]] = []

    async def _write(self) -> None:
        while not self._stop:
            data = b"%d" % self._number
            self._number += 1
            self.acknowledged.append((await self._client.update(data), data))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._write())

    def stop(self) -> None:
        self._stop = True

    async def more(self, count: int) -> None:
        """Wait until ``count`` further updates were acknowledged."""
        goal = len(self.acknowledged) + count
        await eventually(lambda: len(self.acknowledged) >= goal, ENOUGH_S)


@asynccontextmanager
async def writer(cluster: Cluster) -> AsyncIterator[Writer]:
    """Write until the end of the block; what is under way then is waited for."""
    async with RaftClient(cluster.urls, IDENT) as client:
        writer = Writer(client)
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.run())
            yield writer
            writer.stop()


def check_logs(cluster: Cluster, acknowledged: Iterable[tuple[int, bytes]]) -> None:
    """End the peers that run; their logs are equal and hold what was acknowledged, each once and where it was told."""
    cluster.settled()
    ids = [id_ for id_, member in cluster.members.items() if member.process is not None]
    for id_ in ids:
        cluster.kill(id_, signal.SIGTERM)
    logs = {id_: cluster.entries(id_) for id_ in ids}
    first = logs.pop(ids[0])
    for id_, log in logs.items():
        assert log == first, f"the logs of {ids[0]} and {id_} differ"
    states = [(index, bytes(entry_data(entry))) for index, entry in first if entry_type(entry) == EntryType.STATE]
    assert sorted(states) == sorted(acknowledged)

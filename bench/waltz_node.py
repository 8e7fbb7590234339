"""One process of the log that `bench waltz` measures: `storage` or `server`, without the pod around it."""

import asyncio
import signal
import sys
from pathlib import Path
from uuid import UUID

from pavane.waltz.aio.cluster import ClusterConfig, make_tree
from pavane.waltz.aio.memory import MemoryMetadata
from pavane.waltz.server import StorageNode, WaltzServer

KEY = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
HOST = "127.0.0.1"


async def storage(folder: Path, port: int, partitions: int) -> None:
    """Keep records in ``folder`` until SIGTERM."""
    node = StorageNode(folder, KEY, partitions)
    await node.start(HOST, port)
    await _until_terminated()
    await node.stop()


async def server(port: int, partitions: int, nodes: list[str]) -> None:
    """Own all partitions; the metadata are in memory, for nothing is asked of them while appends go on."""
    config = ClusterConfig("bench", "/bench", KEY, partitions, tuple(nodes))
    metadata = MemoryMetadata()
    await make_tree(metadata, config)
    running = WaltzServer(config, metadata, advertise=f"{HOST}:{port}")
    await running.start(HOST, port)
    running.allow_writes()
    await _until_terminated()
    await running.stop()


async def _until_terminated() -> None:
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    await terminated.wait()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "storage":
        asyncio.run(storage(Path(rest[0]), int(rest[1]), int(rest[2])))
    else:
        asyncio.run(server(int(rest[0]), int(rest[1]), rest[2:]))

"""One process of the log that `bench` measures: `storage` or `server`, without the pod around it, or a `client`."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from uuid import UUID

from pavane import telemetry
from pavane.runtime.certificates import Certificates
from pavane.runtime.garbage import freeze_survivors
from pavane.waltz.aio.cluster import ClusterConfig, make_tree
from pavane.waltz.client import Waltz
from pavane.waltz.server import StorageNode, WaltzServer
from tests.services.waltz.memory import MemoryMetadata

KEY = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
HOST = "127.0.0.1"
CLUSTER = "bench"
TLS_VARIABLE = "BENCH_TLS"
UNDER_WAY = 1000  # appends of the client
WARM_UP = 2000  # appends that are not counted


def certificates() -> Certificates | None:
    """Return those with which all ports and links have TLS, if the environment names a folder of them."""
    folder = os.environ.get(TLS_VARIABLE)
    return Certificates(Path(folder)) if folder else None


async def storage(folder: Path, port: int, partitions: int) -> None:
    """Keep records in ``folder`` until SIGTERM."""
    tls, node = certificates(), StorageNode(folder, KEY, partitions, cluster=CLUSTER)
    await node.start(HOST, port, tls.mutual_port if tls else None)
    await until_terminated()
    await node.stop()


async def server(port: int, partitions: int, nodes: list[str]) -> None:
    """Own all partitions; the metadata are in memory, for nothing is asked of them while appends go on."""
    config = ClusterConfig(CLUSTER, "/bench", KEY, partitions, tuple(nodes))
    metadata = MemoryMetadata()
    await make_tree(metadata, config)
    tls = certificates()
    running = WaltzServer(
        config,
        metadata,
        advertise=f"{HOST}:{port}",
        client_tls=tls.open_port if tls else None,
        storage_tls=tls.dialling if tls else None,
    )
    freeze_survivors()  # as the pod does
    await running.start(HOST, port)
    running.allow_writes()
    await until_terminated()
    await running.stop()


async def until_terminated() -> None:
    """Wait for SIGTERM."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    await terminated.wait()


async def client(address: str, count: int) -> None:
    """Append; say so when it is warm, wait for a line, then say appends per second and CPU seconds."""
    async with Waltz([address]) as log:
        await _append(log, WARM_UP)
        sys.stdout.write("warm\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        began, cpu_began = time.perf_counter(), time.process_time()
        await _append(log, count)
        rate, spent = count / (time.perf_counter() - began), time.process_time() - cpu_began
        sys.stdout.write(f"{rate} {spent}\n")
        sys.stdout.flush()


async def _append(log: Waltz, count: int) -> None:
    todo = iter(range(count))

    async def work() -> None:
        for _ in todo:
            await log.append(0, bytes(100))

    await asyncio.gather(*(work() for _ in range(UNDER_WAY)))


def main() -> None:
    """Be what the arguments say; where the environment names a collector, with spans."""
    role, *rest = sys.argv[1:]
    telemetry.configure(f"bench-{role}")
    try:
        if role == "storage":
            asyncio.run(storage(Path(rest[0]), int(rest[1]), int(rest[2])))
        elif role == "server":
            asyncio.run(server(int(rest[0]), int(rest[1]), rest[2:]))
        else:
            asyncio.run(client(rest[0], int(rest[1])))
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    main()

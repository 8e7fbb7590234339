"""A client that gets no answer says whether it was the name, the address, the keys, the secret or the quorum."""

from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.curve import CurveKeys, CurveServer
from pavane.raft.errors import Unreachable
from pavane.raft.server import RaftServer
from tests.services.raft.peers import free_url
from tests.services.raft.test_curve import IDENT, LONE_PUBLIC, LONE_SECRET, pair

TRY_S = 0.3


async def why(client: RaftClient, expected: str) -> None:
    """Try until the cause is ``expected``, for a connection may take its time."""
    while True:
        with pytest.raises(Unreachable) as raised:
            await client.update(b"x", timeout_s=TRY_S)
        if expected in str(raised.value):
            return


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (None, "speaks CURVE, and this client has no keys"),
        (CurveKeys(LONE_PUBLIC, *pair()), "does not know this client's key"),
        (
            CurveKeys(pair()[0], *pair()),
            "does not accept the CURVE handshake: see that the server's public key is right",
        ),
    ],
)
async def test_keys_are_named(tmp_path: Path, keys: CurveKeys | None, says: str) -> None:
    url, clients = free_url(), tmp_path / "clients"
    clients.mkdir()
    (clients / "one.pub").write_bytes(pair()[0] + b"\n")
    config = Config("1", IDENT, url=url, peers=(("1", url),))
    server = RaftServer(config, data=tmp_path / "1", bind=url, curve=CurveServer(LONE_SECRET, clients))
    await server.start()
    try:
        async with RaftClient([url], IDENT, curve=keys) as client:
            await why(client, f"Keys: {url} {says}")
    finally:
        await server.stop()


async def test_secret_quorum_address_and_name_are_told_apart(tmp_path: Path) -> None:
    url, absent = free_url(), free_url()
    # One of two members: it answers, and has no majority.
    config = Config("1", IDENT, url=url, peers=(("1", url), ("2", absent)))
    server = RaftServer(config, data=tmp_path / "1", bind=url)
    await server.start()
    try:
        async with RaftClient([url], IDENT) as client:
            await why(client, "Quorum: peers answer, but none of them leads")
        async with RaftClient([url], b"another") as client:
            await why(client, f"Secret: {url} took the connection")
    finally:
        await server.stop()
    async with RaftClient([absent], IDENT) as client:
        await why(client, "Address: nobody takes a connection there")

    def nobody(host: str) -> list[str]:
        raise OSError(host)

    async with RaftClient(["tcp://quickstrat.default.svc:8047"], IDENT, resolve=nobody) as client:
        await why(client, "Name: tcp://quickstrat.default.svc:8047 has no address")

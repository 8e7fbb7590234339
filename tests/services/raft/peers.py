"""Whole peers over real sockets with their logs on disk, for the tests of this folder."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from pavane.raft.state.configuration import Members
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import EntryType
from tests.services.ports import free_ports

IDENT = b"s3cr3t"
ELECTION_MIN_MS = 300  # two cores that eight test workers share make the usual 200 flap
ELECTION_MAX_MS = 600


def free_url(address: str = "127.0.0.1") -> str:
    return free_urls(1, address)[0]


def free_urls(count: int, address: str = "127.0.0.1") -> list[str]:
    return [f"tcp://{address}:{port}" for port in free_ports(count)]


def leads(server: RaftServer) -> bool:
    return server.status().role is Role.LEADER


@dataclass
class Place:
    """Where one peer lives, so that it can be started again."""

    id: str
    url: str
    data: Path
    members: Members

    def server(self, **changes: Any) -> RaftServer:
        config = Config(
            id=self.id,
            ident=IDENT,
            url=self.url,
            peers=self.members,
            election_min=ELECTION_MIN_MS,
            election_max=ELECTION_MAX_MS,
        )
        return RaftServer(config, data=self.data, bind=self.url, **changes)


async def started(stack: AsyncExitStack, server: RaftServer) -> RaftServer:
    stack.push_async_callback(server.stop)
    await server.start()
    return server


def places(tmp_path: Path, count: int) -> list[Place]:
    members = tuple((str(number), free_url()) for number in range(1, count + 1))
    return [Place(peer, url, tmp_path / peer, members) for peer, url in members]


async def written(client: RaftClient) -> list[bytes]:
    return [bytes(entry.data) async for entry in client.entries() if entry.type == EntryType.STATE]

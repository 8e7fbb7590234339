"""Requests that only an application's state machine understands (docs/specs/raft.md 10.7, 11.1)."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.client.calls import DispatchCall
from pavane.raft.config import Config
from pavane.raft.errors import Unreachable
from pavane.raft.machine import Broadcast
from pavane.raft.server import RaftServer
from pavane.raft.wire.frames import Frame
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT
from tests.services.raft.test_client_procedure import TIMEOUT_S, led_by


class Counter(Broadcast):
    """Counts the entries and tells how many there are."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, index: int, reqid: bytes, data: memoryview) -> None:
        del index, reqid, data
        self.count += 1

    def dispatch(self, kind: bytes, arguments: Sequence[Frame], *, leads: bool) -> Sequence[bytes] | None:
        match kind:
            case b"count":
                return [b"%d" % self.count, b"leader" if leads else b"follower", *map(bytes, arguments)]
            case b"broken":
                raise RuntimeError("a fault of the application")
        return None


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RaftClient]:
    (url,) = free_urls(1)
    config = Config(id="1", ident=IDENT, url=url, peers=(("1", url),))
    server = RaftServer(config, data=tmp_path, bind=url, machine=Counter())
    await server.start()
    try:
        async with RaftClient([server.bound], IDENT) as connected:
            yield connected
    finally:
        await server.stop()


async def test_the_application_answers(client: RaftClient) -> None:
    for _ in range(3):
        await client.update(b"data")

    answer = await client.dispatch(b"count", b"frame", idempotent=True)
    assert [bytes(frame) for frame in answer] == [b"3", b"leader", b"frame"]


@pytest.mark.parametrize("kind", [b"broken", b"unknown"])
async def test_a_request_that_it_fails_at_or_does_not_know_is_met_with_silence(client: RaftClient, kind: bytes) -> None:
    with pytest.raises(Unreachable):
        await client.dispatch(kind, idempotent=True, timeout_s=0.3)
    assert await client.update(b"data") > 0


@pytest.mark.parametrize("kind", [b"", b"x", b"pv.mine"])
async def test_types_of_the_protocol_are_refused(client: RaftClient, kind: bytes) -> None:
    with pytest.raises(ValueError, match="type"):
        await client.dispatch(kind, idempotent=True)


@pytest.mark.parametrize("idempotent", [True, False])
def test_only_what_may_be_repeated_is_repeated(idempotent: bool) -> None:
    network = led_by("1")
    call = DispatchCall(b"8 bytes!", b"count", (), 30.0, idempotent=idempotent)
    network.submit(call)
    network.leaders = dict.fromkeys(("1", "2", "3"), "2")
    network.run(2 * TIMEOUT_S)
    assert len(network.kinds("count")) == 1 + idempotent

    network.connection("1", up=False)
    assert [type(finished.error) for finished in network.finished] == ([] if idempotent else [Unreachable])

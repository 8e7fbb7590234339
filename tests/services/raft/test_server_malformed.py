"""Whatever arrives, a peer answers the next ``^`` (docs/specs/raft.md 3.4, 18.1)."""

import json
import logging
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from pavane.raft.config import Config
from pavane.raft.core.core import Core
from pavane.raft.server import RaftServer
from pavane.raft.wire.frames import ENTRY_DATA_BYTES

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "raft.json").read_text())
IDENT = b"s3cr3t"
WAIT_MS = 20_000
PEERS = (("1", "tcp://127.0.0.1:1"), ("2", "tcp://127.0.0.1:2"))
# One of every type that the vectors may lack.
OTHERS = (
    (b"?", b"2", b"\x07", b"\x03", b"\x06"),
    (b"+", b"2", b"\x07", b"\x00", b"\x00", b"\x00", bytes(12) + b"\x02" + bytes(7) + b"\xc0"),
    (b"$", b"2", b"\x07", b"\x01", b"\x01", b"\x00", b"\x03", b"abc"),
    (b"^",),
    (b"%",),
    (b"=", b"data"),
    (b"&", bytes.fromhex("9192a131b17463703a2f2f3132372e302e302e313a31")),
    (b"<", b"\x00", b"\x05", b"\x00"),
    (b"*",),
    (b"pv.hello", b"2", b"\x07", b"8 bytes.", b"\x81\xa1v\x01"),
    (b"pv.vote", b"2", b"\x07", b"\x03", b"\x06", b"\x01"),
    (b"pv.now", b"2", b"\x07", b"\x03", b"\x03"),
    (b"pv.status",),
    (b"pv.transfer", b"\xc0"),
)


def requests() -> dict[str, list[bytes]]:
    """Return one message per type, id first, as the vectors have it: the document's and our own."""
    found: dict[str, list[bytes]] = {}
    for vector in (*VECTORS["frames"], *VECTORS["extension"]["frames"]):
        frames = [bytes.fromhex(frame) for frame in vector["frames"]]
        if vector["direction"] == "request" and len(frames) > 1 and frames[1] == IDENT:
            found[f"{vector['message']}-{len(found)}"] = [request_id(frames[0]), *frames]
    for kind, *fields in OTHERS:
        found[kind.decode()] = [request_id(kind), kind, IDENT, *fields]
    return found


def request_id(kind: bytes) -> bytes:
    """Return an id of the length that the type wants."""
    return b"\x01" if kind in (b"?", b"+", b"$") else b"twelve bytes"


def mutations(frames: list[bytes]) -> Iterator[list[bytes]]:
    """The message with one frame removed, emptied, doubled, cut, changed, made absurdly large; and with extra ones."""
    yield frames
    for at in range(len(frames)):
        before, frame, after = frames[:at], frames[at], frames[at + 1 :]
        yield before + after
        yield [*before, b"", *after]
        yield [*before, frame, frame, *after]
        yield [*before, frame[:-1], *after]
        yield [*before, bytes(byte ^ 0xFF for byte in frame), *after]
        yield [*before, b"\xff" * 70, *after]
        yield [*before, bytes(ENTRY_DATA_BYTES + 1), *after]
    yield frames + [b"extra"] * 100


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RaftServer]:
    """A member of a group of two, so that messages of the other one are taken seriously."""
    server = RaftServer(Config("1", IDENT, url=PEERS[0][1], peers=PEERS), data=tmp_path, bind="tcp://127.0.0.1:0")
    await server.start()
    yield server
    await server.stop()


class Attacker:
    """A plain DEALER that knows the secret."""

    def __init__(self, url: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.connect(url)

    async def throw(self, frames: list[bytes]) -> None:
        if frames:
            await self._socket.send_multipart(frames)

    async def is_answered(self) -> bool:
        """Ask ``^`` and wait for that very answer."""
        await self._socket.send_multipart([b"are you there", b"^", IDENT])
        while True:
            if not await self._socket.poll(WAIT_MS):
                return False
            if (await self._socket.recv_multipart())[0] == b"are you there":
                return True

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
async def attacker(server: RaftServer) -> AsyncIterator[Attacker]:
    attacker = Attacker(server.bound)
    yield attacker
    attacker.close()


@pytest.mark.parametrize("name", requests())
async def test_a_mutilated_message_stops_nothing(server: RaftServer, attacker: Attacker, name: str) -> None:
    for frames in mutations(requests()[name]):
        await attacker.throw(frames)
    assert await attacker.is_answered()
    assert not server.failure.done()


async def test_noise_stops_nothing_and_is_counted(server: RaftServer, attacker: Attacker) -> None:
    rng = random.Random(7)
    words = [b"", IDENT, b"1", b"2", b"\x01", b"twelve bytes", *(frame for one in requests().values() for frame in one)]
    for _ in range(3000):
        await attacker.throw([rng.choice(words) for _ in range(rng.randint(1, 9))])
    assert await attacker.is_answered()
    dropped = {labels["reason"]: value for name, labels, value in server.metrics() if name.endswith("dropped_total")}
    assert {"ident", "type", "frames"} <= set(dropped)


async def test_a_message_without_the_secret_is_never_answered(server: RaftServer, attacker: Attacker) -> None:
    for name, frames in requests().items():
        assert frames[2] == IDENT, name
        await attacker.throw([b"no answer", frames[1], b"another", *frames[3:]])
    await attacker._socket.send_multipart([b"are you there", b"^", IDENT])
    assert (await attacker._socket.recv_multipart())[0] == b"are you there"


async def test_a_bug_of_ours_ends_the_peer_instead_of_half_a_turn(
    server: RaftServer, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Core, "receive", broken)
    await attacker.throw([b"id", b"^", IDENT])
    failure = await server.failure
    assert failure.exit_code == 1
    assert "a bug" in failure.reason


async def test_what_is_dropped_is_told_once_for_each_reason_and_without_contents(
    attacker: Attacker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pavane.raft")
    for _ in range(3):
        await attacker.throw([b"id", b"^", b"another secret"])
        await attacker.throw([b"id", b"Z", IDENT])
    assert await attacker.is_answered()
    told = [record.getMessage() for record in caplog.records if "takes no notice" in record.getMessage()]
    assert sorted(line.rpartition(" ")[2] for line in told) == ["ident", "type"]
    assert "another secret" not in caplog.text

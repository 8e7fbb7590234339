"""Mutual TLS on the links of two coordinators, with real sockets and certificates (docs/specs/ambrosia.md 11.7)."""

import asyncio
import asyncio.sslproto
import gc
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from pavane.ambrosia.ports import close_writer
from pavane.ambrosia.wire.links import Channel, Hello
from pavane.ambrosia.wire.messages import Call, RpcType, attach_to, outgoing
from pavane.runtime.certificates import Certificates
from pavane_operator.tls.certificates import Pair
from tests.services.ambrosia.test_server import WAIT_S, Running, options, running, until
from tests.services.stage.certificates import authority, certificate, publish

CALL = re.compile(rb"call-(\d{6})")
HELLO = Hello("stranger", "alice", Channel.DATA, "test", (0, 0), 7).encode()


class Peer:
    """One coordinator with its certificates."""

    def __init__(self, folder: Path, name: str, signer: Pair | None) -> None:
        self.folder = folder / f"{name}-tls"
        self.tls = None
        if signer is not None:
            self.folder.mkdir()
            publish(self.folder, certificate(signer), signer)
            self.tls = Certificates(self.folder)
        self.options = options(folder, name, tls=self.tls)

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[Running]:
        async with running(self.options) as life:
            await life.begin()
            yield life


class Calls:
    """Calls from one application to the other one, each with a number."""

    def __init__(self, source: Running, target: Running, to: str) -> None:
        self.sent = 0
        self.heard: list[int] = []
        self._source = source
        self._target = target
        self._to = to

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            call = Call(9, RpcType.FORK, b"call-%06d" % self.sent)
            self._source.binding.writer.write(outgoing(self._to, call))
            self.sent += 1

    async def arrive(self) -> None:
        """Wait for all that was sent: in order, none lost, none twice."""
        while len(self.heard) < self.sent:
            self.heard += [int(found) for found in CALL.findall((await self._target.binding.record()).body)]
        assert self.heard == list(range(self.sent))


def links(life: Running) -> list[asyncio.StreamWriter]:
    runner = life.server._runner
    assert runner is not None
    return list(runner._writers.values())


def shown(life: Running) -> set[str]:
    """Serial numbers of the certificates of the other ends."""
    found = set()
    for writer in links(life):
        tls = writer.get_extra_info("ssl_object")
        assert tls is not None, "a link in clear"
        found.add(tls.getpeercert()["serialNumber"])
    return found


async def connected(life: Running, peer: str) -> None:
    await until(lambda: life.server.status()["peers"] == {peer: "connected"}, "connected")
    await until(lambda: len(links(life)) == 4, "two links of each side")


async def test_calls_between_two_coordinators_are_encrypted(tmp_path: Path) -> None:
    signer = authority()
    alice, bob = Peer(tmp_path, "alice", signer), Peer(tmp_path, "bob", signer)
    async with alice.alive() as one, bob.alive() as other:
        one.binding.writer.write(attach_to("bob"))
        calls = Calls(one, other, "bob")
        calls.send(1000)
        await calls.arrive()
        await connected(one, "bob")
        assert len(shown(one) | shown(other)) == 2


async def test_authorities_of_peers_count_as_soon_as_their_file_is_there(tmp_path: Path) -> None:
    alice, bob = Peer(tmp_path, "alice", authority()), Peer(tmp_path, "bob", authority())
    for peer in (alice, bob):
        peer.options = options(tmp_path, peer.options.name, tls=Certificates(peer.folder, tmp_path / "peers.crt"))
    async with alice.alive() as one, bob.alive() as other:
        one.binding.writer.write(attach_to("bob"))
        await until(lambda: "no TLS" in one.server.status()["peers"].get("bob", ""), "refused")
        both = [(peer.folder / "ca.crt").read_text() for peer in (alice, bob)]
        (tmp_path / "peers.new").write_text("".join(both))
        (tmp_path / "peers.new").rename(tmp_path / "peers.crt")
        calls = Calls(one, other, "bob")
        calls.send()
        await calls.arrive()


@pytest.mark.parametrize("signer", [None, authority()], ids=["in clear", "another authority"])
async def test_a_peer_without_a_certificate_that_counts_is_refused_and_nobody_else_notices(
    tmp_path: Path, signer: Pair | None
) -> None:
    own = authority()
    alice, bob, carol = (Peer(tmp_path, name, each) for name, each in (("alice", own), ("bob", own), ("carol", signer)))
    async with alice.alive() as one, bob.alive() as other, carol.alive() as stranger:
        one.binding.writer.write(attach_to("bob"))
        calls = Calls(one, other, "bob")
        calls.send()
        await calls.arrive()
        await connected(one, "bob")
        before = links(one)
        stranger.binding.writer.write(attach_to("alice"))
        await until(lambda: one.server.links_refused >= 2, "both of its links are refused")
        assert any("refused before its hello" in line and "spec.tls" in line for line in one.lines), one.lines
        assert stranger.server.status()["peers"]["alice"].startswith("unreachable")
        calls.send(100)
        await calls.arrive()
        assert links(one) == before
        assert set(one.server.status()["peers"]) == {"bob"}


@pytest.mark.parametrize("shows", [False, True], ids=["none", "another authority's"])
async def test_whoever_dials_shows_a_certificate_that_counts(tmp_path: Path, *, shows: bool) -> None:
    alice = Peer(tmp_path, "alice", authority())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if shows:
        Peer(tmp_path, "stranger", authority())
        context.load_cert_chain(tmp_path / "stranger-tls" / "tls.crt", tmp_path / "stranger-tls" / "tls.key")
    async with alice.alive() as one:
        _, writer = await asyncio.open_connection("127.0.0.1", alice.options.port, ssl=context, server_hostname="")
        writer.write(HELLO)
        await until(lambda: one.server.links_refused == 1, "refused")
        assert one.server.status()["peers"] == {}
        await close_writer(writer)


async def test_a_coordinator_with_tls_does_not_speak_in_clear_with_one_without(tmp_path: Path) -> None:
    alice, bob = Peer(tmp_path, "alice", authority()), Peer(tmp_path, "bob", None)
    async with alice.alive() as one, bob.alive() as other:
        one.binding.writer.write(attach_to("bob"))
        await until(lambda: "see spec.tls of both" in one.server.status()["peers"].get("bob", ""), "refused")
        await until(lambda: other.server.links_refused > 0, "counted")


async def test_certificates_are_renewed_while_calls_run(tmp_path: Path) -> None:
    old, new = authority(), authority()
    peers = alice, bob = Peer(tmp_path, "alice", old), Peer(tmp_path, "bob", old)
    async with alice.alive() as one, bob.alive() as other:
        one.binding.writer.write(attach_to("bob"))
        calls = Calls(one, other, "bob")
        calls.send(100)
        await calls.arrive()
        await connected(one, "bob")
        former = shown(one) | shown(other)
        for peer in peers:  # the three steps in which an authority is replaced
            publish(peer.folder, certificate(old), old, new)
        for signer, trusted in ((new, (old, new)), (new, (new,))):
            for peer in peers:
                publish(peer.folder, certificate(signer), *trusted)
                calls.send(100)
                for writer in links(one):
                    writer.transport.abort()
            await calls.arrive()
        await connected(one, "bob")
        assert not former & (shown(one) | shown(other))
        publish(bob.folder, certificate(old), old, new)  # whoever was away too long
        for writer in links(one):
            writer.transport.abort()
        await until(lambda: one.server.links_refused > 0, "the former authority is forgotten")


async def test_links_end_when_the_authority_of_their_peer_is_removed(tmp_path: Path) -> None:
    signers = {name: authority() for name in ("alice", "bob", "carol")}
    peers = {name: Peer(tmp_path, name, signer) for name, signer in signers.items()}
    for peer in peers.values():
        publish(peer.folder, certificate(signers[peer.options.name]), *signers.values())
    alice = peers["alice"]
    assert alice.tls is not None
    async with alice.alive() as one, peers["bob"].alive() as other, peers["carol"].alive() as third:
        for name in ("bob", "carol"):
            one.binding.writer.write(attach_to(name))
        to_bob, to_carol = Calls(one, other, "bob"), Calls(one, third, "carol")
        for calls in (to_bob, to_carol):
            calls.send()
            await calls.arrive()
        await until(lambda: len(links(one)) == 8, "two links of each side with each peer")
        before = links(one)
        publish(alice.folder, certificate(signers["alice"]), signers["alice"], signers["bob"])
        alice.tls.refresh()
        await until(lambda: len(links(one)) == 4, "those with carol have ended")
        assert set(links(one)) < set(before)
        await until(lambda: "no TLS" in one.server.status()["peers"]["carol"], "and she is refused")
        to_bob.send(100)
        await to_bob.arrive()


async def test_strangers_who_say_nothing_keep_nobody_out_and_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pavane.ambrosia.aio.LINK_HELLOS_MAX", 4)
    signer = authority()
    alice, bob = Peer(tmp_path, "alice", signer), Peer(tmp_path, "bob", signer)
    async with alice.alive() as one, bob.alive() as other:
        strangers = [await asyncio.open_connection("127.0.0.1", alice.options.port) for _ in range(20)]
        await until(lambda: one.server.links_refused == 16, "ended, the one that waits longest first")
        other.binding.writer.write(attach_to("alice"))
        calls = Calls(other, one, "alice")
        calls.send()
        await calls.arrive()
        for _, writer in strangers:
            await close_writer(writer)


async def test_of_a_crowd_that_comes_at_once_no_handshake_stays_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would hold a third of a MiB for a minute: who is ended before its handshake must not begin one."""
    monkeypatch.setattr("pavane.ambrosia.aio.LINK_HELLOS_MAX", 4)
    alice = Peer(tmp_path, "alice", authority())
    before = handshakes()
    async with alice.alive() as one:
        with ExitStack() as stack:
            for _ in range(60):  # all of them before the coordinator accepts the first
                stack.enter_context(socket.create_connection(("127.0.0.1", alice.options.port)))
            await until(lambda: one.server.links_refused >= 56, "ended, but for those that may stay")
            assert handshakes() <= before + 4


def handshakes() -> int:
    gc.collect()
    return sum(isinstance(each, asyncio.sslproto.SSLProtocol) for each in gc.get_objects())


@pytest.mark.parametrize("agree", [False, True], ids=["before TLS", "after TLS"])
async def test_who_said_nothing_is_ended_with_the_coordinator(tmp_path: Path, *, agree: bool) -> None:
    alice = Peer(tmp_path, "alice", authority())
    assert alice.tls is not None
    context: ssl.SSLContext | None = alice.tls.dialling if agree else None
    async with alice.alive() as one:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", alice.options.port, ssl=context, server_hostname="" if agree else None
        )
        await until(lambda: one.server._runner is not None and len(one.server._runner._hellos) == 1, "accepted")
    async with asyncio.timeout(WAIT_S):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    await close_writer(writer)


@pytest.mark.parametrize("agree", [False, True], ids=["before TLS", "after TLS"])
async def test_the_time_until_the_hello_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, agree: bool
) -> None:
    monkeypatch.setattr("pavane.ambrosia.aio.LINK_HELLO_S", 0.2)
    alice = Peer(tmp_path, "alice", authority())
    assert alice.tls is not None
    context: ssl.SSLContext | None = alice.tls.dialling if agree else None
    async with alice.alive() as one:
        name = "" if agree else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", alice.options.port, ssl=context, server_hostname=name
        )
        async with asyncio.timeout(WAIT_S):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        assert one.server.links_refused == 1
        await close_writer(writer)


async def test_without_tls_a_hello_in_clear_is_answered_and_with_it_not(tmp_path: Path) -> None:
    for signer in (None, authority()):
        folder = tmp_path / str(signer is None)
        folder.mkdir()
        alice = Peer(folder, "alice", signer)
        async with alice.alive() as one:
            reader, writer = await asyncio.open_connection("127.0.0.1", alice.options.port)
            writer.write(HELLO)
            async with asyncio.timeout(WAIT_S):
                answer = await reader.read(3)
            if signer is None:
                assert answer == bytes([0, 0, 0])  # success, and the greatest token of this peer
            else:
                await until(lambda: one.server.links_refused == 1, "refused")
            await close_writer(writer)

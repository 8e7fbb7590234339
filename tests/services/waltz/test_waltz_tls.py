"""TLS of the log: clients need no certificate, whoever talks to storage nodes shows one of the resource."""

import asyncio
import gc
import socket
import ssl
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pavane.runtime import door
from pavane.runtime.certificates import Certificates
from pavane.waltz.aio import listener, stream
from pavane.waltz.aio.admin import StorageAdmin
from pavane.waltz.aio.links import StorageLink
from pavane.waltz.client import Unavailable, Waltz, trusting
from pavane.waltz.client.link import Link, parse_address
from pavane_operator.tls.certificates import Pair
from tests.services.eventually import eventually
from tests.services.stage.certificates import authority, certificate, publish
from tests.services.waltz.running import ANSWER_S, KEY, running_log


def certificates(folder: Path) -> Certificates:
    folder.mkdir()
    signer = authority()
    publish(folder, certificate(signer), signer)
    return Certificates(folder)


async def test_a_client_trusts_the_authority_and_shows_nothing(tmp_path: Path) -> None:
    async with running_log(tmp_path, certificates=certificates(tmp_path / "tls")) as log:
        server = f"127.0.0.1:{log.servers[0].port}"
        tls = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
        tls.check_hostname = False
        async with Waltz([server], tls=tls) as client:
            assert await client.append(0, b"sealed") == 0


async def test_a_storage_node_talks_to_nobody_without_a_certificate_of_its_authority(tmp_path: Path) -> None:
    own = certificates(tmp_path / "tls")
    foreign = certificates(tmp_path / "foreign")
    async with running_log(tmp_path, certificates=own) as log:
        await log.settled()
        heard: list[str] = []
        link = StorageLink(
            f"127.0.0.1:{log.ports[0]}",
            KEY,
            1,
            tls=foreign.dialling,
            up=heard.append,
            down=heard.append,
            heard=lambda node, messages: None,
        )
        task = asyncio.create_task(link.run())
        await eventually(lambda: link.fault not in ("", "not connected yet"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert heard == []


class Dialler:
    """Somebody with a certificate of his own who dials storage nodes, and trusts everybody who matters."""

    def __init__(self, folder: Path, signer: Pair, *trusted: Pair) -> None:
        folder.mkdir()
        publish(folder, certificate(signer), signer, *trusted)
        self.tls = Certificates(folder).dialling

    async def storage(self, port: int) -> asyncio.Event:
        """Connect to the port for servers; the event is set when the connection has ended. Raises ``OSError``."""
        ended, up = asyncio.Event(), asyncio.Event()

        def down(_: str) -> None:
            ended.set()

        link = StorageLink(
            f"127.0.0.1:{port}", KEY, 1, tls=self.tls, up=lambda _: up.set(), down=down, heard=lambda *_: None
        )
        running = asyncio.create_task(link.run())
        self.running = running
        await eventually(lambda: up.is_set() or link.fault not in ("", "not connected yet"))
        if not up.is_set():
            running.cancel()
            raise ConnectionRefusedError(link.fault)
        return ended

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


async def test_a_removed_authority_is_refused_on_every_port_of_the_log_and_its_connections_end(tmp_path: Path) -> None:
    old, new = authority(), authority()
    folder = tmp_path / "tls"
    folder.mkdir()
    publish(folder, certificate(new), old, new)
    own = Certificates(folder)
    theirs, ours = Dialler(tmp_path / "old", old, new), Dialler(tmp_path / "new", new)
    async with running_log(tmp_path, certificates=own) as log:
        await log.settled()
        server = f"127.0.0.1:{log.servers[0].port}"
        tls = trusting(new.certificate.decode())
        async with Waltz([server], tls=tls) as client:
            assert await client.append(0, b"before") == 0
            link = await Link.connect(parse_address(server), tls, 1)
            gone, stays = await theirs.storage(log.ports[0]), await ours.storage(log.ports[0])
            admin = await StorageAdmin.connect(log.admin(0), KEY, 1, theirs.tls)
            kept = await StorageAdmin.connect(log.admin(0), KEY, 1, ours.tls)
            own.refresh()
            assert not any((gone.is_set(), admin.closed, link.closed))
            publish(folder, certificate(new), new)
            own.refresh()
            await eventually(lambda: gone.is_set() and admin.closed and link.closed)
            assert not any((stays.is_set(), kept.closed))
            await theirs.stop()
            with pytest.raises(ConnectionRefusedError):
                await theirs.storage(log.ports[0])
            with pytest.raises(Unavailable):
                await StorageAdmin.connect(log.admin(0), KEY, 1, theirs.tls)
            assert await client.append(0, b"after") == 1
            for each in (admin, kept):
                each.hang_up("done")
            await ours.stop()
            await theirs.stop()


async def test_a_client_sees_a_renewed_certificate_at_its_next_handshake(tmp_path: Path) -> None:
    own = certificates(tmp_path / "tls")
    other = authority()
    async with running_log(tmp_path, certificates=own) as log:
        server = parse_address(f"127.0.0.1:{log.servers[0].port}")
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await Link.connect(server, trusting(other.certificate.decode()), 1)
        publish(tmp_path / "tls", certificate(other), other)
        link = await Link.connect(server, trusting(other.certificate.decode()), 1)
        await link.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a record"])
async def test_a_handshake_has_its_time_at_each_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(stream, "HELLO_S", 1.0)  # the nodes of the log need it, too
    async with running_log(tmp_path, certificates=certificates(tmp_path / "tls")) as log:
        for port in (log.servers[0].port, log.ports[0], log.nodes[0].tools.port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            async with asyncio.timeout(ANSWER_S):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()


async def test_handshakes_that_fail_leave_the_port_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(door, "WAITING_MAX", 4)
    async with running_log(tmp_path, certificates=certificates(tmp_path / "tls")) as log:
        server = f"127.0.0.1:{log.servers[0].port}"
        tls = trusting((tmp_path / "tls" / "ca.crt").read_text())
        with ExitStack() as stack:
            for said in [b"no TLS"] * 10 + [b""] * 10:
                stranger = stack.enter_context(socket.create_connection(("127.0.0.1", log.servers[0].port)))
                stranger.sendall(said)
            async with Waltz([server], tls=tls) as client:
                assert await client.append(0, b"sealed") == 0


async def test_a_connection_that_has_ended_is_freed_without_the_collector(tmp_path: Path) -> None:
    """A server freezes what survives a collection: a cycle of it, with TLS 256 KiB each, would stay for an hour."""
    own = certificates(tmp_path / "tls")
    async with running_log(tmp_path, nodes=1, certificates=own) as log:
        await log.settled()
        server = log.servers[0]
        gc.disable()
        try:
            made = await Link.connect(parse_address(f"127.0.0.1:{server.port}"), own.dialling, 1)
            await eventually(lambda: server._clients)
            seen = [*server._clients.values(), made]
            sealed = [each._transport._ssl_protocol for each in seen]  # type: ignore[union-attr]
            left = [weakref.ref(each) for each in (*seen, *sealed)]
            await made.close()
            await eventually(lambda: not server._clients)
            del made, seen, sealed
            await eventually(lambda: not any(each() for each in left))
        finally:
            gc.enable()

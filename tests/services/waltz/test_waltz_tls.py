"""TLS of the log: clients need no certificate, whoever talks to storage nodes shows one of the resource."""

import asyncio
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest

from pavane.runtime import door
from pavane.waltz.aio import listener
from pavane.waltz.aio.links import StorageLink
from pavane.waltz.client import Waltz, trusting
from pavane.waltz.server import Certificates
from tests.services.eventually import eventually
from tests.services.stage.certificates import authority, certificate, publish
from tests.services.waltz.running import KEY, running_log


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
            tls=foreign.storage_link,
            up=heard.append,
            down=heard.append,
            heard=lambda node, messages: None,
        )
        task = asyncio.create_task(link.run())
        await eventually(lambda: link.fault not in ("", "not connected yet"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert heard == []


def test_a_renewed_certificate_is_loaded_and_a_missing_one_named(tmp_path: Path) -> None:
    found = certificates(tmp_path / "tls")
    signer = authority()
    publish(tmp_path / "tls", certificate(signer), signer)
    found.refresh()
    loaded = {tuple(one["subject"]) for one in found.storage_link.get_ca_certs()}
    assert loaded
    with pytest.raises(OSError, match="No such file"):
        Certificates(tmp_path)


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

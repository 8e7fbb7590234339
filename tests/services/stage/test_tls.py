"""The stage port with mutual TLS, on real sockets: who may talk, and certificates that change under way."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from pavane.compute.tls import StageCredentials
from pavane.compute.transport import CALL, CLIENT_OPTIONS, SERVER_CONNECTIONS_MAX, SERVER_OPTIONS
from pavane.compute.wire.common import Epoch
from pavane.runtime.certificates import Certificates
from pavane.stage.client import StageStream
from pavane.stage.errors import StageUnreachable
from pavane.stage.server import StageServer
from pavane.wire import Stage
from tests.services.eventually import eventually
from tests.services.stage.certificates import NAME, authority, certificate, credentials, publish
from tests.services.stage.noting_role import NotingRole

HOST = "127.64.96.2"
GENERATION = 3


class SecuredPod:
    """A stage server whose certificates lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = authority()
        self.minor = 0
        publish(folder, certificate(self.authority), self.authority)
        self.certificates = Certificates(folder)
        self.server = StageServer(
            NotingRole(generation=GENERATION), lambda *_: None, host=HOST, port=0, certificates=self.certificates
        )

    def stream(self, shown: StageCredentials | None) -> StageStream:
        self.minor += 1
        return StageStream(
            f"{HOST}:{self.server.port}",
            epoch=Epoch(1, self.minor),
            kind="raft",
            generation=GENERATION,
            credentials=shown,
        )

    async def accepts(self, shown: StageCredentials) -> bool:
        try:
            async with self.stream(shown):
                return True
        except StageUnreachable:
            return False


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[SecuredPod]:
    secured = SecuredPod(tmp_path)
    await secured.server.start()
    yield secured
    await secured.server.stop()


async def test_both_ends_show_a_certificate_of_the_resource(pod: SecuredPod) -> None:
    shown = credentials(certificate(pod.authority), pod.authority)
    async with pod.stream(shown) as stream:
        assert stream.report is not None
        assert stream.report.generation == GENERATION


async def test_a_call_in_clear_is_refused(pod: SecuredPod) -> None:
    with pytest.raises(StageUnreachable):
        await pod.stream(None).open()
    assert pod.server.streams == 0


async def test_a_client_of_a_foreign_authority_is_refused(pod: SecuredPod) -> None:
    shown = credentials(certificate(authority()), pod.authority)
    with pytest.raises(StageUnreachable):
        await pod.stream(shown).open()


async def test_a_client_without_a_certificate_is_refused(pod: SecuredPod) -> None:
    class Anonymous(StageCredentials):
        def channel_credentials(self):  # type: ignore[no-untyped-def]
            return grpc.ssl_channel_credentials(self.authorities)

    with pytest.raises(StageUnreachable):
        await pod.stream(Anonymous(pod.authority.certificate, b"", b"", NAME)).open()


async def test_a_pod_of_a_foreign_authority_is_not_talked_to(pod: SecuredPod) -> None:
    shown = credentials(certificate(pod.authority), authority())
    with pytest.raises(StageUnreachable):
        await pod.stream(shown).open()


async def test_a_pod_whose_certificate_lacks_the_name_is_not_talked_to(pod: SecuredPod) -> None:
    publish(pod.folder, certificate(pod.authority, "other.orders.svc"), pod.authority)
    assert not await pod.accepts(credentials(certificate(pod.authority), pod.authority))


async def test_an_expired_certificate_is_refused(pod: SecuredPod) -> None:
    expired = certificate(pod.authority, life=timedelta(seconds=-1))
    assert not await pod.accepts(credentials(expired, pod.authority))


async def test_an_authority_is_replaced_step_by_step(pod: SecuredPod) -> None:
    """Trust both, sign with the new one, forget the old one: each pair of neighbouring steps can talk."""
    old, new = pod.authority, authority()
    client_old, client_new = certificate(old), certificate(new)
    assert await pod.accepts(credentials(client_old, old))
    publish(pod.folder, certificate(old), old, new)
    assert await pod.accepts(credentials(client_old, old))
    assert await pod.accepts(credentials(client_new, old, new))
    publish(pod.folder, certificate(new), old, new)
    assert await pod.accepts(credentials(client_old, old, new))
    assert await pod.accepts(credentials(client_new, new))
    publish(pod.folder, certificate(new), new)
    assert await pod.accepts(credentials(client_new, new))
    assert not await pod.accepts(credentials(client_old, old, new))


async def test_a_stream_that_is_open_outlives_a_renewal(pod: SecuredPod) -> None:
    async with pod.stream(credentials(certificate(pod.authority), pod.authority)) as stream:
        other = authority()
        publish(pod.folder, certificate(other), pod.authority, other)
        pod.certificates.refresh()
        await stream.lead_up()
        assert (await stream.wait_for(lambda report: report.stage is Stage.READ_ONLY)).generation == GENERATION


async def test_files_that_cannot_be_read_leave_the_former_certificate_in_use(pod: SecuredPod) -> None:
    shown = credentials(certificate(pod.authority), pod.authority)
    (pod.folder / "..data").unlink()
    assert await pod.accepts(shown)


async def test_a_stream_ends_when_its_authority_is_removed(pod: SecuredPod) -> None:
    old, new = pod.authority, authority()
    publish(pod.folder, certificate(new), old, new)
    shown = credentials(certificate(old), new)
    async with pod.stream(shown) as stream:
        pod.certificates.refresh()
        await stream.wait_for(lambda report: report.generation == GENERATION)
        publish(pod.folder, certificate(new), new)
        pod.certificates.refresh()
        with pytest.raises(StageUnreachable, match="not trusted any more"):
            await stream.wait_for(lambda _: False)
    assert not await pod.accepts(shown)


async def test_a_stream_whose_authority_stays_does_not_end_with_another_one(pod: SecuredPod) -> None:
    old, new = pod.authority, authority()
    publish(pod.folder, certificate(new), old, new)
    async with pod.stream(credentials(certificate(new), new)) as stream:
        publish(pod.folder, certificate(new), new)
        pod.certificates.refresh()
        await stream.lead_up()
        await stream.wait_for(lambda report: report.stage is Stage.READ_ONLY)


async def test_a_connection_made_under_a_removed_authority_carries_no_new_stream(pod: SecuredPod) -> None:
    old, new = pod.authority, authority()
    shown = credentials(certificate(old), old, new)
    options = (*CLIENT_OPTIONS, *shown.channel_options())
    async with grpc.aio.secure_channel(f"{HOST}:{pod.server.port}", shown.channel_credentials(), options) as channel:
        async with asyncio.timeout(10):
            await channel.channel_ready()
        publish(pod.folder, certificate(new), new)
        pod.certificates.refresh()
        call: Any = channel.stream_stream(CALL)()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_handshakes_that_nobody_ends_take_few_descriptors(pod: SecuredPod) -> None:
    with contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection((HOST, pod.server.port)))
            for _ in range(2 * SERVER_CONNECTIONS_MAX)
        ]
        for each in strangers:
            each.setblocking(False)
        await eventually(lambda: sum(map(hung_up, strangers)) >= SERVER_CONNECTIONS_MAX)
    async with asyncio.timeout(20):
        while not await pod.accepts(credentials(certificate(pod.authority), pod.authority)):
            pass


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a record"])
async def test_half_a_handshake_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    short = tuple(
        (name, 200 if name == "grpc.server_handshake_timeout_ms" else value) for name, value in SERVER_OPTIONS
    )
    monkeypatch.setattr("pavane.compute.session.SERVER_OPTIONS", short)
    secured = SecuredPod(tmp_path)
    await secured.server.start()
    try:
        reader, writer = await asyncio.open_connection(HOST, secured.server.port)
        writer.write(said)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
    finally:
        await secured.server.stop()


def hung_up(stranger: socket.socket) -> bool:
    try:
        return stranger.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True

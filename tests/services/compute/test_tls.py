"""A replica with mutual TLS: only a controller with a certificate of its authority is served."""

from pathlib import Path

import pytest

from pavane.compute.client import ReplicaStream, StreamEnded
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.server import ReplicaServer
from pavane.compute.wire.commands import CreateInstance, InitializationComplete
from pavane.compute.wire.common import Epoch
from pavane.compute.wire.responses import StageReport
from pavane.runtime.certificates import Certificates
from tests.services.compute.test_server import Engine
from tests.services.stage.certificates import authority, certificate, credentials, publish

HOST = "127.64.96.4"


async def test_only_who_shows_a_certificate_of_the_authority_is_served(tmp_path: Path) -> None:
    own, foreign = authority(), authority()
    publish(tmp_path, certificate(own), own)
    server = ReplicaServer(
        ReplicaCore(3), Engine(), lambda *_: None, host=HOST, port=0, certificates=Certificates(tmp_path)
    )
    await server.start()
    address, instance = f"{HOST}:{server.port}", CreateInstance("compute", 3)
    for shown in (None, credentials(certificate(foreign), own)):
        with pytest.raises(StreamEnded) as refused:
            await ReplicaStream(address, Epoch(1, 1), instance, credentials=shown).open()
        assert refused.value.code == "UNAVAILABLE"
    async with ReplicaStream(address, Epoch(1, 1), instance, credentials=credentials(certificate(own), own)) as stream:
        await stream.send(InitializationComplete())
        assert isinstance(await stream.receive(), StageReport)
    await server.stop()


async def until_it_ends(stream: ReplicaStream) -> None:
    while True:
        await stream.receive()


async def test_a_controller_whose_authority_is_removed_is_ended(tmp_path: Path) -> None:
    old, new = authority(), authority()
    publish(tmp_path, certificate(new), old, new)
    certificates = Certificates(tmp_path)
    server = ReplicaServer(ReplicaCore(3), Engine(), lambda *_: None, host=HOST, port=0, certificates=certificates)
    await server.start()
    address, instance = f"{HOST}:{server.port}", CreateInstance("compute", 3)
    shown = credentials(certificate(old), new)
    async with ReplicaStream(address, Epoch(1, 1), instance, credentials=shown) as stream:
        await stream.send(InitializationComplete())
        assert isinstance(await stream.receive(), StageReport)
        publish(tmp_path, certificate(new), new)
        certificates.refresh()
        with pytest.raises(StreamEnded, match="not trusted any more"):
            await until_it_ends(stream)
    with pytest.raises(StreamEnded) as refused:
        await ReplicaStream(address, Epoch(1, 2), instance, credentials=shown).open()
    assert refused.value.code == "UNAVAILABLE"
    await server.stop()

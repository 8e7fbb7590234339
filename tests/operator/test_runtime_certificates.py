"""The operator's end of certificates: what it dials with (docs/specs/operator.md 1.2)."""

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pavane.runtime.certificates import Certificates
from pavane.stage.server import StageServer
from pavane.wire.stages import Stage
from pavane_operator.runtime.streams import Epochs, StreamContext, Streams, socket_address
from tests.services.eventually import eventually
from tests.services.stage.certificates import authority, certificate, credentials, publish
from tests.services.stage.noting_role import NotingRole

HOST = "127.64.97.3"
GENERATION = 3
POD = "log-server-g3-0"


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def streams() -> AsyncIterator[Streams]:
    context = StreamContext("raft", Epochs(7), random.Random(1), now, lambda: None, secured=True)
    found = Streams(context)
    yield found
    await found.close()


async def start(folder: Path, port: int = 0) -> StageServer:
    server = StageServer(
        NotingRole(generation=GENERATION), lambda *_: None, host=HOST, port=port, certificates=Certificates(folder)
    )
    await server.start()
    return server


async def test_a_pod_that_restarts_is_dialled_with_what_was_renewed_meanwhile(tmp_path: Path, streams: Streams) -> None:
    first, second = authority(), authority()
    publish(tmp_path, certificate(first), first)
    server = await start(tmp_path)
    assert not streams.context.dialable
    streams.context.credentials = credentials(certificate(first), first)
    assert streams.context.dialable
    await streams.keep({POD: (socket_address(HOST, server.port), GENERATION)})
    await eventually(lambda: streams.connected == 1)
    publish(tmp_path, certificate(second), second)
    streams.context.credentials = credentials(certificate(second), second)
    assert streams.advance(POD, Stage.READ_ONLY, {})  # on the stream that is open
    await eventually(lambda: (view := streams.view(POD)) is not None and view.stage is Stage.READ_ONLY)
    await server.stop()
    await eventually(lambda: streams.connected == 0)
    server = await start(tmp_path, server.port)
    await eventually(lambda: streams.connected == 1)
    await server.stop()


async def test_a_pod_is_dialled_again_when_the_authority_of_its_stream_is_removed(
    tmp_path: Path, streams: Streams
) -> None:
    old, new = authority(), authority()
    publish(tmp_path, certificate(new), old, new)
    server = await start(tmp_path)
    wanted = {POD: (socket_address(HOST, server.port), GENERATION)}
    streams.context.credentials = credentials(certificate(new), old, new)
    await streams.keep(wanted)
    await eventually(lambda: streams.connected == 1)
    (stream,) = server._sessions
    await streams.keep(wanted)
    assert set(server._sessions) == {stream}
    streams.context.credentials = credentials(certificate(new), new)
    await streams.keep(wanted)
    await eventually(lambda: server._sessions and stream not in server._sessions and streams.connected == 1)
    await server.stop()

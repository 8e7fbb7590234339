"""The operator's end of certificates: what it dials with, and the user's Secret (docs/specs/operator.md 1.2, 5.3)."""

import base64
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from pavane.stage.server import StageServer
from pavane.wire.stages import Stage
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.raft.render import RaftRenderer
from pavane_operator.kube import Forbidden, KubeClient
from pavane_operator.kube.resources import SECRETS, Object
from pavane_operator.kube.resources import Resource as ResourceType
from pavane_operator.plan.model import Resource
from pavane_operator.runtime.certificates import CertificateView
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
    server = StageServer(NotingRole(generation=GENERATION), lambda *_: None, host=HOST, port=port, certificates=folder)
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
    assert streams.lead_up(POD, Stage.READ_ONLY, {})  # on the stream that is open
    await eventually(lambda: (view := streams.view(POD)) is not None and view.stage is Stage.READ_ONLY)
    await server.stop()
    await eventually(lambda: streams.connected == 0)
    server = await start(tmp_path, server.port)
    await eventually(lambda: streams.connected == 1)
    await server.stop()


class OneSecret:
    """Answers for one Secret, and counts how often it is read."""

    def __init__(self) -> None:
        self.body: Object | None = None
        self.reads = 0
        self.error: Exception | None = None

    async def get_or_none(self, resource: ResourceType, name: str, namespace: str) -> Object | None:
        assert (resource, name, namespace) == (SECRETS, "mine", "data")
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.body

    def fill(self) -> None:
        signer = authority()
        shown = certificate(signer)
        files = {"tls.crt": shown.certificate, "tls.key": shown.key, "ca.crt": signer.certificate}
        data = {key: base64.b64encode(content).decode() for key, content in files.items()}
        self.body = {"metadata": {"name": "mine"}, "data": data}


def resource(**tls: Any) -> Resource:
    return Resource(
        kind="RaftCluster",
        name="log",
        namespace="data",
        uid="uid",
        resource_version="1",
        metadata_generation=1,
        spec=RaftClusterSpec.model_validate({"stateMachine": "Broadcast", "tls": tls}),
        status=None,
    )


@pytest.fixture
def kube() -> OneSecret:
    return OneSecret()


@pytest.fixture
def view(kube: OneSecret) -> CertificateView:
    defaults = RenderDefaults("image", "0.1.0", None, b"k" * 32, "pavane-system")
    return CertificateView(cast("KubeClient", kube), RaftRenderer(defaults))


GIVEN = resource(mode="Secret", secretName="mine")


async def test_the_users_secret_is_read_once_and_again_when_it_has_changed(
    kube: OneSecret, view: CertificateView
) -> None:
    assert (await view.look(GIVEN, (), now())).credentials is None
    assert (await view.look(GIVEN, (), now())).plan.problem is not None
    assert kube.reads == 1
    kube.fill()
    assert not view.reference_changed("data", "other")
    assert not view.reference_changed("elsewhere", "mine")
    assert (await view.look(GIVEN, (), now())).credentials is None
    assert view.reference_changed("data", "mine")
    first = (await view.look(GIVEN, (), now())).credentials
    assert first is not None
    kube.fill()
    view.forget()
    assert (await view.look(GIVEN, (), now())).credentials != first
    assert kube.reads == 3


async def test_a_secret_that_could_not_be_read_is_tried_again(kube: OneSecret, view: CertificateView) -> None:
    kube.fill()
    kube.error = Forbidden("not yours", status=403)
    with pytest.raises(Forbidden):
        await view.look(GIVEN, (), now())
    kube.error = None
    assert (await view.look(GIVEN, (), now())).credentials is not None


async def test_nobodys_secret_is_read_where_none_is_named(kube: OneSecret, view: CertificateView) -> None:
    assert (await view.look(resource(), (), now())).plan.actions
    assert not view.reference_changed("data", "mine")
    assert kube.reads == 0

"""`pavane describe` shows what the operator told of a resource, with no more rights than `view` gives."""

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.commands.resources import show
from pavane_cli.gathering import One
from pavane_cli.target import Where
from pavane_local.api.cluster import DEFINITIONS
from pavane_operator.crds.definitions import definitions
from pavane_operator.kube import KubeClient, Target
from pavane_operator.runtime.events import EventRecorder
from tests.local.api_server import a_server

NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def test_events_of_the_resource_are_shown_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_server(tmp_path) as server, await KubeClient.connect(Target(server.api.kubeconfig)) as kube:
        for definition in definitions():
            await server.cluster.create(DEFINITIONS, definition)
        recorder = EventRecorder(kube, "operator", random.Random(1))
        for name in ("a", "b"):
            spec = {"replicas": 1, "stateMachine": "Broadcast", "storage": {"size": "64Mi"}}
            made = await kube.create(RAFT_CLUSTERS, {"metadata": {"name": name}, "spec": spec}, "default")
            await recorder.post(made, "Warning", "ReconcileFailed", f"the quota of {name} is used up", NOW)
        capsys.readouterr()  # the recorder logs what it posts
        await show(One(RAFT_CLUSTERS, "a", "default", Where(server.api.kubeconfig)))
    told = capsys.readouterr().out
    assert "ReconcileFailed" in told
    assert "the quota of a is used up" in told
    assert "the quota of b" not in told

"""What the lists of resources and traces show, from an API server and a control plane in this process."""

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typer.testing import CliRunner

from pavane_api.kinds import RAFT_CLUSTERS
from pavane_cli.failures import ExitCode, UserError
from pavane_cli.main import app
from tests.api.plane import created, plane
from tests.api.test_traces import otlp

TOKYO = ZoneInfo("Asia/Tokyo")
SECOND_NS = 1_000_000_000


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nine hours ahead of UTC all year."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", TOKYO.key)
        time.tzset()
        yield
    time.tzset()


async def lines(*words: str) -> list[list[str]]:
    """The words of each line that a command prints."""
    shown = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert shown.exit_code == 0, shown.exception
    return [line.split() for line in shown.stdout.splitlines()]


async def test_a_trace_is_listed_with_the_local_time_of_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_tokyo: None
) -> None:
    request = ExportTraceServiceRequest.FromString(otlp())
    (item,) = request.resource_spans[0].scope_spans[0].spans
    began = int(time.time()) - 60
    item.start_time_unix_nano, item.end_time_unix_nano = began * SECOND_NS, (began + 1) * SECOND_NS
    async with plane(tmp_path) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.local.kubeconfig))
        monkeypatch.setenv("PAVANE_API_URL", str(api.http.base_url))
        kind = {"Content-Type": "application/x-protobuf"}
        sent = await api.http.post("/v1/traces", content=request.SerializeToString(), headers=kind)
        assert sent.status_code == 200
        header, row = await lines("trace", "list")
        assert dict(zip(header, row, strict=False))["TIME"] == f"{datetime.fromtimestamp(began, TOKYO):%H:%M:%S}"


async def test_resources_are_listed_with_how_many_of_their_pods_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        status = {"metadata": {"name": "q"}, "status": {"readyPods": "2/3"}}
        await api.kube.apply_status(RAFT_CLUSTERS, status, "default")
        monkeypatch.setenv("KUBECONFIG", str(api.local.kubeconfig))
        header, row = await lines("get", "raft")
        assert row[header.index("PODS")] == "2/3"


async def test_a_misspelt_field_is_named_with_file_resource_and_what_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("{apiVersion: pavane.dev/v1alpha1, kind: RaftCluster, metadata: {name: q}, spec: {replicaz: 3}}")
    async with plane(tmp_path) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.local.kubeconfig))
        refused = await asyncio.to_thread(CliRunner().invoke, app, ("apply", "-f", str(file)))
    told = f"{file}: RaftCluster q: spec.replicaz: there is no such field; did you mean spec.replicas?"
    assert isinstance(refused.exception, UserError)
    assert (str(refused.exception), refused.exception.code) == (told, ExitCode.USAGE)

"""Fixtures of the end-to-end tests: one platform per file, one namespace per test."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e.cluster import Platform, RaftTest, eventually, namespace_of, platform
from pavane_operator.kube import KubeClient, KubeError, Target
from pavane_operator.kube.resources import PODS

RUNS = int(os.environ.get("PAVANE_E2E_RUNS", "1"))
"""How often the runs under load are repeated: once in `make test`, 20 times in `make e2e`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.platform)
            item.add_marker(pytest.mark.timeout(120 + 60 * RUNS))


async def serving(cluster: Platform) -> None:
    """Wait until operator and control plane are ready."""

    async def ready() -> bool:
        assert cluster.process.poll() is None, (cluster.folder / "up.log").read_text()[-2000:]
        if not cluster.kubeconfig.exists():
            return False
        try:
            async with await KubeClient.connect(Target(cluster.kubeconfig)) as kube:
                pods = (await kube.list_all(PODS, "pavane-system")).items
        except KubeError:
            return False
        conditions = [item for pod in pods for item in (pod.get("status") or {}).get("conditions") or ()]
        ready_pods = [item for item in conditions if (item["type"], item["status"]) == ("Ready", "True")]
        return len(ready_pods) == 2

    await eventually(ready, "operator and control plane are ready", 60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform(tmp_path_factory.mktemp("platform"), "--fast") as running:
        asyncio.run(serving(running))
        yield running


@pytest.fixture
async def raft(cluster: Platform) -> AsyncIterator[RaftTest]:
    async with namespace_of(cluster, f"t-{uuid.uuid4().hex[:8]}") as test:
        yield test

"""What the hooks of the chart run, on an embedded cluster with a real operator."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pavane_operator.kube.resources import NAMESPACES
from tests.operator.operator_cluster import NAME, RAFT_CLUSTERS, Rig, a_rig

COMMAND_S = 50


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as running:
        yield running


async def hook(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pavane_cli.main",
        "helm",
        *arguments,
        cwd=rig.folder,
        env={**os.environ, "KUBECONFIG": str(rig.local.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), COMMAND_S)
    return subprocess.CompletedProcess(arguments, process.returncode or 0, out.decode(), err.decode())


async def namespaces(rig: Rig) -> list[str]:
    return [one["metadata"]["name"] for one in (await rig.kube.list(NAMESPACES)).items]


async def test_the_test_makes_a_cluster_and_leaves_nothing(rig: Rig) -> None:
    result = await hook(rig, "test", "--timeout", "40")
    assert result.returncode == 0, result.stderr
    assert (await rig.kube.list(RAFT_CLUSTERS)).items == ()
    async with asyncio.timeout(COMMAND_S):  # a namespace empties in its own time
        while any(name.startswith("pavane-helm-test") for name in await namespaces(rig)):
            await asyncio.sleep(0.05)


async def test_the_test_fails_where_no_operator_works(rig: Rig) -> None:
    await rig.stop_operator(kill=True)
    result = await hook(rig, "test", "--namespace", "default", "--timeout", "1")
    assert result.returncode == 1
    assert "the operator has not said anything" in result.stderr
    assert (await rig.kube.list(RAFT_CLUSTERS)).items == ()


async def test_an_uninstallation_stops_while_a_resource_needs_the_operator(rig: Rig) -> None:
    assert (await hook(rig, "pre-delete")).returncode == 0
    await rig.apply()
    await rig.until_active(1)
    result = await hook(rig, "pre-delete")
    assert result.returncode == 1
    assert f"RaftCluster default/{NAME}" in result.stderr
    assert "helm uninstall --no-hooks" in result.stderr
    assert (await hook(rig, "pre-delete", "--namespace", "pavane-system")).returncode == 0

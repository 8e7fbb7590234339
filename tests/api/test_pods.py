"""Pods of a resource over REST: each with its stage, and a stream that tells when one goes on."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from pavane.compute.wire.common import Token
from pavane.compute.wire.responses import Blocker, StageReport
from pavane.pods.common import stage_json
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane.wire import Stage
from pavane_operator.kube.resources import PODS
from tests.api.plane import BASE, Plane, created, plane

SHARED = {"app.kubernetes.io/name": "raftcluster", "app.kubernetes.io/component": "server"}


async def pod(api: Plane, name: str, generation: int | None, instance: str = "q") -> str:
    """Create a pod whose image is nowhere, and return the address that it has nevertheless, once it says so."""
    labels = {**SHARED, "app.kubernetes.io/instance": instance}
    if generation is not None:
        labels["pavane.dev/generation"] = str(generation)
    spec = {"containers": [{"name": "main", "image": "nowhere"}]}
    await api.kube.create(PODS, {"metadata": {"name": name, "labels": labels}, "spec": spec}, "default")
    async for change in api.kube.watch(PODS, "default", fields=f"metadata.name={name}"):
        status = change.object.get("status") or {}
        waiting = [each["state"].get("waiting", {}) for each in status.get("containerStatuses") or ()]
        if status.get("podIP") and any("nowhere" in each.get("message", "") for each in waiting):
            return str(status["podIP"])
    raise AssertionError("the watch ended")


class Stages:
    """The ops port of a pod, in this process."""

    def __init__(self) -> None:
        self.report: StageReport | None = None
        self.process = Process()

    @asynccontextmanager
    async def at(self, address: str) -> AsyncIterator["Stages"]:
        ops = OpsServer(
            host=address,
            live=lambda: None,
            ready=lambda: None,
            metrics=tuple,
            documents={"/stage": lambda: stage_json(self.report, 2)},
        )
        await ops.start(self.process)
        try:
            yield self
        finally:
            await ops.stop()
            await self.process.cancel_tasks()


async def test_pods_are_shown_with_their_stages_and_what_they_wait_for(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        assert (await api.http.get(f"{BASE}/q/pods")).json() == {"items": []}
        await pod(api, "other-server-g1-0", 1, instance="other")
        await pod(api, "q-storage-0", None)
        await pod(api, "q-server-g10-0", 10)
        async with Stages().at(await pod(api, "q-server-g2-0", 2)) as told:
            blocker = Blocker("Lagging", "7 entries behind", {})
            told.report = StageReport(
                Stage.READ_ONLY, 2, Token(3, 1), progress=5, target=12, unit="entries", blockers=(blocker,)
            )
            items = (await api.http.get(f"{BASE}/q/pods")).json()["items"]
            assert [each["name"] for each in items] == ["q-storage-0", "q-server-g2-0", "q-server-g10-0"]
            standing, staged, silent = items
            assert (standing["generation"], standing["stage"]) == (None, None)
            assert staged == {
                "name": "q-server-g2-0",
                "role": "server",
                "generation": 2,
                "phase": "Pending",
                "ready": False,
                "restarts": 0,
                "waiting": staged["waiting"],
                "stage": "ReadOnly",
                "fenced": True,
                "progress": 5,
                "target": 12,
                "unit": "entries",
                "blockers": [{"reason": "Lagging", "text": "7 entries behind"}],
            }
            assert "nowhere" in staged["waiting"]
            assert (silent["stage"], silent["blockers"]) == (None, [])


async def test_a_stream_tells_each_stage_that_a_pod_reaches_and_that_it_goes(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        await created(api)
        address = await pod(api, "q-server-g2-0", 2)
        async with Stages().at(address) as told, api.http.stream("GET", f"{BASE}/q/pods?watch=true") as answer:
            found = snapshots(answer)
            for stage in Stage:
                if stage > Stage.CREATION:
                    told.report = StageReport(stage, 2)
                await until(found, [(2, stage.title)])
            await api.kube.delete(PODS, "q-server-g2-0", "default")
            await until(found, [])


async def test_pods_are_for_those_who_may_see_the_resource(tmp_path: Path) -> None:
    async with plane(tmp_path) as api:
        assert (await api.http.get(f"{BASE}/q/pods")).status_code == 404
        assert (await api.http.get(f"{BASE}/q/pods?watch=true")).status_code == 404
        await created(api)
        headers = {"Authorization": f"Bearer {await api.service_account_token('stranger')}"}
        answer = await api.http.get(f"{BASE}/q/pods", headers=headers)
        assert (answer.status_code, "may not get raftclusters" in answer.text) == (403, True)


async def snapshots(answer: httpx2.Response) -> AsyncIterator[Any]:
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))["items"]


async def until(found: AsyncIterator[Any], wanted: list[tuple[int, str]]) -> None:
    async for items in found:
        if [(each["generation"], each["stage"]) for each in items] == wanted:
            return
    raise AssertionError(f"the stream ended before it told {wanted}")

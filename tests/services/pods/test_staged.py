"""What every staged pod does, whatever its role: readiness, order of start and stop, its last words."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pavane.compute.wire.common import Token
from pavane.pods.settings import PodSettings
from pavane.pods.staged import PodRole, StagedPod
from pavane.runtime.ops import OPS_PORT
from pavane.runtime.process import Process
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wire import Stage
from tests.services.pods.raft_pods import claimed_address


class Role(PodRole):
    kind = "raft"
    unit = "entries"
    there = False

    async def read_only(self) -> None:
        pass

    async def read_write(self, token: Token, told: Mapping[str, str]) -> bool:
        return True

    def report(self) -> RoleReport:
        assert self.there, "work that is not there cannot be asked"
        return RoleReport(progress=7)


class Told(StagedPod[Role]):
    """Asks its own ops port for `/stage` while its work is opened and ended."""

    look_s = 0.01

    def __init__(self, settings: PodSettings, process: Process) -> None:
        super().__init__(settings, process, Role(3), None)
        self.told: list[dict[str, Any]] = []
        self.walk = asyncio.Event()

    async def ask(self, path: str) -> httpx2.Response:
        async with httpx2.AsyncClient(trust_env=False) as http:
            return await http.get(f"http://{self._host}:7071{path}")

    async def _open(self) -> None:
        self.told.append((await self.ask("/stage")).json())
        self._role.there = True

    async def _run(self) -> None:
        await self._process.ended()

    async def _look(self, stage: StageServer) -> None:
        if self.walk.is_set() and stage.stage < Stage.READ_WRITE:
            await stage.walk()
            self.walk.clear()

    def _unready(self, stage: Stage) -> str | None:
        return None if stage is Stage.READ_WRITE else "it does not write"

    async def _end(self) -> None:
        self._role.there = False
        self.told.append((await self.ask("/stage")).json())


def settings_of(folder: Path, address: str) -> PodSettings:
    return PodSettings.model_validate(
        {
            "resource": "db",
            "kind": "RaftCluster",
            "role": "server",
            "generation": 3,
            "config": folder / "config.yaml",
            "POD_NAME": "db-server-g3-0",
            "POD_NAMESPACE": "default",
            "POD_IP": address,
        }
    )


async def test_a_pod_whose_ops_port_is_taken_ends_no_work_that_never_began(tmp_path: Path) -> None:
    with claimed_address() as address, socket.create_server((address, OPS_PORT)):
        process = Process()
        pod = Told(settings_of(tmp_path, address), process)
        with pytest.raises(OSError, match="in use"):
            await pod.start()
        await pod.stop()
        await process.cancel_tasks()
    assert pod.told == []


async def test_a_staged_pod_says_what_it_is_from_its_start_to_its_end(tmp_path: Path) -> None:
    with claimed_address() as address:
        process = Process()
        pod = Told(settings_of(tmp_path, address), process)
        await pod.start()
        try:
            assert (await pod.ask("/readyz")).text == "stage Creation\n"
            pod.walk.set()
            async with asyncio.timeout(20):
                while (await pod.ask("/readyz")).status_code != 200:
                    await asyncio.sleep(0.01)
            assert "pavane_stage 4\n" in (await pod.ask("/metrics")).text
            pod._role.fenced = True
            assert (await pod.ask("/readyz")).text == "fenced by a later generation\n"
            process.exit(0)
            assert (await pod.ask("/readyz")).text == "the pod stops\n"
            assert "pavane_stage" not in (await pod.ask("/metrics")).text
        finally:
            await pod.stop()
            await process.cancel_tasks()
        # A pod whose work is not open yet, and one whose work has ended, cannot ask it.
        assert [(each["stage"], each["generation"], each["progress"]) for each in pod.told] == [
            ("Creation", 3, 0),
            ("ReadWrite", 3, 7),
        ]

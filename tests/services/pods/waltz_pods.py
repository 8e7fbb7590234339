"""Pods of a WaltzCluster as processes, each on a loopback address of its own, with a Raft pod for their metadata."""

import asyncio
import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import yaml

from pavane.compute.wire.common import Epoch, Token
from pavane.pods.waltz_settings import ADMIN_PORT
from pavane.stage.client import StageStream
from pavane.stage.errors import StageUnreachable
from tests.services.pods.raft_pods import PROGRAM, SECRET, Pods, claimed_address

PARTITIONS = 4
KEY = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
WAIT_S = 100.0  # a busy machine takes long to start processes


@dataclass
class WaltzPod:
    """One pod; `start` and `kill` as often as a test likes, a storage node on the same folder."""

    cluster: "WaltzPods"
    role: str
    generation: int
    name: str
    address: str
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def folder(self) -> Path:
        return self.cluster.folder / self.name

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self.cluster.config))
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PAVANE_", "OTEL_"))},
            "PAVANE_RESOURCE": "ledger",
            "PAVANE_KIND": "WaltzCluster",
            "PAVANE_ROLE": self.role,
            "PAVANE_GENERATION": str(self.generation),
            "PAVANE_CONFIG": str(self.folder / "config.yaml"),
            "PAVANE_WALTZ_HOST": self.address,
            "PAVANE_WALTZ_METADATA": str(self.cluster.metadata),
            "PAVANE_WALTZ_DATA": str(self.folder / "data"),
            "PAVANE_HOSTS_FILE": str(self.cluster.raft.hosts),
            "PAVANE_TERMINATION_LOG": str(self.folder / "termination"),
            "POD_NAME": self.name,
            "POD_NAMESPACE": "default",
            "POD_IP": self.address,
        }
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=20)

    def terminate(self) -> int:
        """Tell it to stop and return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=20)

    async def get(self, path: str) -> dict[str, Any]:
        """A document of the ops port, empty where nobody listens."""
        async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_S) as client:
            with contextlib.suppress(httpx2.TransportError):
                answer = await client.get(f"http://{self.address}:7071{path}")
                return dict(answer.json()) if answer.status_code == 200 else {}
        return {}

    async def takes_tools(self) -> bool:
        """Whether this storage node listens for tools, the last of its ports."""
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(self.address, ADMIN_PORT)
            writer.close()
            return True
        return False

    async def stream(self, epoch: Epoch) -> StageStream:
        """A stream as the operator opens it, dialled until the pod listens."""
        while True:
            stream = StageStream(f"{self.address}:7070", epoch=epoch, kind="waltz", generation=self.generation)
            try:
                await stream.open()
            except StageUnreachable:
                await asyncio.sleep(0.05)
            else:
                return stream


@dataclass
class WaltzPods:
    """A WaltzCluster `ledger` with three storage nodes."""

    raft: Pods
    folder: Path
    pods: list[WaltzPod] = field(default_factory=list)
    storage: list[WaltzPod] = field(default_factory=list)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def metadata(self) -> Path:
        return self.folder / "metadata"

    @property
    def config(self) -> dict[str, Any]:
        return {
            "cluster_name": "ledger",
            "root": "/ledger-12345678",
            "key": KEY,
            "partitions": PARTITIONS,
            "storage": [f"{pod.address}:55280" for pod in self.storage],
            "session_timeout_ms": 3000,
        }

    async def begin(self) -> None:
        """Start the Raft pod and the storage nodes."""
        peer = self.raft.add(1, machine="Tree")
        await self.raft.bootstrap(peer)
        self.metadata.mkdir()
        (self.metadata / "addresses").write_text(f"{peer.url}\n")
        (self.metadata / "secret").write_bytes(SECRET)
        self.storage = [self._pod("storage", 1, f"ledger-storage-{index}") for index in range(3)]
        for pod in self.storage:
            pod.start()

    def server(self, generation: int, index: int = 0) -> WaltzPod:
        pod = self._pod("server", generation, f"ledger-server-g{generation}-{index}")
        pod.start()
        return pod

    async def lead_up(self, pods: list[WaltzPod], epoch: Epoch, told: dict[str, str]) -> None:
        """Allow a generation to write, as the operator does, and wait until it leads."""
        streams = [await pod.stream(epoch) for pod in pods]
        try:
            async with asyncio.timeout(WAIT_S):
                for stream in streams:
                    await stream.lead_up(told)
                    await stream.allow_writes(Token(pods[0].generation, epoch.major))
                while not all(stream.report is not None and stream.report.leads for stream in streams):
                    await asyncio.sleep(0.05)
        finally:
            for stream in streams:
                await stream.close()

    def _pod(self, role: str, generation: int, name: str) -> WaltzPod:
        pod = WaltzPod(self, role, generation, name, self.stack.enter_context(claimed_address()))
        self.pods.append(pod)
        return pod

    def end(self) -> None:
        for pod in self.pods:
            if pod.process is not None and pod.process.poll() is None:
                pod.kill()
        self.stack.close()

"""Raft server pods as processes, each on a loopback address of its own, as the process kubelet starts them."""

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import yaml

from pavane.compute.wire.common import Epoch, Token
from pavane.raft.client import RaftClient
from pavane.runtime.names import parse_hosts
from pavane.stage.client import StageStream
from pavane.stage.errors import StageUnreachable
from tests.services.eventually import eventually

SECRET = b"a secret of the cluster"
CLAIM_PORT = 7069
ANSWER_S = 60.0  # of the ops port: where nobody listens is told at once, and a pod may stand still on a busy machine
FIRST_EPOCH = Epoch(1, 1)
PROGRAM = "from pavane.pods.main import run; raise SystemExit(run())"


@contextlib.contextmanager
def claimed_address() -> Iterator[str]:
    """A loopback address that nobody else uses: several test runs may share a machine."""
    while True:
        address = f"127.{random.randint(32, 63)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
        with contextlib.suppress(OSError), socket.create_server((address, CLAIM_PORT)):
            yield address
            return


@dataclass
class Pod:
    """One pod; `start` and `kill` as often as a test likes, on the same volume."""

    cluster: "Pods"
    generation: int
    index: int
    address: str
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def name(self) -> str:
        return f"db-server-g{self.generation}-{self.index}"

    @property
    def url(self) -> str:
        return f"tcp://{self.name}.db-server-g{self.generation}.default.svc:8047"

    @property
    def folder(self) -> Path:
        return self.cluster.folder / self.name

    @property
    def termination_log(self) -> Path:
        return self.folder / "termination"

    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PAVANE_", "OTEL_"))},
            "PAVANE_RESOURCE": "db",
            "PAVANE_KIND": "RaftCluster",
            "PAVANE_ROLE": "server",
            "PAVANE_GENERATION": str(self.generation),
            "PAVANE_CONFIG": str(self.folder / "config.yaml"),
            "PAVANE_LIVE": str(self.folder / "live.yaml"),
            "PAVANE_RAFT_URL": self.url,
            "PAVANE_RAFT_DATA": str(self.folder / "data"),
            "PAVANE_RAFT_SECRET_FILE": str(self.folder / "secret"),
            "PAVANE_HOSTS_FILE": str(self.cluster.hosts),
            "PAVANE_TERMINATION_LOG": str(self.termination_log),
            "POD_NAME": self.name,
            "POD_NAMESPACE": "default",
            "POD_IP": self.address,
        }

    def configure(self, **settings: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "secret").write_bytes(SECRET + b"\n")
        self.set_live(10_000, 5000)
        seeds = ["tcp://db.default.svc:8047", f"tcp://db-server-g{self.generation}.default.svc:8047"]
        (self.folder / "config.yaml").write_text(
            yaml.safe_dump(
                {
                    "cluster_id": "db",
                    "machine": "Broadcast",
                    "seeds": seeds,
                    "election_min": 500,
                    "election_max": 1000,
                    **settings,
                }
            )
        )

    def set_live(self, snapshot_entries: int, log_retention: int) -> None:
        values = {"snapshot_entries": snapshot_entries, "log_retention": log_retention}
        (self.folder / "live.yaml").write_text(yaml.safe_dump(values))

    def start(self) -> None:
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env=self.environment(), stdout=output, stderr=subprocess.STDOUT
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=20)

    async def exit_code(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, 20)

    async def get(self, path: str) -> httpx2.Response | None:
        """An answer of the ops port, `None` where nobody listens."""
        async with httpx2.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:
            with contextlib.suppress(httpx2.TransportError):
                return await client.get(f"http://{self.address}:7071{path}")
        return None

    async def stage(self) -> dict[str, Any]:
        answer = await self.get("/stage")
        return {} if answer is None else dict(answer.json())

    async def reaches(self, stage: str, *, leads: bool | None = None) -> dict[str, Any]:
        """Wait by `/stage`, without any stream."""
        async with asyncio.timeout(30):
            while True:
                state = await self.stage()
                if state.get("stage") == stage and leads in (None, state["leads"]):
                    return state
                await asyncio.sleep(0.05)

    async def stream(self, epoch: Epoch) -> StageStream:
        """A stream as the operator opens it, dialled until the pod listens."""
        while True:
            stream = StageStream(f"{self.address}:7070", epoch=epoch, kind="raft", generation=self.generation)
            try:
                await stream.open()
            except StageUnreachable:
                if self.process is None or self.process.poll() is not None:
                    raise
                await asyncio.sleep(0.05)
            else:
                return stream


@dataclass
class Pods:
    """The pods of one RaftCluster named `db`."""

    folder: Path
    pods: list[Pod] = field(default_factory=list)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def hosts(self) -> Path:
        return self.folder / "hosts"

    def add(self, generation: int, index: int = 0, **settings: Any) -> Pod:
        """A new pod, configured and named in the hosts file, not started."""
        pod = Pod(self, generation, index, self.stack.enter_context(claimed_address()))
        self.pods.append(pod)
        pod.configure(**settings)
        self.serve(generation)
        return pod

    def serve(self, generation: int) -> None:
        """Let the public Service name the pods of `generation`."""
        lines = [f"{pod.address} {pod.name}.db-server-g{pod.generation}.default.svc" for pod in self.pods]
        lines += [f"{pod.address} db-server-g{pod.generation}.default.svc" for pod in self.pods]
        lines += [f"{pod.address} db.default.svc" for pod in self.pods if pod.generation == generation]
        new = self.hosts.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(self.hosts)

    def resolve(self, host: str) -> list[str]:
        return list(parse_hosts(self.hosts.read_text()).get(host, [host]))

    @contextlib.asynccontextmanager
    async def client(self, *pods: Pod) -> AsyncIterator[RaftClient]:
        async with RaftClient([pod.url for pod in pods], SECRET, resolve=self.resolve) as client:
            yield client

    async def bootstrap(self, pod: Pod, epoch: Epoch = FIRST_EPOCH) -> None:
        """Start one pod and make it a cluster of one, as the operator does."""
        pod.start()
        stream = await pod.stream(epoch)
        try:
            await stream.lead_up({"bootstrap": "entry", "initial": json.dumps([[pod.name, pod.url]])})
            await stream.allow_writes(Token(pod.generation, epoch.major))
            await eventually(lambda: stream.report is not None and stream.report.leads)
        finally:
            await stream.close()

    def end(self) -> None:
        for pod in self.pods:
            if pod.process is not None and pod.process.poll() is None:
                pod.kill()
        self.stack.close()

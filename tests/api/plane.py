"""A control plane over an embedded cluster, in this process, with real TLS between the two."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from fastapi import FastAPI

from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from pavane.runtime.http import HttpServer, listen
from pavane.runtime.names import HOSTS_FILE_VARIABLE, install
from pavane_api.app import create_app
from pavane_api.kinds import RAFT_CLUSTERS
from pavane_api.settings import ApiSettings
from pavane_local.api.auth import Tokens
from pavane_local.platform import LocalCluster, LocalSettings, local_cluster
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.resources import PODS, SECRETS, Resource
from tests.services.eventually import eventually
from tests.services.ports import free_ports

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
IDENT = "of the test"
ANSWER_S = 50.0  # a loaded machine takes its time
LEDGER = "ledger.default.svc"  # where tests have the servers of a log
BASE = "/api/v1/namespaces/default/raftclusters"


@dataclass(frozen=True)
class Plane:
    """A client that is the administrator, and the cluster behind."""

    http: httpx2.AsyncClient
    kube: KubeClient
    token: str
    local: LocalCluster
    app: FastAPI

    async def service_account_token(self, account: str, audience: str = "", namespace: str = "default") -> str:
        """Make an account without any rights, a pod of it, and the token of that pod for an audience (default: all)."""
        await self.kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": account}}, namespace)
        spec = {"serviceAccountName": account, "containers": [{"name": "main", "image": "unknown"}]}
        pod = await self.kube.create(PODS, {"metadata": {"name": account}, "spec": spec}, namespace)
        key = (self.local.folder / "ca" / "token.key").read_bytes()
        return Tokens(self.local.cluster, self.token, key).issue(pod, audience)


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, lifespan="on")
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started or task.done(), ANSWER_S)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        app.state.streams.stop()
        server.should_exit = True
        await task


@asynccontextmanager
async def plane(folder: Path, **settings: Any) -> AsyncIterator[Plane]:
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get(HOSTS_FILE_VARIABLE):
            # As in a pod of the local cluster: names of Services are known there alone.
            folder.mkdir(parents=True, exist_ok=True)
            hosts = folder / "hosts"
            hosts.write_text(f"127.0.0.1 {LEDGER}\n")
            patch.setenv(HOSTS_FILE_VARIABLE, str(hosts))
        patch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
        install()
        async with _plane(folder, **settings) as api:
            yield api


@asynccontextmanager
async def _plane(folder: Path, **settings: Any) -> AsyncIterator[Plane]:
    async with local_cluster(LocalSettings(folder=folder / "cluster", platform_pods=False)) as local:
        target = Target(local.kubeconfig)
        app = create_app(ApiSettings(data=folder / "api", **settings), lambda: KubeClient.connect(target))
        config = yaml.safe_load(local.kubeconfig.read_text())
        token = config["users"][0]["user"]["token"]
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            serving(app) as url,
            httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=ANSWER_S) as http,
            await KubeClient.connect(target) as kube,
        ):
            yield Plane(http, kube, token, local, app)


def raft_cluster(name: str = "q", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"stateMachine": "Broadcast", "replicas": 1, **spec}}


async def created(plane: Plane, name: str = "q", **spec: Any) -> httpx2.Response:
    answer = await plane.http.put(f"{BASE}/{name}", json=raft_cluster(name, **spec), headers={"If-None-Match": "*"})
    assert answer.status_code == 201, answer.text
    return answer


@asynccontextmanager
async def peer(folder: Path, machine: str) -> AsyncIterator[RaftServer]:
    """A peer of its own in this process."""
    url = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    config = Config(id="1", ident=IDENT.encode(), url=url, peers=(("1", url),), machine=machine)
    server = RaftServer(config, data=folder, bind=url)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def served(api: Plane, folder: Path, machine: str, name: str = "q") -> AsyncIterator[RaftServer]:
    """Make a RaftCluster that is one peer in this process, in place of the pods of an operator."""
    await created(api, name, stateMachine=machine, tls={"mode": "Disabled"})
    await api.kube.create(SECRETS, {"metadata": {"name": f"{name}-keys"}, "stringData": {"secret": IDENT}}, "default")
    async with peer(folder / name, machine) as server:
        port = int(server.bound.rpartition(":")[2])
        endpoint = {"name": "raft", "address": "127.0.0.1", "port": port, "protocol": "TCP"}
        status = {"metadata": {"name": name}, "status": {"endpoints": [endpoint]}}
        await api.kube.apply_status(RAFT_CLUSTERS, status, "default")
        yield server

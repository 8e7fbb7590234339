"""A control plane over an embedded cluster, in this process, with real TLS between the two."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml
from fastapi import FastAPI

from pavane.runtime.http import HttpServer, listen
from pavane_api.app import create_app
from pavane_api.settings import ApiSettings
from pavane_local.platform import LocalSettings, local_cluster
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.resources import Resource

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
BASE = "/api/v1/namespaces/default/raftclusters"


@dataclass(frozen=True)
class Plane:
    """A client that is the administrator, and the cluster behind."""

    http: httpx2.AsyncClient
    kube: KubeClient
    token: str
    tls: ssl.SSLContext

    async def service_account_token(self, account: str) -> str:
        """Make an account without any rights and a token of it for the control plane."""
        await self.kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": account}}, "default")
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(base_url=self.kube.server, headers=headers, verify=self.tls) as http:
            path = SERVICE_ACCOUNTS.path("default", account, "token")
            answer = await http.post(path, json={"spec": {"audiences": ["pavane-api"]}})
        assert answer.status_code == 201, answer.text
        token: str = answer.json()["status"]["token"]
        return token


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, lifespan="on")
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        app.state.streams.stop()
        server.should_exit = True
        await task


@asynccontextmanager
async def plane(folder: Path) -> AsyncIterator[Plane]:
    async with local_cluster(LocalSettings(folder=folder / "cluster", platform_pods=False)) as local:
        target = Target(local.kubeconfig)
        app = create_app(ApiSettings(data=folder / "api"), lambda: KubeClient.connect(target))
        config = yaml.safe_load(local.kubeconfig.read_text())
        token = config["users"][0]["user"]["token"]
        authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
        tls = ssl.create_default_context(cadata=authority)
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            serving(app) as url,
            httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False) as http,
            await KubeClient.connect(target) as kube,
        ):
            yield Plane(http, kube, token, tls)


def raft_cluster(name: str = "q", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"stateMachine": "Broadcast", "replicas": 1, **spec}}


async def created(plane: Plane, name: str = "q", **spec: Any) -> httpx2.Response:
    answer = await plane.http.put(f"{BASE}/{name}", json=raft_cluster(name, **spec), headers={"If-None-Match": "*"})
    assert answer.status_code == 201, answer.text
    return answer

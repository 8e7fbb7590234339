"""The listening API server: TLS on the loopback address (`docs/specs/operator.md` 6.6)."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pavane.runtime.http import HttpServer, listen
from pavane_local.api.app import Api, PodLogs
from pavane_local.api.auth import Tokens
from pavane_local.api.cluster import Cluster
from pavane_local.certs import ensure_credentials, kubeconfig, write_private
from pavane_local.store import Object

ADDRESS = "127.0.0.1"  # never another one: the admin token may do everything
PORT = 6443
STOP_SECONDS = 3  # enough for answers under way; watches are ended before
KEEP_ALIVE_SECONDS = 60


class ApiServer:
    """The API server of a folder. Its port stays the same over restarts as long as it is free."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """Read the secrets of the folder, or make them."""
        self.kubeconfig = folder / "kubeconfig"
        self._cluster = cluster
        self._secrets = folder / "ca"
        ensure_credentials(self._secrets)
        self._authority = (self._secrets / "server.crt").read_bytes()
        self._admin_token = (self._secrets / "admin.token").read_text()
        self._tokens = Tokens(cluster, self._admin_token, (self._secrets / "token.key").read_bytes())
        self.url = ""

    def kubeconfig_of(self, pod: Object) -> str:
        """Return a kubeconfig for the ServiceAccount of a pod; its token ends with the pod."""
        return kubeconfig(self.url, self._authority, self.token_of(pod), pod["metadata"]["namespace"])

    def token_of(self, pod: Object, audience: str = "") -> str:
        """Return a token of a pod's ServiceAccount for an audience, "" being this server; it ends with the pod."""
        return self._tokens.issue(pod, audience)

    @contextlib.asynccontextmanager
    async def running(self, pod_logs: PodLogs) -> AsyncIterator[str]:
        """Serve until the block is left; yields the URL, and writes the kubeconfig of the administrator."""
        listener = self._listen()
        self.url = f"https://{ADDRESS}:{listener.getsockname()[1]}"
        write_private(self.kubeconfig, kubeconfig(self.url, self._authority, self._admin_token).encode())
        limits: dict[str, Any] = {"timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": STOP_SECONDS}
        limits |= {"ssl_certfile": self._secrets / "server.crt", "ssl_keyfile": self._secrets / "server.key"}
        server = HttpServer(Api(self._cluster, self._tokens, pod_logs), lifespan="off", **limits)
        task = asyncio.create_task(server.serve([listener]), name="api-server")
        try:
            yield self.url
        finally:
            self._cluster.store.end_watches()
            server.should_exit = True
            await task

    def _listen(self) -> socket.socket:
        """Return a listening socket: on the former port, else on the usual one, else on any."""
        file = self._secrets / "port"
        for port in (int(file.read_text()) if file.exists() else PORT, PORT):
            with contextlib.suppress(OSError):
                listener = listen(ADDRESS, port)
                break
        else:
            listener = listen(ADDRESS, 0)
        write_private(file, str(listener.getsockname()[1]).encode())
        return listener

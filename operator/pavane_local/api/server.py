"""The listening API server: TLS on the loopback address (`docs/specs/operator.md` 6.6)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn

from pavane_local.api.app import Api
from pavane_local.api.auth import Tokens
from pavane_local.api.cluster import Cluster
from pavane_local.api.logs import PodLogs
from pavane_local.certs import ensure_credentials, kubeconfig, write_private
from pavane_local.store import Object

ADDRESS = "127.0.0.1"
"""Never another one: the admin token may do everything."""
PORT = 6443
BACKLOG = 128
STOP_SECONDS = 3
"""Enough for answers under way; watches are ended before."""
KEEP_ALIVE_SECONDS = 60


class _Server(uvicorn.Server):
    """Leaves the signals of the process to the process."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class ApiServer:
    """The API server of a folder. Its port stays the same over restarts as long as it is free."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """Read the certificates of the folder, or make them."""
        self.kubeconfig = folder / "kubeconfig"
        self._cluster = cluster
        self._credentials = ensure_credentials(folder / "ca")
        self._tokens = Tokens(cluster, self._credentials.admin_token, self._credentials.signing_key)
        self._port_file = folder / "ca" / "port"
        self._url = ""

    def kubeconfig_of(self, pod: Object) -> str:
        """Return a kubeconfig for the ServiceAccount of a pod; its token ends with the pod. Raises `ApiError` 404."""
        metadata = pod["metadata"]
        bound = {"boundObjectRef": {"kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}}
        account = pod["spec"].get("serviceAccountName", "default")
        token = self._tokens.issue(metadata["namespace"], account, bound)["status"]["token"]
        return kubeconfig(self._url, self._credentials.authority, token, metadata["namespace"]).decode()

    @asynccontextmanager
    async def running(self, pod_logs: PodLogs) -> AsyncIterator[str]:
        """Serve until the block is left; yields the URL, and writes the kubeconfig of the administrator."""
        listener = self._listen()
        port = listener.getsockname()[1]
        write_private(self._port_file, str(port).encode())
        self._url = f"https://{ADDRESS}:{port}"
        admin = self._credentials.admin_token
        write_private(self.kubeconfig, kubeconfig(self._url, self._credentials.authority, admin))
        api = Api(self._cluster, self._tokens, pod_logs)
        config = uvicorn.Config(
            api, lifespan="off", log_config=None, log_level="error", access_log=False, ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=STOP_SECONDS,
            ssl_certfile=self._credentials.certificate, ssl_keyfile=self._credentials.key,
        )  # fmt: skip
        server = _Server(config)
        task = asyncio.create_task(server.serve([listener]), name="api-server")
        try:
            yield self._url
        finally:
            api.end_watches()
            server.should_exit = True
            await task

    def _listen(self) -> socket.socket:
        """Return a listening socket: on the former port, else on the usual one, else on any."""
        former = int(self._port_file.read_text()) if self._port_file.exists() else PORT
        for port in (former, PORT, 0):
            # With the protocol named, asyncio switches Nagle's delay off, which would cost 40 ms for each answer.
            listener = socket.socket(proto=socket.IPPROTO_TCP)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((ADDRESS, port))
                listener.listen(BACKLOG)
            except OSError:
                listener.close()
                if port:
                    continue
                raise
            return listener
        raise AssertionError("the last port is any free one")

"""The listening API server: TLS on the loopback address (`docs/specs/operator.md` 6.6)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from pavane_local.api.app import Api
from pavane_local.certs import Credentials

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


def listen(preferred_port: int = PORT) -> socket.socket:
    """Return a listening socket on the preferred port, or, if it is taken, on any free one."""
    for port in (preferred_port, 0):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, port))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            if not port:
                raise
        else:
            return listener
    raise AssertionError("unreachable")


@asynccontextmanager
async def serve(api: Api, credentials: Credentials, listener: socket.socket) -> AsyncIterator[str]:
    """Serve until the block is left; yields the URL."""
    config = uvicorn.Config(
        api, lifespan="off", log_config=None, access_log=False, ws="none", timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_certfile=credentials.certificate, ssl_keyfile=credentials.key, timeout_graceful_shutdown=STOP_SECONDS,
    )  # fmt: skip
    server = _Server(config)
    task = asyncio.create_task(server.serve([listener]), name="api-server")
    try:
        yield f"https://{ADDRESS}:{listener.getsockname()[1]}"
    finally:
        api.end_watches()
        server.should_exit = True
        await task

"""The process ``pavane api``."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Iterator

import uvicorn

from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane.runtime.process import run as run_process
from pavane_api.app import create_app
from pavane_api.settings import ApiSettings

BACKLOG = 512
STOP_S = 5  # after this, answers still under way are cut off; below the pod's grace period


class _Server(uvicorn.Server):
    """A uvicorn that leaves the signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _body(process: Process) -> None:
    settings = ApiSettings.load()
    app = create_app(settings)
    listener = socket.create_server((settings.host, settings.port), backlog=BACKLOG)
    config = uvicorn.Config(
        app, log_config=None, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_S, lifespan="on"
    )
    server = _Server(config)
    serving = process.spawn(server.serve(sockets=[listener]), name="rest port")

    def ready() -> str | None:
        return None if server.started else "starting"

    def metrics() -> Iterable[Metric]:
        yield Metric("pavane_api_streams", {}, app.state.streams.count)

    ops = OpsServer(host=settings.host, port=settings.ops_port, live=lambda: None, ready=ready, metrics=metrics)
    await ops.start(process)
    await process.ended()
    app.state.streams.stop()
    server.should_exit = True
    await asyncio.wait({serving})
    await ops.stop()


def run() -> int:
    """Serve until told to stop; returns the exit code."""
    return run_process(_body, service="pavane-api")

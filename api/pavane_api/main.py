"""The process ``pavane api``."""

import asyncio
from collections.abc import Iterable

from pavane.runtime.http import HttpServer, listen
from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process
from pavane.runtime.process import run as run_process
from pavane_api.app import create_app
from pavane_api.settings import ApiSettings

BACKLOG = 512
STOP_S = 5  # after this, answers still under way are cut off; below the pod's grace period


async def _body(process: Process) -> None:
    settings = ApiSettings.load()
    app = create_app(settings)
    listener = listen(settings.host, settings.port, backlog=BACKLOG)
    server = HttpServer(app, lifespan="on", timeout_graceful_shutdown=STOP_S)
    serving = process.spawn(server.serve(sockets=[listener]), name="rest port")

    def ready() -> str | None:
        return None if server.started else "starting"

    def live() -> str | None:
        collecting = getattr(app.state, "collecting", None)
        return f"series are not read any more: {collecting.exception()!r}" if collecting and collecting.done() else None

    def metrics() -> Iterable[Metric]:
        yield Metric("pavane_api_streams", {}, app.state.streams.count)
        for code, count in sorted(app.state.exports.items()):
            yield Metric("pavane_api_trace_exports_total", {"code": str(code)}, count)

    ops = OpsServer(host=settings.host, port=settings.ops_port, live=live, ready=ready, metrics=metrics)
    await ops.start(process)
    await process.ended()
    app.state.streams.stop()
    server.should_exit = True
    await asyncio.wait({serving})
    await ops.stop()


def run() -> int:
    """Serve until told to stop; returns the exit code."""
    return run_process(_body, service="pavane-api")

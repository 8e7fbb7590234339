"""The ops port of a process: ``/livez``, ``/readyz``, ``/metrics`` and documents of its own (operator.md 4.2)."""

import asyncio
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pavane.runtime.http import HttpServer, listen
from pavane.runtime.metrics import Metric, render
from pavane.runtime.process import Process
from pavane.runtime.visitors import OwnVisitors

OPS_PORT = 7071
LOOP_TICK_SECONDS = 0.5
LOOP_LATE_SECONDS_MAX = 5.0  # a pod whose event loop did not turn for so long is as good as dead (operator.md 4.2)
CONNECTIONS_MAX = 64  # probes, a scraper, the operator; strangers' idle ones give way
STATM = Path("/proc/self/statm")  # pages of this process: all, in memory, …

Check = Callable[[], str | None]
"""Returns what is wrong, or ``None``."""


class LoopWatch:
    """Measures how late the event loop is: ``run`` is a task, ``check`` a liveness check.

    A loop that did not turn for ``limit_seconds`` is as good as dead.
    """

    def __init__(self, limit_seconds: float = LOOP_LATE_SECONDS_MAX) -> None:
        self._limit = limit_seconds
        self._last = asyncio.get_running_loop().time()
        self.late_seconds_max = 0.0

    async def run(self) -> None:
        """Tick for ever."""
        now = asyncio.get_running_loop().time
        while True:
            self._last = now()
            await asyncio.sleep(LOOP_TICK_SECONDS)
            self.late_seconds_max = max(self.late_seconds_max, now() - self._last - LOOP_TICK_SECONDS)

    def check(self) -> str | None:
        """Say so when the loop has not turned for too long."""
        late = asyncio.get_running_loop().time() - self._last
        return f"the event loop did not turn for {late:.1f} s" if late > self._limit else None


class OpsServer:
    """Serves the ops port on ``host``.

    ``documents`` makes what is shown as JSON, by path; what returns ``None`` has nothing to show yet and is 503.
    ``metrics`` returns (name, labels, value) of every metric. ``live`` and ``ready`` answer the probes; liveness also
    fails when the event loop hangs for ``late_seconds_max``.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int = OPS_PORT,
        live: Check,
        ready: Check,
        metrics: Callable[[], Iterable[tuple[str, Mapping[str, str], float]]],
        documents: Mapping[str, Callable[[], dict[str, Any] | None]] | None = None,
        late_seconds_max: float = LOOP_LATE_SECONDS_MAX,
    ) -> None:
        self._host = host
        self.port = port
        self._live = live
        self._ready = ready
        self._metrics = metrics
        self._documents = documents or {}
        self._watch = LoopWatch(late_seconds_max)
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[Any] | None = None

    async def start(self, process: Process) -> None:
        """Bind and serve as supervised tasks of ``process``. Raises ``OSError`` when the address is not free."""
        listener = listen(self._host, self.port)
        self.port = listener.getsockname()[1]
        routes = [
            Route("/livez", self._answer_live),
            Route("/readyz", self._answer_ready),
            Route("/metrics", self._answer_metrics),
            *(_document_route(path, document) for path, document in self._documents.items()),
        ]
        app = OwnVisitors(Starlette(routes=routes))
        self._server = HttpServer(app, lifespan="off", connections_max=CONNECTIONS_MAX)
        self._serving = process.spawn(self._server.serve(sockets=[listener]), name="ops port")
        process.spawn(self._watch.run(), name="event loop watch")

    async def stop(self) -> None:
        """Close the port."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            await asyncio.wait({self._serving})

    def _check_live(self) -> str | None:
        return self._watch.check() or self._live()

    async def _answer_live(self, _: Request) -> Response:
        return _probe(self._check_live())

    async def _answer_ready(self, _: Request) -> Response:
        return _probe(self._ready())

    async def _answer_metrics(self, _: Request) -> Response:
        late = Metric("pavane_loop_late_seconds", {}, self._watch.late_seconds_max)
        cpu = Metric("pavane_process_cpu_seconds_total", {}, time.process_time())
        shown = (*self._metrics(), late, cpu, Metric("pavane_process_memory_bytes", {}, _memory_bytes()))
        return PlainTextResponse(render(shown), media_type="text/plain; version=0.0.4")


def _memory_bytes() -> int:
    """Return how much memory this process holds; 0 where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _document_route(path: str, document: Callable[[], dict[str, Any] | None]) -> Route:
    async def answer(_: Request) -> Response:
        shown = document()
        return _probe("not yet") if shown is None else JSONResponse(shown)

    return Route(path, answer)


def _probe(fault: str | None) -> Response:
    return PlainTextResponse("ok\n") if fault is None else PlainTextResponse(f"{fault}\n", status_code=503)

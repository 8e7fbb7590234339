"""The FastAPI application of the control plane."""

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute

from pavane.parts.rates import Bucket
from pavane_api import answers, dashboard, guide, pages
from pavane_api.auth import Authority
from pavane_api.bodies import BodyLimit
from pavane_api.control import Control
from pavane_api.events import endpoints as events
from pavane_api.idempotency import Idempotency
from pavane_api.overview.endpoints import router as overview
from pavane_api.parameters import only_known, only_known_of_caller
from pavane_api.pods import endpoints as pods
from pavane_api.raft_clients import RaftClients
from pavane_api.resources import endpoints as resources
from pavane_api.rollout import endpoints as rollout
from pavane_api.series import endpoints as series
from pavane_api.series.collector import Collector
from pavane_api.series.store import SeriesStore
from pavane_api.settings import ApiSettings
from pavane_api.streams import Streams
from pavane_api.traces.endpoints import receiver
from pavane_api.traces.endpoints import router as traces
from pavane_api.traces.receiver import Receiver
from pavane_api.traces.store import TraceStore
from pavane_api.views.kept import KeptViews, Queries
from pavane_api.waltz_clients import WaltzClients
from pavane_operator.crds.definitions import all_kinds
from pavane_operator.crds.descriptor import Definition
from pavane_operator.kube import KubeClient, pods_http

DESCRIPTION = (
    "Manage coordination services and reach their data. Errors are `application/problem+json`. Send a token of the "
    "cluster as bearer token (`kubectl create token NAME --audience pavane-api`); it may do here what it may do "
    "with kubectl."
)


def _is_untraced(scope: MutableMapping[str, Any]) -> bool:
    """Spans about the arrival of spans would never end; files of the page say nothing."""
    path = str(scope.get("path", ""))
    return path == "/" or path.startswith(("/v1/traces", dashboard.PREFIX, guide.PREFIX))


@functools.cache
def _v1() -> tuple[BaseRoute, ...]:
    """The routes below /api/v1; they take a second to build, so all applications of a process share them."""
    v1 = APIRouter(prefix="/api/v1", dependencies=[Depends(only_known_of_caller)])
    for kind in all_kinds():
        v1.include_router(resources.router_of(kind))
        if isinstance(kind, Definition):
            v1.include_router(rollout.router_of(kind))
            v1.include_router(pods.router_of(kind))
            v1.include_router(events.router_of(kind))
            v1.include_router(series.router_of(kind))
        for package in kind.routers:
            v1.include_router(import_module(f"pavane_api.{package}.endpoints").router)
    v1.include_router(overview)
    v1.include_router(traces)
    root = APIRouter()
    root.include_router(v1)
    return tuple(root.routes)


def create_app(settings: ApiSettings, connect: Callable[[], Awaitable[KubeClient]] = KubeClient.connect) -> FastAPI:
    """Build the application; when it starts it gets its Kubernetes client from ``connect``."""
    streams = Streams()
    exports: Counter[int] = Counter()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        traces_store = TraceStore(
            settings.data / "traces.sqlite",
            retention_s=settings.trace_retention_s,
            spans_max=settings.trace_spans_max,
            bytes_max=settings.trace_bytes_max,
        )
        series_store = SeriesStore(
            settings.data / "series.sqlite",
            retention_s=settings.series_retention_s,
            rows_max=settings.series_rows_max,
            every_s=settings.series_every_s,
        )
        await traces_store.open()
        await series_store.open()
        kube = await connect()
        authority = Authority(kube, settings.audience)
        clients, logs, http, queries = RaftClients(kube), WaltzClients(kube), pods_http(), Queries()
        app.state.control = Control(
            kube=kube,
            authority=authority,
            idempotency=Idempotency(),
            raft=clients,
            waltz=logs,
            views=KeptViews(logs),
            queries=queries,
            pods=http,
            streams=streams,
            traces=traces_store,
            series=series_store,
            receiver=Receiver(
                traces_store,
                authority,
                settings.trace_audience if settings.trace_tokens else None,
                settings.namespace,
                Bucket(settings.trace_requests_per_s),
                exports,
            ),
        )
        names = [name.strip() for name in settings.watch_namespaces.split(",") if name.strip()]
        collector = Collector(kube, http, series_store, every_s=settings.series_every_s, namespaces=names)
        app.state.collecting = asyncio.create_task(collector.run(), name="series")
        try:
            yield
        finally:
            app.state.collecting.cancel()
            await asyncio.wait({app.state.collecting})
            await queries.close()
            await clients.close()
            await logs.close()
            await http.aclose()
            await kube.close()
            await traces_store.close()
            await series_store.close()

    app = FastAPI(
        title="Pavane",
        version=version("pavane"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=pages.DESCRIPTION_URL,
        telemetry={"operation_spans": False, "metrics": False, "exclude": _is_untraced},
    )
    app.add_middleware(BodyLimit)
    app.state.streams, app.state.exports = streams, exports
    answers.install(app)
    pages.install(app)
    app.router.routes.extend(_v1())
    app.include_router(receiver, dependencies=[Depends(only_known)])
    dashboard.install(app)
    guide.install(app)
    return app

"""`pavane operator`: the process (docs/specs/operator.md 5.1)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import socket
import sys
from datetime import UTC, datetime
from importlib.metadata import version

import httpx2
import kopf
import structlog

from pavane.runtime.ops import OpsServer
from pavane.runtime.process import Process, write_termination_log
from pavane.runtime.process import run as run_process
from pavane.runtime.settings import SettingsError
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.port import Kind
from pavane_operator.kinds.registry import kinds as all_kinds
from pavane_operator.kube import ConnectError, KubeClient, KubeError
from pavane_operator.kube.resources import CRDS, GROUP
from pavane_operator.plan.model import Settings
from pavane_operator.runtime import handlers, lease
from pavane_operator.runtime.cache import Cache
from pavane_operator.runtime.events import EventRecorder
from pavane_operator.runtime.metrics import Metrics
from pavane_operator.runtime.operator import Operator
from pavane_operator.runtime.reconcile import Shared
from pavane_operator.runtime.settings import OperatorSettings
from pavane_operator.runtime.streams import Epochs

API_TIMEOUT_S = 5.0
"""Lease duration minus renew deadline (5.6), so that no call of a lost holder lands late."""
START_RETRY_S = 1.0
"""Between two looks for the API server and the CRDs at the start."""
EXIT_USAGE = 2
EXIT_SUPERSEDED = 3
SECRET_KEY_BYTES = 32

CHATTY_LOGGERS = ("httpx2", "kopf.activities", "kopf.objects")
"""One reports each poll of a pod, the others each event that was handed over, with all of kopf's settings."""

log = structlog.get_logger(__name__)


def run() -> int:
    """Run the operator until SIGTERM or SIGINT; returns the exit code (2 settings, 3 another operator took over)."""
    try:
        settings = OperatorSettings.load()
    except SettingsError as error:
        sys.stderr.write(f"the operator's settings are wrong: {error}\n")
        write_termination_log(str(error))
        return EXIT_USAGE

    async def body(process: Process) -> None:
        for name in CHATTY_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        await OperatorProcess(settings, process).live()

    return run_process(body, service="pavane-operator")


class OperatorProcess:
    """Everything that one operator process consists of; `live` returns when the process is to end."""

    def __init__(self, settings: OperatorSettings, process: Process) -> None:
        self._settings = settings
        self._process = process
        self._identity = f"{socket.gethostname()}_{secrets.token_hex(8)}"
        self._ready = asyncio.Event()
        self._waits_for = "the API server"
        self._metrics = Metrics()

    async def live(self) -> None:
        """Serve until the process is told to end. Raises ConnectError when no API server can be derived."""
        ops = OpsServer(
            host=self._settings.pod_ip,
            port=self._settings.health_port,
            live=lambda: None,
            ready=lambda: None if self._ready.is_set() else f"waiting for {self._waits_for}",
            metrics=self._metrics.read,
        )
        await ops.start(self._process)
        try:
            async with await KubeClient.connect(timeout_s=API_TIMEOUT_S) as kube, httpx2.AsyncClient() as http:
                self._metrics.api_calls = kube.calls
                serving = self._process.spawn(self._serve(kube, http), name="operator")
                await self._process.ended()
                serving.cancel()
                await asyncio.wait({serving})
        except ConnectError as error:
            self._process.exit(EXIT_USAGE, str(error))
        finally:
            await ops.stop()

    async def _serve(self, kube: KubeClient, http: httpx2.AsyncClient) -> None:
        kinds = all_kinds(self._defaults())
        epochs = Epochs(await self._take_lease(kube))
        await self._await_crds(kube, kinds)
        rng = random.Random()  # noqa: S311 - jitter and names of events, nothing secret
        shared = Shared(
            kube=kube,
            http=http,
            cache=Cache(),
            epochs=epochs,
            events=EventRecorder(kube, self._identity, rng),
            rng=rng,
            settings=Settings(image_pull_limit=self._settings.image_pull_limit_span),
            now=_now,
            metrics=self._metrics,
        )
        operator = Operator(kinds, shared)
        self._process.spawn(self._guard_epoch(kube, epochs), name="epoch")
        self._waits_for = "the first lists"
        self._process.spawn(operator.compare(self._settings.watch_namespaces), name="comparison with the watches")
        watching = asyncio.create_task(self._watch(kube, kinds, operator), name="watches")
        try:
            await asyncio.wait({watching})
        finally:
            # Before kopf: it waits seconds for tasks that it does not know.
            await operator.close()
            watching.cancel()
            await asyncio.wait({watching})
        await watching

    async def _watch(self, kube: KubeClient, kinds: tuple[Kind, ...], operator: Operator) -> None:
        namespaces = self._settings.watch_namespaces
        settings = handlers.settings()
        settings.scanning.disabled = bool(namespaces)
        others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=handlers.registry(kinds, operator, kube.credentials),
            settings=settings,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            ready_flag=self._ready,
        )
        self._process.take_signals()  # kopf has taken them; but what we run is to be stopped first
        await kopf.run_tasks(tasks, ignored=others)

    def _defaults(self) -> RenderDefaults:
        return RenderDefaults(
            image=self._settings.default_image,
            version=version("pavane"),
            otlp_endpoint=self._settings.pod_otlp_endpoint,
            secret_key=secrets.token_bytes(SECRET_KEY_BYTES),
        )

    async def _take_lease(self, kube: KubeClient) -> int:
        while True:
            try:
                return await lease.take(kube, self._settings.operator_namespace, self._identity, _now())
            except KubeError as error:
                self._waits_for = f"the API server: {error}"
                log.warning("the Lease cannot be taken yet", error=str(error))
            await asyncio.sleep(START_RETRY_S)

    async def _await_crds(self, kube: KubeClient, kinds: tuple[Kind, ...]) -> None:
        for kind in kinds:
            name = f"{kind.plural}.{GROUP}"
            while True:
                found = None
                with contextlib.suppress(KubeError):
                    found = await kube.get_or_none(CRDS, name)
                if found is not None:
                    break
                self._waits_for = f"CustomResourceDefinition {name}: install the chart pavane-crds"
                log.warning("a definition is missing", name=name)
                await asyncio.sleep(START_RETRY_S)

    async def _guard_epoch(self, kube: KubeClient, epochs: Epochs) -> None:
        """A pod spoke of another operator: who holds the Lease goes on with a greater epoch, everybody else stops."""
        namespace = self._settings.operator_namespace
        while True:
            await epochs.superseded.wait()
            try:
                epoch = await lease.raise_epoch(kube, namespace, self._identity, _now(), above=epochs.greatest_met)
            except KubeError as error:
                log.warning("the Lease cannot be written", error=str(error))
                await asyncio.sleep(START_RETRY_S)
                continue
            if epoch is None:
                self._process.exit(EXIT_SUPERSEDED, "another operator has taken the Lease")
                return
            epochs.raised(epoch)


def _now() -> datetime:
    return datetime.now(UTC)

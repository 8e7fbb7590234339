"""`pavane operator`: the process (docs/specs/operator.md 5.1)."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version

import httpx2
import kopf
import structlog

from pavane.runtime.metrics import Metric
from pavane.runtime.ops import OpsServer
from pavane.runtime.process import EXIT_USAGE, Process, write_termination_log
from pavane.runtime.process import run as run_process
from pavane.runtime.settings import SettingsError
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.podless import Around, PodlessKind
from pavane_operator.kinds.registry import kinds as all_kinds
from pavane_operator.kinds.registry import podless
from pavane_operator.kube import ConnectError, KubeClient, KubeError, Target, pods_http
from pavane_operator.kube.library import Credentials, load
from pavane_operator.plan.model import Settings
from pavane_operator.plan.port import Kind
from pavane_operator.runtime import handlers
from pavane_operator.runtime.cache import Cache
from pavane_operator.runtime.definitions import awaited_definitions
from pavane_operator.runtime.events import EventRecorder
from pavane_operator.runtime.lease import Candidate, Election, LeaseLostError
from pavane_operator.runtime.metrics import Metrics
from pavane_operator.runtime.operator import Operator
from pavane_operator.runtime.reconcile import Shared
from pavane_operator.runtime.settings import OperatorSettings
from pavane_operator.runtime.streams import Epochs

API_TIMEOUT_S = 5.0
"""Lease duration minus renew deadline (5.6), so that no call of a lost holder lands late."""
START_RETRY_S = 1.0
"""Between two looks for the API server and the definitions at the start, and two attempts to raise the epoch."""
LOOP_LATE_S_MAX = 30.0
"""An event loop that did not turn for so long is dead (5.12); before that the Lease is lost anyway."""
EXIT_LEASE_LOST = 3
SECRET_KEY_BYTES = 32
PROCESS_BYTES = 8
"""Of the part of the holder's identity that no other process has."""

Kinds = Callable[[RenderDefaults], Iterable[Kind]]

CHATTY_LOGGERS = ("httpx2", "kopf.activities", "kopf.objects")
"""One reports each poll of a pod, the others each event that was handed over, with all of kopf's settings."""

log = structlog.get_logger(__name__)


def run(kinds: Kinds = all_kinds) -> int:
    """Run the operator until SIGTERM or SIGINT; returns the exit code (2 settings, 3 Lease lost).

    `kinds` makes what it looks after.
    """
    try:
        settings = OperatorSettings.load()
    except SettingsError as error:
        sys.stderr.write(f"the operator's settings are wrong: {error}\n")
        write_termination_log(str(error))
        return EXIT_USAGE

    async def body(process: Process) -> None:
        for name in CHATTY_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        await OperatorProcess(settings, process, kinds).live()

    return run_process(body, service="pavane-operator")


class OperatorProcess:
    """Everything that one operator process consists of; `live` returns when the process is to end.

    `kinds` makes what it looks after.
    """

    def __init__(self, settings: OperatorSettings, process: Process, kinds: Kinds = all_kinds) -> None:
        self._settings = settings
        self._process = process
        self._kinds = tuple(kinds(self._defaults()))
        self._candidate = Candidate(process=secrets.token_hex(PROCESS_BYTES), pod=settings.pod_uid)
        self._rng = random.Random()  # noqa: S311 - jitter and names of events, nothing secret
        self._metrics = Metrics()
        self._waits_for: str | None = "the API server"
        self._operator: Operator | None = None
        self._election: Election | None = None

    async def live(self) -> None:
        """Serve until the process is told to end. Raises ConnectError when no API server can be derived."""
        ops = OpsServer(
            host=self._settings.pod_ip,
            port=self._settings.health_port,
            live=lambda: None,
            ready=self._unready,
            metrics=self._read_metrics,
            late_seconds_max=LOOP_LATE_S_MAX,
        )
        await ops.start(self._process)
        try:
            async with (
                await KubeClient.connect(timeout_s=API_TIMEOUT_S) as kube,
                await KubeClient.connect(timeout_s=API_TIMEOUT_S) as lease_kube,
                pods_http() as http,
            ):
                lease_kube.calls = self._metrics.api_calls = kube.calls
                serving = self._process.spawn(self._serve(kube, lease_kube, http), name="operator")
                await self._process.ended()
                serving.cancel()
                await asyncio.wait({serving})
        except ConnectError as error:
            self._process.exit(EXIT_USAGE, str(error))
        finally:
            await ops.stop()

    async def _serve(self, kube: KubeClient, lease_kube: KubeClient, http: httpx2.AsyncClient) -> None:
        """Stand by until the Lease is ours, then look after the resources.

        The Lease has a client of its own: renewals shall not wait for a turn among the calls about resources.
        """
        await self._await_definitions(kube)
        space, scope = self._settings.operator_namespace, self._settings.watch_namespaces
        election = self._election = Election(lease_kube, space, self._candidate, _now, self._rng, scope)
        epochs = Epochs(await election.acquire())
        log.info("the Lease is ours", epoch=epochs.transitions)
        self._metrics.leader = True
        self._waits_for = "the first lists"
        shared = Shared(
            kube=kube,
            http=http,
            cache=Cache(),
            epochs=epochs,
            events=EventRecorder(kube, self._candidate.identity, self._rng),
            rng=self._rng,
            settings=Settings(image_pull_limit=self._settings.image_pull_limit_span),
            now=_now,
            metrics=self._metrics,
            sources=self._settings.sources,
        )
        operator = self._operator = Operator(self._kinds, shared)
        beside = {
            self._process.spawn(self._hold(election), name="Lease"),
            self._process.spawn(self._guard_epoch(election, epochs), name="epoch"),
        }
        namespaces = self._settings.watch_namespaces
        cache, known = shared.cache, partial(shared.cache.of_type, namespace=None)
        around = Around(kube, http, cache.members, _now, self._defaults(), known, operator.tell, namespaces)
        beneath = [make(around) for make in podless()]
        watching = asyncio.create_task(self._watch(operator, beneath, kube), name="watches")
        try:
            await asyncio.wait({watching})
        finally:
            # Before kopf: it waits seconds for tasks that it does not know, and a successor waits for the Lease.
            await operator.close()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await election.release()
            watching.cancel()
            await asyncio.wait({watching})
        await watching

    async def _watch(self, operator: Operator, beneath: Sequence[PodlessKind], kube: KubeClient) -> None:
        namespaces = self._settings.watch_namespaces
        await operator.fill(namespaces)
        self._waits_for = None
        beside = {
            *(self._process.spawn(each, name="watch of children") for each in operator.following(namespaces)),
            self._process.spawn(operator.compare(namespaces), name="comparison with the watches"),
            *(self._process.spawn(each.run(), name=each.watched[0].kind) for each in beneath),
        }
        settings = handlers.settings()
        settings.scanning.disabled = bool(namespaces)
        credentials = Credentials(await load(Target()))
        others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=handlers.registry(self._kinds, operator, beneath, credentials),
            settings=settings,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
        )
        self._process.take_signals()  # kopf has taken them; but what we run is to be stopped first
        try:
            await kopf.run_tasks(tasks, ignored=others)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    def _defaults(self) -> RenderDefaults:
        return RenderDefaults(
            image=self._settings.default_image,
            version=version("pavane"),
            otlp_endpoint=self._settings.pod_otlp_endpoint,
            otlp_audience=self._settings.pod_otlp_audience,
            secret_key=secrets.token_bytes(SECRET_KEY_BYTES),
            platform_namespace=self._settings.operator_namespace,
        )

    async def _await_definitions(self, kube: KubeClient) -> None:
        """Without them there is nothing to lead, so a process stands by only once they are there."""
        async for missing in awaited_definitions(kube, self._kinds):
            self._waits_for = missing
            log.warning("not ready", waits_for=missing)
            await asyncio.sleep(START_RETRY_S)
        self._waits_for = None

    async def _hold(self, election: Election) -> None:
        self._abandon(await election.hold())

    async def _guard_epoch(self, election: Election, epochs: Epochs) -> None:
        """A pod spoke of another operator: who holds the Lease goes on with a greater epoch, everybody else stops."""
        while True:
            await epochs.superseded.wait()
            try:
                epochs.raised(await election.raise_epoch(epochs.greatest_met))
            except LeaseLostError as error:
                self._abandon(str(error))
            except KubeError as error:
                log.warning("the Lease cannot be written", error=str(error))
                await asyncio.sleep(START_RETRY_S)

    def _abandon(self, reason: str) -> None:
        """End the process at once: whatever it would still do in order, somebody else may already be doing (5.6)."""
        log.error("the process ends at once", code=EXIT_LEASE_LOST, reason=reason)
        write_termination_log(reason)
        os._exit(EXIT_LEASE_LOST)

    def _unready(self) -> str | None:
        rival = self._election.rival if self._election is not None else None
        if rival is not None:
            return f"waiting for {rival}, which looks after the same namespaces: uninstall one, or set watchNamespaces"
        return None if self._waits_for is None else f"waiting for {self._waits_for}"

    def _read_metrics(self) -> Iterable[Metric]:
        yield from self._metrics.read()
        if self._operator is not None:
            yield from self._operator.gauges()


def _now() -> datetime:
    return datetime.now(UTC)

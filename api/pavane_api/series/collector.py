"""Reads the metrics of all pods again and again: one request per pod, few at a time, and keeps what series need."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx2

from pavane.runtime.asking import ask
from pavane.runtime.names import bracketed
from pavane.runtime.ops import OPS_PORT
from pavane_api.problems import Unavailable
from pavane_api.series.catalogue import CATALOGUE, WANTED, Reading, growth, numbers, parse
from pavane_api.series.store import Place, Point, SeriesStore
from pavane_operator import kube
from pavane_operator.crds.definitions import KINDS
from pavane_operator.kube.informer import Informer
from pavane_operator.kube.resources import PODS
from pavane_operator.objects.names import MANAGER_LABEL_VALUE

ASK_S = 1.0
"""A pod that needs longer has a gap in its lines."""
ANSWER_BYTES_MAX = 512 * 1024
"""Of one pod: a log server with 1,024 partitions tells 350 kB."""
ASKED_AT_ONCE = 8
"""More would hold up the requests of people; 800 pods that are all dead take 100 s for a round."""
PODS_MAX = 2000
"""That are asked in one round; those seen first."""
REPLACED_S = 300.0
"""A pod of the same name that comes later counts as a new one: its node was away, or somebody scaled."""
AGAIN_S = 3.0
"""Until a cluster that did not answer is asked for its pods again, and after a mistake of ours."""

_PLURALS = {definition.name.lower(): definition.plural for definition in KINDS}
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pod:
    """What is remembered of a pod between two rounds."""

    place: Place
    name: str
    uid: str
    host: str
    restarts: int
    before: Reading = field(default_factory=dict)
    before_s: float = 0.0
    gone_s: float | None = None
    """When it was deleted."""


class Collector:
    """Fills a store; ``run`` is a task that lives as long as the control plane."""

    def __init__(
        self,
        client: kube.KubeClient,
        http: httpx2.AsyncClient,
        store: SeriesStore,
        *,
        every_s: float,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._http = http
        self._store = store
        self._every_s = every_s
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._pods: dict[tuple[str, str], _Pod] = {}  # by namespace and name
        self._marks: defaultdict[Place, list[str]] = defaultdict(list)
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)

    async def run(self) -> None:
        """Collect for ever."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for namespace in self._namespaces:
                        group.create_task(self._follow(namespace))
                    group.create_task(self._collect())
            except Exception as error:  # of ours; it would end the series of all resources until the next start
                _logger.error("series have a gap", exc_info=error)
            await asyncio.sleep(AGAIN_S)

    async def _follow(self, namespace: str | None) -> None:
        """Know the pods of a namespace, or of all."""
        labels = f"app.kubernetes.io/managed-by={MANAGER_LABEL_VALUE}"
        while True:
            try:
                async for found in Informer(self._client, PODS, namespace, labels=labels).lists_and_changes():
                    if isinstance(found, kube.Change):
                        self._learn(found.object, gone=found.type == "DELETED")
                        continue
                    for body in found.items:
                        self._learn(body)
                    present = {_key(body) for body in found.items}
                    for key in [key for key in self._pods if namespace in (None, key[0]) and key not in present]:
                        self._lose(self._pods[key])
            except kube.KubeError as error:
                _logger.warning("pods cannot be followed, their series have a gap: %s", error)
            await asyncio.sleep(AGAIN_S)

    def _learn(self, body: kube.Object, *, gone: bool = False) -> None:
        metadata, status = body["metadata"], body.get("status") or {}
        labels = metadata.get("labels") or {}
        plural = _PLURALS.get(labels.get("app.kubernetes.io/name", ""))
        known = self._pods.get(_key(body))
        same = known is not None and known.uid == metadata["uid"]
        if gone and known is not None and same:
            self._lose(known)
        if gone or plural is None or (known is None and len(self._pods) >= PODS_MAX):
            return
        restarts = sum(int(one.get("restartCount") or 0) for one in status.get("containerStatuses") or ())
        host = str(status.get("podIP") or "")
        if known is not None and (restarts > known.restarts or not same):
            self._marks[known.place].append(f"{known.name} {'started again' if same else 'was replaced'}")
        if known is not None and same:
            known.host, known.restarts = host, restarts
            return
        place = Place(plural, metadata["namespace"], labels.get("app.kubernetes.io/instance", ""))
        self._pods[_key(body)] = _Pod(place, metadata["name"], metadata["uid"], host, restarts)

    def _lose(self, pod: _Pod) -> None:
        """Ask a pod no more; it is remembered for a while, for another one may come in its place."""
        pod.host = ""
        pod.gone_s = pod.gone_s or asyncio.get_running_loop().time()

    async def _collect(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            await self._round()
            await asyncio.sleep(max(0.0, self._every_s - (loop.time() - begun_s)))

    async def _round(self) -> None:
        oldest_s = asyncio.get_running_loop().time() - REPLACED_S
        self._pods = {key: pod for key, pod in self._pods.items() if pod.gone_s is None or pod.gone_s > oldest_s}
        by_place: defaultdict[Place, list[_Pod]] = defaultdict(list)
        for pod in self._pods.values():
            if pod.gone_s is None:
                by_place[pod.place].append(pod)
        marks, self._marks = self._marks, defaultdict(list)
        points = await asyncio.gather(
            *(self._point(place, pods, marks.pop(place, ())) for place, pods in by_place.items())
        )
        nothing = [Point(place, (None,) * len(CATALOGUE[place.plural]), tuple(texts)) for place, texts in marks.items()]
        try:
            await self._store.add([*points, *nothing], int(time.time()))
        except Unavailable as error:
            _logger.warning("series have a gap: %s", error.detail)

    async def _point(self, place: Place, pods: Sequence[_Pod], marks: Iterable[str]) -> Point:
        told = await asyncio.gather(*(self._ask(pod) for pod in pods))
        rates = []
        for pod, (reading, at_s) in zip(pods, told, strict=True):
            grown = growth(pod.before, reading)
            rates.append({name: each / (at_s - pod.before_s) for name, each in grown.items()})
            pod.before, pod.before_s = reading, at_s
        readings = [reading for reading, _ in told if reading]
        return Point(place, numbers(CATALOGUE[place.plural], readings, rates), tuple(marks))

    async def _ask(self, pod: _Pod) -> tuple[Reading, float]:
        """Return what a pod tells, and when; nothing while it does not answer."""
        async with self._turns:
            reading: Reading = {}
            if pod.host:
                url = f"http://{bracketed(pod.host)}:{OPS_PORT}/metrics"
                with suppress(httpx2.HTTPError, ValueError):
                    answer = await ask(self._http, "GET", url, within_s=ASK_S, bytes_max=ANSWER_BYTES_MAX)
                    reading = parse(answer.text(), WANTED[pod.place.plural]) if answer.good else {}
            return reading, asyncio.get_running_loop().time()


def _key(body: kube.Object) -> tuple[str, str]:
    return body["metadata"]["namespace"], body["metadata"]["name"]

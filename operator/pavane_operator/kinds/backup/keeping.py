"""Makes the Backups, one at a time of each cluster (docs/specs/operator.md 1.10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from pavane_operator.crds.backup import DEFINITION, BackupStatus
from pavane_operator.crds.coordinator import DEFINITION as COORDINATOR
from pavane_operator.crds.raftcluster import DEFINITION as RAFT
from pavane_operator.crds.waltzcluster import DEFINITION as WALTZ
from pavane_operator.kinds.backup import pod as rendering
from pavane_operator.kinds.backup.deciding import Source, decide, ended, refused, source_of, turns
from pavane_operator.kinds.backup.scheduling import due, surplus, told
from pavane_operator.kinds.podless import Around, PodlessKind
from pavane_operator.kube import AlreadyExists, Forbidden, Invalid, KubeError
from pavane_operator.kube.resources import PODS, Object, custom

IDLE_LOOKS = 60
"""So many passes are left out while nothing is under way and nothing was told: five minutes, for what a watch lost."""
BACKUPS = custom(DEFINITION.name, DEFINITION.plural)
SOURCES = tuple(custom(each.name, each.plural) for each in (RAFT, COORDINATOR, WALTZ))

Turns = Mapping[Source, Mapping[str, Any]]
"""Whose turn it is, by what it copies."""

log = structlog.get_logger(__name__)


class Backups(PodlessKind):
    """Looks after all Backups. Clusters and pods are those that the operator knows anyway."""

    watched = (BACKUPS,)

    def __init__(self, around: Around) -> None:
        super().__init__(around)
        self._idle = 0
        self._found: Sequence[Object] | None = None
        """As listed last; None before."""

    def changed(self) -> None:
        """A Backup came, changed or went."""
        self._idle = 0
        super().changed()

    async def look(self) -> None:
        """Bring each Backup a step on, and make those that are due. Raises ``KubeError``."""
        now = self._around.now()
        clusters = [each for source in SOURCES for each in self._around.known(source)]
        if self._idle and not any(due(each, self._found or (), now) for each in clusters):
            self._idle -= 1
        else:
            self._idle = IDLE_LOOKS  # what is told from here on ends it
            try:
                busy = await self._serve_all(clusters)
            except KubeError:
                self._idle = 0
                raise
            if busy:
                self._idle = 0
        for each in clusters:
            self._around.tell(each, told(each, self._found or (), now))

    async def _serve_all(self, clusters: Sequence[Object]) -> bool:
        """Return whether there is more to come."""
        found = self._found = await self._listed(BACKUPS)
        known = {(_key(each)[0], each["kind"], _key(each)[1]): each for each in clusters}
        first = turns(found)
        for body in found:
            with _logged(body):
                await self._serve(body, first, known.get(source_of(body)))
        made = 0
        for cluster in clusters:
            with _logged(cluster):
                made += await self._schedule(cluster, found)
        return made > 0 or not all(map(ended, found)) or any(map(self._pods, found))

    async def _schedule(self, cluster: Object, found: Sequence[Object]) -> bool:
        """Make the Backup that is due, and delete those that are too many; return whether one was made."""
        namespace, body = cluster["metadata"]["namespace"], due(cluster, found, self._around.now())
        if body is not None:
            with suppress(AlreadyExists):
                await self._kube.create(BACKUPS, body, namespace)
        for each in surplus(cluster, found):
            metadata = each["metadata"]
            await self._kube.delete(BACKUPS, metadata["name"], namespace, uid=metadata["uid"])
        return body is not None

    async def _serve(self, body: Object, first: Turns, cluster: Object | None) -> None:
        namespace, pods = body["metadata"]["namespace"], self._pods(body)
        current = None
        if not ended(body):
            held = BackupStatus.parse(body.get("status")) or BackupStatus()
            current = rendering.pod_name(body, held.attempt or 1)
            pod = next((each for each in pods if each["metadata"]["name"] == current), None)
            decision = decide(body, first[source_of(body)], cluster, pod, self._around.now())
            await self._write(body, held, decision.status)
            if decision.start and cluster is not None:
                try:
                    await self._start(body, cluster, decision.status)
                except (Forbidden, Invalid) as error:
                    told = refused(body, decision.status, str(error), self._around.now())
                    await self._write(body, decision.status, told)
            if decision.status.attempt != held.attempt or decision.status.completed_at is not None:
                current = None
        for pod in pods:
            metadata = pod["metadata"]
            if metadata["name"] != current and not metadata.get("deletionTimestamp"):
                await self._kube.delete(PODS, metadata["name"], namespace, uid=metadata["uid"])

    def _pods(self, body: Object) -> Sequence[Object]:
        """Return its pods; not those of another Backup of its name, before it."""
        namespace, name, uid = (body["metadata"][key] for key in ("namespace", "name", "uid"))
        return [
            pod
            for resource, pod in self._around.members(DEFINITION.name, namespace, name)
            if resource == PODS and any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences") or ())
        ]

    async def _write(self, body: Object, held: BackupStatus, wanted: BackupStatus) -> None:
        if held.in_key_order() != wanted.in_key_order():
            document = {"metadata": {key: body["metadata"][key] for key in ("name", "uid")}, "status": wanted.dump()}
            await self._kube.apply_status(BACKUPS, document, body["metadata"]["namespace"])

    async def _start(self, body: Object, cluster: Object, status: BackupStatus) -> None:
        pod: dict[str, Any] = rendering.render(body, cluster, status, self._around.defaults)
        with suppress(AlreadyExists):  # the watch has not told of it, or what had its name is not quite gone
            await self._kube.create(PODS, pod, body["metadata"]["namespace"])


def _key(body: Object) -> tuple[str, str]:
    return body["metadata"]["namespace"], body["metadata"]["name"]


@contextmanager
def _logged(body: Object) -> Iterator[None]:
    """What goes wrong with one resource is told, and the others are looked after."""
    about = {"kind": body.get("kind", DEFINITION.name), "namespace": _key(body)[0], "name": _key(body)[1]}
    try:
        yield
    except KubeError as error:
        log.warning("a Backup waits", **about, error=str(error))
    except Exception:
        log.exception("a Backup cannot be looked after", **about)

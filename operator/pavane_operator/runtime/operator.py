"""The operator without kopf: a cache, a keeper per resource, and whatever feeds them with events."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

import structlog

from pavane.runtime.metrics import Metric
from pavane_operator.kube import KubeError
from pavane_operator.kube.informer import Informer
from pavane_operator.kube.resources import CHILD_TYPES, GROUP, SECRETS, VERSION, Object
from pavane_operator.kube.resources import Resource as ResourceType
from pavane_operator.plan.model import OwnCondition, parse_time
from pavane_operator.plan.port import Kind
from pavane_operator.runtime.cache import belongs_to
from pavane_operator.runtime.keepers import Keepers
from pavane_operator.runtime.metrics import Source
from pavane_operator.runtime.reconcile import Reconciler, Shared

COMPARE_S = 30.0
"""Between two looks whether the watches have told everything: a user waits for what they lost, and a look costs one
list per type (docs/specs/operator.md 5.12)."""
COMPARE_OBJECT_S = 0.01
"""Per object that the last look listed. To read one takes a hundredth of that, so looks take a hundredth of a core,
however many objects there are."""
COMPARE_MAX_S = 300.0
"""However many: as long as a resource sleeps at most."""
COMPARE_FIRST_S = 2.0
"""Before the first look: the watches begin a moment after `fill`, and never tell what went in between."""
FILL_RETRY_S = 1.0
"""Between two attempts to list our resources for the first time, and to begin a watch that the server refused."""

MANAGED_SELECTOR = "app.kubernetes.io/managed-by=pavane-operator"
"""Label of everything that we make, that our StatefulSets make, and of the slices of our Services."""

log = structlog.get_logger(__name__)


class Operator:
    """Looks after all resources that were seen. Events may come in any order, twice, or late."""

    def __init__(self, kinds: Iterable[Kind], shared: Shared) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._shared = shared
        self._reconcilers: dict[str, Reconciler] = {}
        self._uids: dict[tuple[str, str, str], str] = {}
        self._listed_at: float | None = None
        """When everything was listed for the first time; since then the watches and `compare` tell of the rest."""
        self._last_event_at: dict[str, float] = {}
        self.keepers = Keepers(self._reconcile, self._alive, shared.rng, self._ended, shared.metrics)

    def resource_seen(self, resource_type: ResourceType, body: Object, *, deleted: bool) -> None:
        """A watch told that one of our resources came, changed or went."""
        self._last_event_at[resource_type.kind] = asyncio.get_running_loop().time()
        self._take_over(resource_type, body, deleted=deleted)

    def _take_over(self, resource_type: ResourceType, body: Object, *, deleted: bool) -> None:
        metadata = body["metadata"]
        key = (resource_type.kind.lower(), metadata["namespace"], metadata["name"])
        uid = metadata["uid"]
        self._shared.cache.seen(resource_type, body, deleted=deleted)
        if not deleted:
            self._uids[key] = uid
        elif self._uids.get(key) == uid:
            del self._uids[key]
        self.keepers.wake(uid, "resource")
        name = f"{resource_type.kind}/{metadata['name']}"
        for other, reconciler in self._reconcilers.items():
            if reconciler.refers_to(metadata["namespace"], name):
                self.keepers.wake(other, "reference")

    def child_seen(self, child_type: ResourceType, body: Object, *, deleted: bool) -> None:
        """Something that belongs to one of our resources, by its labels, came, changed or went."""
        if self._shared.cache.seen(child_type, body, deleted=deleted):
            self._wake_owner(body)
        self._wake_others(child_type, body)  # also of what we wrote ourselves, which is no news

    def _wake_others(self, child_type: ResourceType, body: Object) -> None:
        """Those whose pods trust the certificate that has come, changed or gone."""
        name, namespace, _ = belongs_to(body) or ("", "", "")
        trusting = child_type == SECRETS and any(
            kind.trusts_others for kind in self._kinds.values() if kind.name.lower() == name
        )
        for key, uid in self._uids.items() if trusting else ():
            if key[:2] == (name, namespace):
                self.keepers.wake(uid, "reference")

    def _wake_owner(self, body: Object) -> None:
        uid = self._uids.get(belongs_to(body) or ("", "", ""))
        if uid is not None:
            self.keepers.wake(uid, "child")

    def reference_seen(self, namespace: str, name: str) -> None:
        """A Secret that may be a user's came, changed or went."""
        for uid, reconciler in self._reconcilers.items():
            if reconciler.reference_changed(namespace, name):
                self.keepers.wake(uid, "reference")

    def tell(self, body: Object, conditions: tuple[OwnCondition, ...]) -> None:
        """A pass over other resources knows of conditions of this one."""
        uid = str(body["metadata"]["uid"])
        before, self._shared.told[uid] = self._shared.told.get(uid, ()), conditions
        if before != conditions:
            self.keepers.wake(uid, "reference")

    def following(self, namespaces: Sequence[str] = ()) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what takes over what watches tell of children and of users' Secrets; none of them returns.

        Of what is not ours only the metadata of Secrets come: others have many of them, of 1 MiB each. kopf would
        fetch, and keep for a while, every object of the cluster.
        """

        def referred(body: Object, *, deleted: bool) -> None:
            del deleted
            self.reference_seen(body["metadata"]["namespace"], body["metadata"]["name"])

        for namespace in namespaces or (None,):
            yield self._follow(SECRETS, namespace, referred, metadata_only=True)
            for child_type in CHILD_TYPES:
                seen = functools.partial(self.child_seen, child_type)
                yield self._follow(child_type, namespace, seen, labels=MANAGED_SELECTOR)

    async def _follow(
        self, resource_type: ResourceType, namespace: str | None, seen: Callable[..., None], **options: Any
    ) -> None:
        while True:
            informer = Informer(self._shared.kube, resource_type, namespace, patience_s=math.inf, **options)
            try:
                async with contextlib.aclosing(informer.watched()) as changes:
                    async for change in changes:
                        if change.type != "BOOKMARK":
                            seen(change.object, deleted=change.type == "DELETED")
            except KubeError as error:  # what went meanwhile `compare` finds
                log.warning("a watch begins anew", kind=resource_type.kind, error=str(error))
            await asyncio.sleep(FILL_RETRY_S)

    async def fill(self, namespaces: Sequence[str] = ()) -> None:
        """List everything once, so that a start costs a few lists and not some for each resource."""
        began = asyncio.get_running_loop().time()
        types = [_resource_type(kind) for kind in self._kinds.values()]
        resources = [(resource_type, await self._listed_by(resource_type, namespaces)) for resource_type in types]
        for child_type in CHILD_TYPES:
            for body in await self._listed_by(child_type, namespaces, labels=MANAGED_SELECTOR):
                self._shared.cache.seen(child_type, body)
        self._listed_at = began
        for resource_type, bodies in resources:
            for body in bodies:
                self._take_over(resource_type, body, deleted=False)

    async def _listed_by(
        self, resource_type: ResourceType, namespaces: Sequence[str], labels: str = ""
    ) -> list[Object]:
        """All of a type; tries until the server lets us."""
        while True:
            try:
                pages = [
                    await self._shared.kube.list_all(resource_type, namespace, labels=labels)
                    for namespace in namespaces or (None,)
                ]
                return [body for page in pages for body in page.items]
            except KubeError as error:
                log.warning("resources cannot be listed yet", kind=resource_type.kind, error=str(error))
            await asyncio.sleep(FILL_RETRY_S)

    async def compare(self, namespaces: Sequence[str] = ()) -> None:
        """List everything, again after `compare_delay_s`, and look after what no watch has told; does not return.

        Args:
            namespaces: Where to look; empty = everywhere.
        """
        own = [(_resource_type(kind), "") for kind in self._kinds.values()]
        children = [(child_type, MANAGED_SELECTOR) for child_type in CHILD_TYPES]
        delay_s = COMPARE_FIRST_S
        while True:
            await asyncio.sleep(delay_s * self._shared.rng.uniform(0.8, 1.0))
            objects = 0
            for resource_type, labels in own + children:
                for namespace in namespaces or (None,):
                    with contextlib.suppress(KubeError):
                        objects += await self._compare(resource_type, namespace, labels)
            for reconciler in self._reconcilers.values():
                reconciler.forget_references()
            delay_s = compare_delay_s(objects)

    async def _compare(self, resource_type: ResourceType, namespace: str | None, labels: str) -> int:
        """Returns how many objects there are."""
        cache = self._shared.cache
        known = cache.of_type(resource_type, namespace)
        listed = (await self._shared.kube.list_all(resource_type, namespace, labels=labels)).items
        for body, gone in cache.listed(resource_type, known, listed):
            self._shared.metrics.missed_events[resource_type.kind] += 1
            log.info("a list was ahead of the watch", type=resource_type.kind, name=body["metadata"]["name"], gone=gone)
            if labels:
                self._wake_owner(body)
                self._wake_others(resource_type, body)
            else:
                self._take_over(resource_type, body, deleted=gone)
        return len(listed)

    def gauges(self) -> Iterator[Metric]:
        """What can be counted at any moment, for `/metrics`."""
        now = asyncio.get_running_loop().time()
        for kind, at in self._last_event_at.items():
            yield Metric("pavane_operator_last_event_age_seconds", {"kind": kind}, now - at)
        yield Metric("pavane_operator_streams", {}, sum(each.open_streams for each in self._reconcilers.values()))
        generations: Counter[tuple[str, str]] = Counter()
        blocked: dict[tuple[str, str], float] = {}
        for uid in self._uids.values():
            body = self._shared.cache.get(uid)
            if body is None:
                continue
            status, kind = body.get("status") or {}, str(body["kind"])
            whose = {"kind": kind, **{key: str(body["metadata"][key]) for key in ("namespace", "name")}}
            for each in status.get("conditions") or ():
                own = {label: str(each[label]) for label in ("type", "status", "reason")}
                yield Metric("pavane_operator_condition", {**whose, **own}, 1)
            ends = parse_time(status.get("certificateExpiresAt"))
            if ends is not None:
                yield Metric("pavane_operator_certificate_expires_seconds", whose, ends.timestamp())
            generations.update((kind, str(one["role"])) for one in status.get("generations") or ())
            for blocker in (status.get("rollout") or {}).get("blockers") or ():
                key = kind, str(blocker["reason"])
                blocked[key] = max(blocked.get(key, 0.0), self._age_s(blocker.get("since")))
        for (kind, role), count in generations.items():
            yield Metric("pavane_operator_generations", {"kind": kind, "role": role}, count)
        for (kind, reason), seconds in blocked.items():
            yield Metric("pavane_operator_blocked_seconds", {"kind": kind, "reason": reason}, seconds)

    def _age_s(self, since: str | None) -> float:
        at = parse_time(since)
        return max((self._shared.now() - at).total_seconds(), 0.0) if at is not None else 0.0

    async def close(self) -> None:
        """Stop all keepers and what they opened; pods go on."""
        await self.keepers.close()

    def _alive(self, uid: str) -> bool:
        return self._shared.cache.get(uid) is not None

    async def _reconcile(self, uid: str) -> float | None:
        reconciler = self._reconcilers.get(uid)
        if reconciler is None:
            body = self._shared.cache.get(uid)
            if body is None:
                return None
            kind = self._kinds[body["kind"]]
            wake: Callable[[Source], None] = functools.partial(self.keepers.wake, uid)
            reconciler = self._reconcilers[uid] = Reconciler(
                self._shared, kind, _resource_type(kind), uid, wake, listed_at=self._listed_at
            )
        return await reconciler.reconcile()

    async def _ended(self, uid: str) -> None:
        reconciler = self._reconcilers.pop(uid, None)
        self._shared.told.pop(uid, None)
        if reconciler is not None:
            await reconciler.close()
        self._uids = {key: known for key, known in self._uids.items() if known != uid}


def compare_delay_s(objects: int) -> float:
    """Seconds until the next look whether the watches have told everything, after one that listed so many objects."""
    return min(max(COMPARE_S, objects * COMPARE_OBJECT_S), COMPARE_MAX_S)


def _resource_type(kind: Kind) -> ResourceType:
    return ResourceType(GROUP, VERSION, kind.plural, kind.name)

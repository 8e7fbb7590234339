"""What the watches delivered: the newest known state of each resource and of the objects that belong to it.

The operator's own writes go in as well, with the server's answer, so that a plan never acts on a state older than our
last write (row A3 of docs/specs/operator.md 2.4); which of two states is newer is told by the resourceVersion.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence

from pavane_operator.kube.resources import PODS, Object, Resource

TOMBSTONES_MAX = 10_000
"""Remembered uids of deleted objects, so that a late answer to a write revives none."""

POD_SPEC_KEPT = ("nodeName",)
"""All that anybody reads of the spec of a pod that runs."""

INSTANCE_LABEL = "app.kubernetes.io/instance"
NAME_LABEL = "app.kubernetes.io/name"


class Cache:
    """Objects by resource type and uid, indexed by the resource they belong to.

    An object belongs to the resource that its labels `app.kubernetes.io/name` (kind in lower case) and `/instance`
    name in its own namespace: true for all that we make, for the pods of our StatefulSets and the slices of our
    Services, while owner references lead there only for the first (docs/specs/operator.md 5.3).
    """

    def __init__(self) -> None:
        self._objects: dict[str, tuple[Resource, Object]] = {}
        self._members: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
        self._deleted: OrderedDict[str, None] = OrderedDict()
        self._named: dict[tuple[str, str, str], str] = {}

    def seen(self, resource: Resource, body: Object, *, deleted: bool = False) -> bool:
        """Take over a state, or the end, of an object; returns whether that was news."""
        uid = str(body["metadata"]["uid"])
        if deleted:
            self._deleted[uid] = None
            if len(self._deleted) > TOMBSTONES_MAX:
                self._deleted.popitem(last=False)
            return self._forget(uid)
        if uid in self._deleted:
            return False
        known = self._objects.get(uid)
        if known is not None and not _newer(body, known[1]):
            return False
        self._objects[uid] = (resource, _compact(resource, body))
        self._named[_place(resource, body)] = uid
        key = _key(body)
        if key is not None:
            self._members[key].add(uid)
        return True

    def get(self, uid: str) -> Object | None:
        """The object with this uid, or None where it is unknown or gone."""
        entry = self._objects.get(uid)
        return None if entry is None else entry[1]

    def named(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """The object of this type and name, or None where it is unknown or gone."""
        return self.get(self._named.get((resource.plural, namespace, name), ""))

    def members(self, kind: str, namespace: str, name: str) -> list[tuple[Resource, Object]]:
        """All known objects that belong to the resource, in an order that does not change between calls."""
        uids = self._members.get((kind.lower(), namespace, name), ())
        found = [self._objects[uid] for uid in uids]
        return sorted(found, key=lambda entry: (entry[0].plural, entry[1]["metadata"]["name"], _uid(entry[1])))

    def of_type(self, resource: Resource, namespace: str | None) -> list[Object]:
        """All known objects of a type, in one namespace or everywhere (None)."""
        return [
            body
            for known, body in self._objects.values()
            if known == resource and namespace in (None, body["metadata"].get("namespace"))
        ]

    def listed(
        self, resource: Resource, known: Iterable[Object], listed: Sequence[Object]
    ) -> list[tuple[Object, bool]]:
        """Take over a complete list: what was known of it before it was asked for, and is not in it, is gone.

        Returns what was news, each with whether it is gone: objects that no watch has told of yet.
        """
        present = {_uid(body) for body in listed}
        news = [(body, False) for body in listed if self.seen(resource, body)]
        gone = [body for body in known if _uid(body) not in present]
        return news + [(body, True) for body in gone if self.seen(resource, body, deleted=True)]

    def _forget(self, uid: str) -> bool:
        entry = self._objects.pop(uid, None)
        if entry is None:
            return False
        place = _place(*entry)
        if self._named.get(place) == uid:
            del self._named[place]
        key = _key(entry[1])
        if key is not None:
            members = self._members[key]
            members.discard(uid)
            if not members:
                del self._members[key]
        return True


def belongs_to(body: Object) -> tuple[str, str, str] | None:
    """(kind in lower case, namespace, name) of the resource that the object's labels name, or None."""
    return _key(body)


def _place(resource: Resource, body: Object) -> tuple[str, str, str]:
    return resource.plural, body["metadata"].get("namespace", ""), body["metadata"]["name"]


def _key(body: Object) -> tuple[str, str, str] | None:
    metadata = body["metadata"]
    labels = metadata.get("labels") or {}
    if NAME_LABEL not in labels or INSTANCE_LABEL not in labels:
        return None
    return (labels[NAME_LABEL], metadata.get("namespace", ""), labels[INSTANCE_LABEL])


def _compact(resource: Resource, body: Object) -> Object:
    # The owners of the fields are half of an object, and nobody asks the cache for them.
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    if resource == PODS:
        # Its spec is most of a pod, and comes from a StatefulSet whose template is compared instead.
        spec = body.get("spec") or {}
        return {**body, "metadata": metadata, "spec": {key: spec[key] for key in POD_SPEC_KEPT if key in spec}}
    return {**body, "metadata": metadata}


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])


def _newer(body: Object, known: Object) -> bool:
    """Whether `body` is a later state than `known`; a server whose versions are no numbers is believed in its order."""
    new, old = (str(one["metadata"].get("resourceVersion", "")) for one in (body, known))
    if new.isdigit() and old.isdigit():
        return int(new) > int(old)
    return new != old

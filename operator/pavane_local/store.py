"""The durable store: objects and their history in one SQLite file (`docs/specs/operator.md` 6.2, 6.9)."""

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pavane_local.api.errors import NO_ROOM, ApiError, no_room

STORE_VERSION = 2
ROOM_RETRY_SECONDS = 0.5  # a full disk is looked at again after so long
NOT_WRITTEN = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)  # a full disk is either: files that grow are of both sorts
HISTORY_EVENTS = 10_000  # kept for watches that resume; who is later has to list again (6.2)
PENDING_EVENTS = 1_000  # a watcher that lags by more is closed: it must not hold the memory of all (6.2)
SCHEMA = """
    BEGIN;
    CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, object TEXT NOT NULL,
        PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS events (resource_version INTEGER PRIMARY KEY, type TEXT NOT NULL,
        resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, object TEXT NOT NULL,
        previous_labels TEXT);
    CREATE INDEX IF NOT EXISTS events_of_resource ON events (resource, resource_version);
    PRAGMA user_version = {version};
    COMMIT;
"""

Object = dict[str, Any]
Objects = list[Object]
EventType = Literal["ADDED", "MODIFIED", "DELETED"]


class Key(NamedTuple):
    """Where an object lies: `resource` is `plural` or `plural.group`; `namespace` is empty for cluster-wide kinds."""

    resource: str
    namespace: str
    name: str


class Event(NamedTuple):
    """One committed change; `object` is shared by all readers: copy it (`clone`) before you change it."""

    type: EventType
    object: Object


class Change(NamedTuple):
    """What a transaction wants: `object` written, or, if `removed`, taken away after a last event that shows it."""

    object: Object
    removed: bool = False


Labels = dict[str, str]
Decide = Callable[[Any], Change | None]
"""Looks at the current object or None (not to be modified); returns the change, None for none, or raises to refuse."""
View = Callable[[Event, Labels | None], Event | None]
"""How a watcher sees an event, if it does; the labels before it (None: a new object) tell that an object has left."""
FIELD = "field:"
"""Before the path of a field among what is kept of the labels; no label has a colon."""
CHANGING_FIELDS = ("spec.nodeName", "status.phase")
"""Fields to select by that change in the life of an object."""
Backlog = list[tuple[Event, Labels | None]]


class StoreVersionError(Exception):
    """The file cannot be read: another version of the program wrote it, or it is damaged."""


def clone(value: Any) -> Any:
    """Copy JSON data deeply; several times faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def field(found: Mapping[str, Any], path: str) -> str:
    """Return what a field selector compares: the text at a path like `status.phase`, empty where there is none."""
    section, _, name = path.partition(".")
    value = found.get(section, "")
    if name:
        value = value.get(name, "") if isinstance(value, Mapping) else ""
    return str(value)


def _before(current: Object) -> Labels:
    fields = {FIELD + path: text for path in CHANGING_FIELDS if (text := field(current, path))}
    return {**(current["metadata"].get("labels") or {}), **fields}


class Watch:
    """Events of one resource in order, each once. Raises `ApiError` 410 after the last if the reader lagged."""

    def __init__(self, resource: str, backlog: Backlog, view: View, close: Callable[["Watch"], None]) -> None:
        self.resource = resource
        self._view = view
        self._waiting = deque(seen for each in backlog if (seen := view(*each)))
        self._waiting_max = len(self._waiting) + PENDING_EVENTS
        self._changed = asyncio.Event()
        self._ended = False
        self._close = close

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._ended:
                raise ApiError(410, "Expired", f"the watch of {self.resource} was closed; list again")
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    def offer(self, event: Event, before: Labels | None) -> None:
        """Queue a live event; a reader that lags too far gets no more."""
        if not self._ended and (seen := self._view(event, before)):
            self._ended = len(self._waiting) >= self._waiting_max
            if not self._ended:
                self._waiting.append(seen)
            self._changed.set()

    def end(self) -> None:
        """Let the reader take what is queued and then fail."""
        self._ended = True
        self._changed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close(self)


class ObjectStore:
    """All objects of the cluster; every change is on disk before anyone sees it or its answer (6.9).

    Reads answer from memory, which holds committed state only. Changes run one after the other: `transact` shows the
    latest object to a decision and commits what it returns in a thread of its own, so that the event loop goes on.
    One counter gives every change its resourceVersion; it is never reused. Use it from one event loop.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file at `path`.

        Raises `StoreVersionError` for one that cannot be read, `ApiError` 507 for one that cannot be written.
        """
        self._folder = path.parent
        self._connection = _connect(path)
        self._reader = sqlite3.connect(path, isolation_level=None)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pavane-store")
        self._lock = asyncio.Lock()
        self._objects: dict[str, dict[tuple[str, str], Object]] = {}
        self._watches: set[Watch] = set()
        latest = self._reader.execute("SELECT MAX(resource_version) FROM events").fetchone()[0]
        self.resource_version: int = latest or 0
        for resource, namespace, name, body in self._reader.execute("SELECT * FROM objects"):
            self._objects.setdefault(resource, {})[namespace, name] = json.loads(body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.shutdown(wait=True)  # The commit under way is finished.
        self.end_watches()
        self._reader.close()
        self._connection.close()

    def end_watches(self) -> None:
        """Let the reader of every watch take what is queued and then fail."""
        for watch in self._watches:
            watch.end()

    def get(self, key: Key) -> Object | None:
        """Return the object at `key`, shared: do not modify it."""
        return self._objects.get(key.resource, {}).get(key[1:])

    def all(self, resource: str, namespace: str | None = None) -> list[Object]:
        """Return the objects of a resource, sorted by namespace and name, shared: do not modify them."""
        objects = self._objects.get(resource, {})
        return [objects[at] for at in sorted(objects) if namespace in (None, at[0])]

    async def transact(self, key: Key, decide: Decide, *, wait_for_room: bool = False) -> Object | None:
        """Commit what `decide` makes of the latest object at `key`; returns it as stored, or what is there.

        A cancelled caller leaves the change either wholly done or wholly undone. Whatever `decide` raises is raised.
        While the disk cannot take the change, it raises `ApiError` 507, or with `wait_for_room` tries again.
        """
        while True:
            try:
                return await asyncio.shield(asyncio.ensure_future(self._transact(key, decide)))
            except ApiError as error:
                if not wait_for_room or error.code != NO_ROOM:
                    raise
            await asyncio.sleep(ROOM_RETRY_SECONDS)

    async def _transact(self, key: Key, decide: Decide) -> Object | None:
        async with self._lock:
            current = self.get(key)
            if (change := decide(current)) is None:
                return current
            version = self.resource_version + 1
            written = {**change.object, "metadata": {**change.object["metadata"], "resourceVersion": str(version)}}
            kind: EventType = "DELETED" if change.removed else "ADDED" if current is None else "MODIFIED"
            before = None if current is None else _before(current)
            event = Event(kind, written)
            try:
                await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._commit, version, key, event, before
                )
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in NOT_WRITTEN:
                    raise
                raise no_room(self._folder, str(error)) from error
            self._publish(version, key, event, before)
            return written

    def _commit(self, version: int, key: Key, event: Event, before: Labels | None) -> None:
        body = json.dumps(event.object, separators=(",", ":"))
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if event.type == "DELETED":
                self._connection.execute("DELETE FROM objects WHERE resource=? AND namespace=? AND name=?", key)
            else:
                self._connection.execute("INSERT OR REPLACE INTO objects VALUES (?,?,?,?)", (*key, body))
            row = (version, event.type, *key, body, None if before is None else json.dumps(before))
            self._connection.execute("INSERT INTO events VALUES (?,?,?,?,?,?,?)", row)
            self._connection.execute("DELETE FROM events WHERE resource_version <= ?", (version - HISTORY_EVENTS,))
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # on a full disk SQLite has ended it itself
                self._connection.execute("ROLLBACK")
            raise

    def _publish(self, version: int, key: Key, event: Event, before: Labels | None) -> None:
        self.resource_version = version
        objects = self._objects.setdefault(key.resource, {})
        if event.type == "DELETED":
            del objects[key[1:]]
        else:
            objects[key[1:]] = event.object
        for watch in self._watches:
            if watch.resource == key.resource:
                watch.offer(event, before)

    def watch(self, resource: str, since: int | None, view: View) -> Watch:
        """Watch after resourceVersion `since` (`ApiError` 410 if too old); None: first what is there as ADDED."""
        watch = Watch(resource, self._backlog(resource, since), view, self._watches.discard)
        self._watches.add(watch)
        return watch

    def _backlog(self, resource: str, since: int | None) -> Backlog:
        """Return what was committed after `since` and is known to readers, oldest first."""
        if since is None:
            return [(Event("ADDED", each), None) for each in self.all(resource)]
        oldest = self._reader.execute("SELECT MIN(resource_version) FROM events").fetchone()[0] or 1
        if since + 1 < oldest or since > self.resource_version:
            known = f"{oldest - 1}…{self.resource_version}"
            raise ApiError(410, "Expired", f"too old resource version: {since} is not in {known}")
        rows = self._reader.execute(
            "SELECT type, object, previous_labels FROM events"
            " WHERE resource = ? AND resource_version > ? AND resource_version <= ? ORDER BY resource_version",
            (resource, since, self.resource_version),
        )
        return [(Event(kind, json.loads(body)), labels and json.loads(labels)) for kind, body, labels in rows]


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found, damage = STORE_VERSION, str(error)
    if damage != "ok":
        connection.close()
        raise StoreVersionError(
            f"{path} is damaged ({damage.splitlines()[-1]}): copy what you need from its folder, then "
            "`pavane down --purge` removes it"
        )
    if found not in (0, STORE_VERSION):
        connection.close()
        raise StoreVersionError(
            f"{path} has store version {found}, this program knows {STORE_VERSION}: "
            "use the program that wrote it, or remove the folder with `pavane down --purge`"
        )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(SCHEMA.format(version=STORE_VERSION))
    except sqlite3.OperationalError as error:
        connection.close()
        raise no_room(path.parent, str(error)) from error
    return connection

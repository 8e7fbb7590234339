"""The durable store: objects and their history in one SQLite file (`docs/specs/operator.md` 6.2, 6.9)."""

import asyncio
import json
import sqlite3
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

STORE_VERSION = 1
HISTORY_EVENTS = 10_000
"""Events kept for watches that resume; an older resourceVersion has to list again (6.2)."""
PENDING_EVENTS = 1_000
"""A watcher that lags by more is closed, so that one slow reader cannot hold the memory of the process (6.2)."""

Object = dict[str, Any]
EventType = Literal["ADDED", "MODIFIED", "DELETED"]


class Key(NamedTuple):
    """Where an object lies: `resource` is `plural` or `plural.group`; `namespace` is empty for cluster-wide kinds."""

    resource: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Event:
    """One committed change. `object` is shared by all readers and must not be modified."""

    resource_version: int
    type: EventType
    key: Key
    object: Object
    previous_labels: dict[str, str] | None
    """Labels before the change, None for a new object: tells a selector that an object has left it."""


@dataclass(frozen=True)
class Change:
    """What a transaction wants: `object` written, or, if `removed`, taken away after a last event that shows it."""

    object: Object
    removed: bool = False


Decide = Callable[[Object | None], Change | None]
"""Looks at the current object (not to be modified); returns the change, None for no change, or raises to refuse."""


class StoreVersionError(Exception):
    """The file was written by another version of the program."""


class ExpiredError(Exception):
    """The history does not reach back to the wanted resourceVersion, or the reader lagged too far: list again."""


def clone(value: Any) -> Any:
    """Copy JSON data deeply; several times faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


class Subscription:
    """Events of one resource in order, each once. Close it when done."""

    def __init__(self, resource: str, backlog: Iterable[Event], close: Callable[["Subscription"], None]) -> None:
        self.resource = resource
        self._backlog = deque(backlog)
        self._pending: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._close = close

    async def next(self) -> Event:
        """Return the next event. Raises `ExpiredError` after the last one, if the reader lagged or the store closed."""
        while not (waiting := self._backlog or self._pending):
            if self._ended:
                raise ExpiredError(f"the watch of {self.resource} was closed; list again")
            self._changed.clear()
            await self._changed.wait()
        return waiting.popleft()

    def offer(self, event: Event) -> None:
        """Queue a live event; a reader that lags too far gets no more."""
        self._ended = self._ended or len(self._pending) >= PENDING_EVENTS
        if not self._ended:
            self._pending.append(event)
        self._changed.set()

    def end(self) -> None:
        """Let the reader take what is queued and then fail."""
        self._ended = True
        self._changed.set()

    def close(self) -> None:
        """Stop receiving events."""
        self._close(self)


class Store:
    """All objects of the cluster; every change is on disk before anyone sees it or its answer (6.9).

    Reads answer from memory, which holds committed state only. Changes run one after the other: `transact` shows the
    latest object to a decision and commits what it returns in a thread of its own, so that the event loop goes on.
    One counter gives every change its resourceVersion; it is never reused, also over restarts (6.2).
    Use it from one event loop.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file at `path`.

        Raises `StoreVersionError`: another version of the program wrote it.
        """
        self._connection = _connect(path)
        self._reader = sqlite3.connect(path, isolation_level=None)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pavane-store")
        self._lock = asyncio.Lock()
        self._objects: dict[str, dict[tuple[str, str], Object]] = {}
        self._order: dict[str, list[tuple[str, str]]] = {}
        self._subscriptions: set[Subscription] = set()
        self.resource_version: int = self._reader.execute(
            "SELECT COALESCE(MAX(resource_version), 0) FROM events"
        ).fetchone()[0]
        for resource, namespace, name, body in self._reader.execute("SELECT * FROM objects"):
            self._remember(Key(resource, namespace, name), json.loads(body))

    def close(self) -> None:
        """Finish the commit under way, end all subscriptions and close the file."""
        self._thread.shutdown(wait=True)
        for subscription in self._subscriptions:
            subscription.end()
        self._reader.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def get(self, key: Key) -> Object | None:
        """Return the object at `key`, shared: do not modify it."""
        return self._objects.get(key.resource, {}).get((key.namespace, key.name))

    def all(self, resource: str, namespace: str | None = None) -> list[Object]:
        """Return the objects of a resource, sorted by namespace and name, shared: do not modify them."""
        objects = self._objects.get(resource, {})
        return [objects[at] for at in self._order.get(resource, ()) if namespace is None or at[0] == namespace]

    async def transact(self, key: Key, decide: Decide) -> Object | None:
        """Run `decide` on the latest object at `key` and commit its change.

        Returns the object as stored (the last shape of a removed one); without change the current object or None.
        A cancelled caller leaves the change either wholly done or wholly undone. Whatever `decide` raises is raised.
        """
        return await asyncio.shield(asyncio.ensure_future(self._transact(key, decide)))

    async def _transact(self, key: Key, decide: Decide) -> Object | None:
        async with self._lock:
            current = self.get(key)
            change = decide(current)
            if change is None:
                return current
            version = self.resource_version + 1
            written = {**change.object, "metadata": {**change.object["metadata"], "resourceVersion": str(version)}}
            kind: EventType = "DELETED" if change.removed else "ADDED" if current is None else "MODIFIED"
            labels = None if current is None else current["metadata"].get("labels") or {}
            event = Event(version, kind, key, written, labels)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, event)
            self._publish(event)
            return written

    def _commit(self, event: Event) -> None:
        body = json.dumps(event.object, separators=(",", ":"))
        labels = None if event.previous_labels is None else json.dumps(event.previous_labels)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            if event.type == "DELETED":
                self._connection.execute("DELETE FROM objects WHERE resource=? AND namespace=? AND name=?", event.key)
            else:
                self._connection.execute("INSERT OR REPLACE INTO objects VALUES (?,?,?,?)", (*event.key, body))
            row = (event.resource_version, event.type, *event.key, body, labels)
            self._connection.execute("INSERT INTO events VALUES (?,?,?,?,?,?,?)", row)
            oldest = event.resource_version - HISTORY_EVENTS
            self._connection.execute("DELETE FROM events WHERE resource_version <= ?", (oldest,))
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _publish(self, event: Event) -> None:
        self.resource_version = event.resource_version
        if event.type == "DELETED":
            at = (event.key.namespace, event.key.name)
            del self._objects[event.key.resource][at]
            self._order[event.key.resource].remove(at)
        else:
            self._remember(event.key, event.object)
        for subscription in self._subscriptions:
            if subscription.resource == event.key.resource:
                subscription.offer(event)

    def _remember(self, key: Key, body: Object) -> None:
        objects = self._objects.setdefault(key.resource, {})
        at = (key.namespace, key.name)
        if at not in objects:
            insort(self._order.setdefault(key.resource, []), at)
        objects[at] = body

    def subscribe(self, resource: str, since: int | None = None) -> Subscription:
        """Receive the events of a resource after resourceVersion `since` (None: from now on).

        Raises `ExpiredError`: `since` is older than the history, or newer than the store.
        """
        backlog = [] if since is None else self._history(resource, since)
        subscription = Subscription(resource, backlog, self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription

    def _history(self, resource: str, since: int) -> Iterator[Event]:
        """Return what was committed after `since` and is known to readers, oldest first."""
        oldest = self._reader.execute("SELECT MIN(resource_version) FROM events").fetchone()[0] or 1
        if since + 1 < oldest or since > self.resource_version:
            raise ExpiredError(f"resourceVersion {since} is not in the history {oldest - 1}…{self.resource_version}")
        rows = self._reader.execute(
            "SELECT resource_version, type, namespace, name, object, previous_labels FROM events"
            " WHERE resource = ? AND resource_version > ? AND resource_version <= ? ORDER BY resource_version",
            (resource, since, self.resource_version),
        ).fetchall()
        for version, kind, namespace, name, body, labels in rows:
            before = None if labels is None else json.loads(labels)
            yield Event(version, kind, Key(resource, namespace, name), json.loads(body), before)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, STORE_VERSION):
        connection.close()
        raise StoreVersionError(
            f"{path} has store version {found}, this program knows {STORE_VERSION}: "
            "use the program that wrote it, or remove the folder with `pavane down --purge`"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(
        "BEGIN;"
        "CREATE TABLE IF NOT EXISTS objects (resource TEXT, namespace TEXT, name TEXT, object TEXT NOT NULL,"
        " PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID;"
        "CREATE TABLE IF NOT EXISTS events (resource_version INTEGER PRIMARY KEY, type TEXT NOT NULL,"
        " resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, object TEXT NOT NULL,"
        " previous_labels TEXT);"
        "CREATE INDEX IF NOT EXISTS events_of_resource ON events (resource, resource_version);"
        f"PRAGMA user_version = {STORE_VERSION};"
        "COMMIT;"
    )
    return connection

"""Series in SQLite: a row holds all numbers of a resource at one time, as 4-byte floats."""

import itertools
import math
import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pavane_api.database import Database
from pavane_api.series.catalogue import CATALOGUE, Fold, Series, lead

RESOURCES_MAX = 2000  # of which series are kept: those that were seen first
MARKS_MAX = 500  # per resource: pods that start again all the time fill no disk
PRUNE_EVERY = 20  # rounds of the collector between two looks at what is too old

_FORMAT = 1
_TABLES = """
CREATE TABLE resource (
  id INTEGER PRIMARY KEY, plural TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, names TEXT NOT NULL,
  UNIQUE (plural, namespace, name));
CREATE TABLE point (
  resource INTEGER NOT NULL, at_s INTEGER NOT NULL, numbers BLOB NOT NULL, PRIMARY KEY (resource, at_s)) WITHOUT ROWID;
CREATE TABLE mark (id INTEGER PRIMARY KEY, resource INTEGER NOT NULL, at_s INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX mark_time ON mark (resource, at_s);
"""


class Place(NamedTuple):
    """Which resource."""

    plural: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of a resource at one time, in the order of its kind's series, and what happened to its pods."""

    place: Place
    numbers: tuple[float | None, ...]
    marks: tuple[str, ...] = ()


class Mark(NamedTuple):
    """What happened, seconds since 1970."""

    at_s: int
    text: str


class SeriesStore(Database):
    """Numbers of resources for ``retention_s`` seconds, at most ``rows_max`` rows of them.

    A row takes about 60 bytes. With more resources than these suffice for, all are kept for a shorter time alike. A
    resource that is made again under a former name goes on with the numbers of the former one.
    """

    what = "series"

    def __init__(self, path: Path, *, retention_s: float, rows_max: int, every_s: float) -> None:
        super().__init__(path, form=_FORMAT, tables=_TABLES)
        self.retention_s = retention_s
        self._rows_max = rows_max
        self._every_s = every_s
        self._ids: dict[Place, int] = {}
        self._lines: dict[Place, list[float | None]] = {}
        self._lines_from_s = 0
        self._rounds = itertools.count()

    def _prepare(self, database: sqlite3.Connection) -> None:
        super()._prepare(database)
        self._ids.clear()  # of a file that was damaged, or a write that failed, they are nobody's

    async def add(self, points: Sequence[Point], at_s: int) -> None:
        """Store what was read at a time, seconds since 1970."""
        await self._run(self._add, points, at_s)

    async def folded(
        self, place: Place, series: Sequence[Series], from_s: int, step_s: int, steps: int
    ) -> list[list[float | None]]:
        """Return for each series one value per step from ``from_s`` on; None where nothing was read."""
        return await self._run(self._folded, place, series, from_s, step_s, steps)

    async def lines(
        self, plurals: Sequence[str], namespace: str | None, from_s: int, step_s: int, steps: int
    ) -> list[tuple[Place, list[float | None]]]:
        """Return the first series of each resource of these kinds, in a namespace or (None) in all, as ``folded`` does.

        What is asked again for the same time is read once.
        """
        return await self._run(self._all_lines, plurals, namespace, from_s, step_s, steps)

    async def marks(self, place: Place, from_s: int) -> list[Mark]:
        """Return what happened since then, oldest first."""
        return await self._run(self._marks, place, from_s)

    def _add(self, points: Sequence[Point], at_s: int) -> None:
        database = self._database
        with database:
            for point in points:
                key = self._id(point.place, make=True)
                if key is None:
                    continue
                packed = struct.pack(f"<{len(point.numbers)}f", *(_packable(each) for each in point.numbers))
                database.execute("INSERT OR REPLACE INTO point VALUES (?, ?, ?)", (key, at_s, packed))
                rows = [(key, at_s, text) for text in point.marks[:MARKS_MAX]]
                database.executemany("INSERT INTO mark (resource, at_s, text) VALUES (?, ?, ?)", rows)
            if next(self._rounds) % PRUNE_EVERY == 0:
                self._prune(at_s)

    def _id(self, place: Place, *, make: bool = False) -> int | None:
        """Return the key of a resource; one whose kind had other series when it was made is made anew."""
        if place in self._ids:
            return self._ids[place]
        database, names = self._database, ",".join(one.name for one in CATALOGUE[place.plural])
        which = "plural = ? AND namespace = ? AND name = ?"
        row = database.execute(f"SELECT id, names FROM resource WHERE {which}", place).fetchone()  # noqa: S608 - no input
        if row is not None and row[1] == names:
            self._ids[place] = row[0]
            return self._ids[place]
        if not make:
            return None
        if row is not None:
            self._forget(row[0])
        elif database.execute("SELECT COUNT(*) FROM resource").fetchone()[0] >= RESOURCES_MAX:
            return None
        made = database.execute(
            "INSERT INTO resource (plural, namespace, name, names) VALUES (?, ?, ?, ?)", (*place, names)
        )
        self._ids[place] = int(made.lastrowid or 0)
        return self._ids[place]

    def _forget(self, key: int) -> None:
        for statement in (
            "DELETE FROM point WHERE resource = ?",
            "DELETE FROM mark WHERE resource = ?",
            "DELETE FROM resource WHERE id = ?",
        ):
            self._database.execute(statement, (key,))

    def _prune(self, now_s: int) -> None:
        database = self._database
        keys = [key for (key,) in database.execute("SELECT id FROM resource")]
        share_s = self._rows_max // max(1, len(keys)) * self._every_s
        oldest_s = now_s - min(self.retention_s, share_s)
        for key in keys:
            database.execute("DELETE FROM point WHERE resource = ? AND at_s < ?", (key, oldest_s))
            database.execute(
                "DELETE FROM mark WHERE resource = ? AND (at_s < ? OR id <= (SELECT id FROM mark WHERE resource = ?"
                " ORDER BY id DESC LIMIT 1 OFFSET ?))",
                (key, oldest_s, key, MARKS_MAX),
            )
            if database.execute("SELECT 1 FROM point WHERE resource = ? LIMIT 1", (key,)).fetchone() is None:
                self._forget(key)
                self._ids = {place: each for place, each in self._ids.items() if each != key}

    def _folded(
        self, place: Place, series: Sequence[Series], from_s: int, step_s: int, steps: int
    ) -> list[list[float | None]]:
        folded: list[list[float | None]] = [[None] * steps for _ in series]
        key = self._id(place)
        if key is None:
            return folded
        order = [one.name for one in CATALOGUE[place.plural]]
        places = [order.index(one.name) for one in series]
        unpack = struct.Struct(f"<{len(order)}f").unpack
        rows = self._database.execute(
            "SELECT (at_s - ?) / ?, numbers FROM point WHERE resource = ? AND at_s >= ? AND at_s < ? ORDER BY at_s",
            (from_s, step_s, key, from_s, from_s + step_s * steps),
        )
        for step, group in itertools.groupby(rows, key=lambda row: int(row[0])):
            columns = list(zip(*(unpack(packed) for _, packed in group), strict=True))
            for values, one, at in zip(folded, series, places, strict=True):
                told = [value for value in columns[at] if not math.isnan(value)]
                if told:
                    values[step] = max(told) if one.fold is Fold.MOST else math.fsum(told) / len(told)
        return folded

    def _all_lines(
        self, plurals: Sequence[str], namespace: str | None, from_s: int, step_s: int, steps: int
    ) -> list[tuple[Place, list[float | None]]]:
        if self._lines_from_s != from_s:
            self._lines, self._lines_from_s = {}, from_s
        rows = self._database.execute(
            "SELECT plural, namespace, name FROM resource WHERE ? IS NULL OR namespace = ? ORDER BY 1, 2, 3",
            (namespace, namespace),
        )
        found = []
        for place in [Place(*row) for row in rows if row[0] in plurals]:
            if place not in self._lines:
                (self._lines[place],) = self._folded(place, (lead(place.plural),), from_s, step_s, steps)
            found.append((place, self._lines[place]))
        return found

    def _marks(self, place: Place, from_s: int) -> list[Mark]:
        key = self._id(place)
        rows = self._database.execute(
            "SELECT at_s, text FROM mark WHERE resource = ? AND at_s >= ? ORDER BY id DESC LIMIT ?",
            (key, from_s, MARKS_MAX),
        )
        return [Mark(*row) for row in rows][::-1]


def _packable(value: float | None) -> float:
    """Return what a 4-byte float can hold; NaN stands for nothing."""
    return math.nan if value is None or not abs(value) < 3.4e38 else value

"""The state of a script's views on Spark, and its checkpoint (docs/specs/compute.md 16.4).

A checkpoint is a manifest, written last, that names the runs of each view. The log is what counts: one that is not what
this process would have written is thrown away, and the views are built from the log.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pavane.dataflow.plan import digests
from pavane.dataflow.ports import Binding, EngineError, Flow, Script, SqlView, ViewError
from pavane.spark import stages, tables
from pavane.spark.faults import said, told_apart
from pavane.spark.runs import HASHES_MAX, Store
from pavane.spark.views import SparkFlow

VERSION = 1
"""Of the state's rows."""
CHECKPOINT_S = 30.0
"""Between two checkpoints: after a restart the log is read from the last one on."""
MANIFEST = "manifest-"
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # a step has little to adapt to, and would be planned twice
    "spark.sql.session.timeZone": "UTC",
    # It would write down that a hash is that of its columns in all ways: of 16, which have two names each, 2^16.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.optimizer.inSetConversionThreshold": str(HASHES_MAX),  # a set would not pass over batches of a run
}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where state is kept: a folder, or a URL of which Spark's Hadoop client knows the scheme."""

    folder: str
    durable: bool = True
    """It outlives the process, so a start looks for a checkpoint there."""
    every_s: float = CHECKPOINT_S
    clock: Callable[[], float] = time.monotonic


class SparkState:
    """The state of one script. `other` makes the flows of views that executors do not maintain."""

    def __init__(
        self,
        session: SparkSession,
        script: Script,
        keeping: Keeping,
        place: tables.Place | None,
        other: Callable[[SqlView], Flow],
    ) -> None:
        self._keeping = keeping
        self._script = script
        self._place = place
        self._other = other
        self._last_s = keeping.clock() - keeping.every_s
        self._views = [view for view in script.views if stages.covers(script, view)]
        self._digests = digests(script, VERSION, pyspark.__version__)
        self._flows: dict[str, SparkFlow] = {}
        self.closed = False
        self._manifest = 0
        self._former: list[str] = []  # runs, until no checkpoint names them
        if not self._views:
            return
        label = hashlib.sha256(script.views[0].name.encode()).hexdigest()[:16]
        with told_apart():
            own = session.newSession()
            for name, value in SETTINGS.items():
                own.conf.set(name, value)
            own.udf.register("exact_mean", stages.mean, "double")
            folder = f"{keeping.folder.rstrip('/')}/{label}"
            self._files = _Files(own, folder)
            self._store = Store(own, folder, self._former.append if keeping.durable else self._files.delete)
            self._open()

    def flow(self, view: SqlView) -> Flow:
        """See `State`."""
        return self._flows[view.name] if view.name in self._flows else self._other(view)

    @property
    def due(self) -> bool:
        """See `State`."""
        keeping = self._keeping
        return keeping.durable and bool(self._flows) and keeping.clock() - self._last_s >= keeping.every_s

    def checkpoint(self, at: Mapping[str, Binding]) -> None:
        """See `State`."""
        self._last_s = self._keeping.clock()
        with told_apart():
            views = {
                name: {
                    "digest": self._digests[name],
                    "binding": [at[name].tick, sorted(at[name].next.items()), at[name].wall_ms],
                    "runs": flow.kept(),
                }
                for name, flow in self._flows.items()
                if name in at
            }
            former, self._manifest = self._manifest, self._manifest + 1
            text = json.dumps(views)
            self._files.write(f"{MANIFEST}{self._manifest}", f"{_sum(text)} {text}")
            for name in [*self._former, f"{MANIFEST}{former}"]:
                self._files.delete(name)
            self._former.clear()

    def close(self) -> None:
        """See `State`."""
        self.closed = True
        self._let_go()

    def _let_go(self) -> None:
        """Let go of what executors hold; a JVM that died holds nothing."""
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            for flow in self._flows.values():
                flow.close()

    def _open(self) -> None:
        self._make()
        if not self._keeping.durable:
            self._files.delete("")
            return
        there = self._files.names()
        why = self._reopen(there) if there else "there is no checkpoint yet"
        if why:
            said_of = _logger.warning if there else _logger.info
            said_of("the state in %s is %s, and built from the log: %s", self._store.folder,
                    "thrown away" if there else "new", why)  # fmt: skip
            self._let_go()
            self._make()
            self._files.delete("")

    def _make(self) -> None:
        self._flows = {
            view.name: SparkFlow(self._store, self._script, view, self._place, keeps=self._keeping.durable)
            for view in self._views
        }

    def _reopen(self, there: list[str]) -> str:
        """Open what a process kept; return why it cannot be used."""
        manifests = [name for name in there if name.startswith(MANIFEST)]
        if not manifests:
            return "it has no manifest"
        try:
            # Whoever died while it wrote one has not deleted what the one before it names.
            last = next(filter(self._is_whole, sorted(manifests, key=_number, reverse=True)), None)
            if last is None:
                return "its manifest is not as it was written"
            views = json.loads(self._files.read(last).partition(" ")[2])
            if not views.keys() & self._flows.keys():
                return "it holds no view of this script"
            used = {last}
            for name, flow in self._flows.items():
                held = views.get(name)  # one that had failed is not there
                if held is None:
                    continue
                if held["digest"] != self._digests[name]:
                    return f"view {name} has another plan, or the version of Spark is another one"
                tick, following, wall_ms = held["binding"]
                flow.open(Binding(tick, dict(following), wall_ms), held["runs"])
                used |= {run[0] for runs in held["runs"] for run in runs}
        except (
            PySparkException,
            Py4JError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            ViewError,
            EngineError,
        ) as error:
            return " ".join(said(error).split())[:300]
        self._manifest = _number(last)
        for name in set(there) - used:
            self._files.delete(name)
        return ""

    def _is_whole(self, name: str) -> bool:
        try:
            digest, _, text = self._files.read(name).partition(" ")
        except Py4JError:  # Hadoop's own sum of it is another one
            return False
        return digest == _sum(text)


class _Files:
    """A folder, as Spark's Hadoop client sees it."""

    def __init__(self, session: SparkSession, folder: str) -> None:
        context = session.sparkContext
        assert context._jvm is not None  # noqa: S101 - a session that runs has one
        self._jvm: Any = context._jvm
        self._folder = folder
        self._system = self._path("").getFileSystem(context._jsc.hadoopConfiguration())

    def names(self) -> list[str]:
        """Return what is in it; nothing where it is not there."""
        if not self._system.exists(self._path("")):
            return []
        return [str(each.getPath().getName()) for each in self._system.listStatus(self._path(""))]

    def read(self, name: str) -> str:
        """Return the text of a file."""
        stream = self._system.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a new file."""
        stream = self._system.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def delete(self, name: str) -> None:
        """Delete a file or a folder, if it is there; of no name all."""
        self._system.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._folder}/{name}" if name else self._folder)


def _number(manifest: str) -> int:
    return int(manifest.removeprefix(MANIFEST))


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

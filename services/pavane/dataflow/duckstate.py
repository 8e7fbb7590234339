"""The state of a script's views in one file of DuckDB (docs/specs/compute.md 16.3).

The log is what counts: a file that is not exactly what this process would have written is thrown away, and the views
are built from the log.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

import duckdb

from pavane.dataflow.duckflow import DuckFlow, Evaluate
from pavane.dataflow.plan import digests
from pavane.dataflow.ports import MEMORY_MIB, Binding, EngineError, Flow, Script, SqlView, ViewError

VERSION = 3
"""Of the state tables."""
CHECKPOINT_S = 30.0
"""Between two checkpoints: after a restart the log is read from the last one on."""
STEPS_MAX = 1000
"""Of all views between two checkpoints: each leaves about 0.3 MiB behind in the transaction of its view."""
THREADS = 2
"""Of DuckDB, for each script."""
SETTINGS: Mapping[str, str | bool | int] = {
    "threads": THREADS,
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "preserve_insertion_order": False,  # which would cost memory
}
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Files:
    """Where states are kept, through all engines of a process. Without a folder they are in memory."""

    folder: Path | None = None
    memory_mib: int = MEMORY_MIB
    disk_mib: int | None = None
    """What a script may spill beside its file; None: its share of half of what is free where that is."""
    scripts: int = 1
    """How many share what is free."""
    clock: Callable[[], float] = time.monotonic
    every_s: float = CHECKPOINT_S
    failed: set[str] = field(default_factory=set)
    """Scripts whose file cannot be made or written: their state is in memory until the process starts anew."""
    in_use: set[str] = field(default_factory=set)
    """Scripts whose state is open; of a namesake, which only a foreign controller makes, it is in memory."""


class DuckState:
    """The state of one script. With `evaluate` something else evaluates SELECTs over rows."""

    def __init__(self, script: Script, files: Files, evaluate: Evaluate | None = None) -> None:
        self._evaluate = evaluate
        self._files = files
        self._script = script
        self._name = _label(script.views[0].name)
        self._lock = RLock()  # a checkpoint may be under way in a thread that nobody waits for any more
        self._keeps = files.folder is not None and self._name not in files.failed | files.in_use
        self._flows: dict[str, DuckFlow] = {}
        self._last_s = -files.every_s
        self._digests = digests(script, VERSION, duckdb.__version__)
        self._connection: duckdb.DuckDBPyConnection | None = None
        if script.views:
            self._open()

    def flow(self, view: SqlView) -> Flow:
        """See `State`."""
        return self._flows[view.name]

    @property
    def due(self) -> bool:
        """See `State`."""
        if not self._keeps or self._connection is None:
            return False
        steps = sum(flow.steps for flow in self._flows.values() if not flow.closed)
        return steps >= STEPS_MAX or self._files.clock() - self._last_s >= self._files.every_s

    def checkpoint(self, at: Mapping[str, Binding]) -> None:
        """See `State`."""
        assert self._connection is not None  # noqa: S101 - it was due
        self._last_s = self._files.clock()
        with self._lock:
            self._checkpoint(self._connection, at)

    def _checkpoint(self, connection: duckdb.DuckDBPyConnection, at: Mapping[str, Binding]) -> None:
        marker = self._path(".busy")
        try:
            marker.touch()
            alive = []
            for name, flow in self._flows.items():
                if name in at and not flow.closed:
                    flow.commit(self._digests[name], at[name])
                    alive.append(flow)
                elif not flow.closed:
                    flow.close()
            connection.execute("CHECKPOINT")
            for flow in alive:
                flow.begin()
            marker.unlink()
        except (duckdb.Error, OSError) as error:
            raise self._given_up("was not written", error) from error

    def _given_up(self, what: str, error: Exception) -> EngineError:
        """Close, and see to it that the state is in memory from now on."""
        self._files.failed.add(self._name)
        text = _line(f"the state in {self._path()} {what}, and is in memory until the process starts anew: {error}")
        _logger.warning("%s", text)
        self.close()
        with contextlib.suppress(OSError):
            self._path(".busy").unlink()
        return EngineError(text)

    def close(self) -> None:
        """Let go of memory and of the file."""
        with self._lock:
            self._disconnect()
            if self._keeps:
                self._files.in_use.discard(self._name)

    def _disconnect(self) -> None:
        for flow in self._flows.values():
            flow.close()
        if self._connection is not None:
            self._connection.close()

    def _path(self, end: str = "") -> Path:
        assert self._files.folder is not None  # noqa: S101 - in memory there is no path
        return self._files.folder / f"{self._name}.duckdb{end}"

    def _open(self) -> None:
        if not self._keeps:
            self._connect(":memory:", {**SETTINGS, "temp_directory": ""})
            for flow in self._flows.values():
                flow.make()
            return
        settings = {
            **SETTINGS,
            "memory_limit": f"{self._files.memory_mib}MiB",
            "temp_directory": str(self._path(".tmp")),
        }
        assert self._files.folder is not None  # noqa: S101 - else it would not be kept
        self._files.in_use.add(self._name)
        marker = self._path(".busy")
        try:
            self._files.folder.mkdir(parents=True, exist_ok=True)
            died, there = marker.exists(), self._path().exists()
            marker.touch()
            why = "the process before died when it opened or wrote the file" if died else ""
            why = why or self._reopen(settings) if there else why or "there is no file yet"
            if why:
                if there or died:
                    _logger.warning("the state in %s is thrown away, and built from the log: %s", self._path(), why)
                else:
                    _logger.info("the state in %s is built from the log: %s", self._path(), why)
                self._throw_away()
                self._connect(str(self._path()), settings)
                for flow in self._flows.values():
                    flow.make()
            marker.unlink()
        except (duckdb.Error, OSError) as error:
            raise self._given_up("cannot be made", error) from error

    def _connect(self, database: str, settings: Mapping[str, str | bool | int]) -> None:
        self._connection = duckdb.connect(database, config=dict(settings))
        self._connection.execute("SET GLOBAL timezone = 'UTC'")  # all times are, wherever the process runs
        if self._keeps and self._files.folder is not None:
            # Among the settings at the start DuckDB shows it and does not honour it: it takes 90 % of the disk.
            free_mib = shutil.disk_usage(self._files.folder).free >> 20
            most_mib = self._files.disk_mib or free_mib // (2 * self._files.scripts)
            self._connection.execute(f"SET GLOBAL max_temp_directory_size = '{most_mib}MiB'")
        self._flows = {
            view.name: DuckFlow(
                self._connection.cursor(),
                self._script,
                view,
                f"v{_label(view.name)}",
                keeps=self._keeps,
                evaluate=self._evaluate,
            )
            for view in self._script.views
        }

    def _reopen(self, settings: Mapping[str, str | bool | int]) -> str:
        """Open what a process kept; return why it cannot be used."""
        try:
            self._connect(str(self._path()), settings)
            found = {name: flow.kept() for name, flow in self._flows.items()}
            if not any(found.values()):
                return "it holds no view of this script"
            for name, flow in self._flows.items():
                kept = found[name]
                if kept is None:  # it had failed
                    flow.make()
                    continue
                digest, binding = kept
                if digest != self._digests[name]:
                    return f"view {name} has another plan, or the version of DuckDB is another one"
                flow.open(binding)
        except (duckdb.Error, EngineError, ViewError, ValueError, TypeError) as error:
            return _line(str(error))
        return ""

    def _throw_away(self) -> None:
        self._disconnect()
        self._flows = {}
        for end in ("", ".wal", ".tmp"):
            path = self._path(end)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _label(name: str) -> str:
    """A name of files and tables: whoever sends a dataflow may call its steps anything."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _line(text: str) -> str:
    return " ".join(text.split())

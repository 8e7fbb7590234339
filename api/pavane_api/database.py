"""SQLite files of the control plane: what they hold may be lost without harm. One thread writes and reads each."""

import asyncio
import functools
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, ParamSpec, TypeVar

from pavane_api.problems import Unavailable

LOCKED_S = 5.0  # another program may have the file for so long, as one that copies it
_FILE_ERRORS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_logger = logging.getLogger(__name__)

P = ParamSpec("P")
Result = TypeVar("Result")


class Database:
    """A file with ``tables``; one that is damaged, or was written in another ``form``, is made anew.

    All methods may be called from one event loop; the work is done on a thread of the file's own, in the order of the
    calls. They raise ``Unavailable`` while the file cannot be used, as on a full volume, and open it anew when it can.
    """

    what: ClassVar[str]
    """What it holds, for errors."""

    def __init__(self, path: Path, *, form: int, tables: str) -> None:
        self._path = path
        self._form = form
        self._tables = tables
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=path.stem)
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open or create the file; where that cannot be now, later: it is no reason to refuse all else."""
        try:
            await self._run(self._open)
        except Unavailable as error:
            _logger.warning("%s", error.detail)

    async def close(self) -> None:
        """Finish what was begun and close the file."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, function: Callable[P, Result], *arguments: P.args, **named: P.kwargs) -> Result:
        call = functools.partial(self._on_the_file, functools.partial(function, *arguments, **named))
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _on_the_file(self, call: Callable[[], Result]) -> Result:
        try:
            self._open()
            return call()
        except (sqlite3.DatabaseError, OSError) as error:
            self._close()  # nothing that was learnt in what is undone now may stay
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it says where SQLite noticed
            if isinstance(error, sqlite3.DatabaseError) and code not in _FILE_ERRORS | _DAMAGED:
                raise
            if code in _DAMAGED:
                for end in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + end).unlink(missing_ok=True)
            what = "is damaged and made anew" if code in _DAMAGED else "cannot be used: see to its volume"
            raise Unavailable(
                f"The file of {self.what} {self._path} {what}. {error}", headers={"Retry-After": "1"}
            ) from error

    def _open(self) -> None:
        if self._connection is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)  # what it tells is not for every user of the machine
        database = self._connection = sqlite3.connect(self._path, timeout=LOCKED_S, check_same_thread=False)
        try:
            self._prepare(database)
        except sqlite3.Error:
            self._close()
            raise

    def _prepare(self, database: sqlite3.Connection) -> None:
        database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
        if database.execute("PRAGMA user_version").fetchone()[0] != self._form:
            former = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
            dropped = "".join(f"DROP TABLE {name};" for (name,) in former)
            database.executescript(f"{dropped}{self._tables}PRAGMA user_version = {self._form};")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _database(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RuntimeError(f"{self._path.name} is not open")
        return self._connection

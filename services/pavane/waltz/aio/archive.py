"""An archive in object storage or in a folder: pieces, each written once (docs/specs/waltz.md 13.9)."""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from pavane.waltz.errors import ArchiveError
from pavane.waltz.state.archived import Piece
from pavane.waltz.state.store import Damaged
from pavane.waltz.storage.piece import records_of
from pavane.waltz.wire.storage import Record

CALL_S = 60.0  # for one call, with what the library tries again: a store that is silent so long is away
TRIES_S, TRIES_MAX = timedelta(seconds=10), 3  # of what a store refuses for the moment; the owner comes again anyway
STORES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
OPTION_PREFIXES = ("aws_", "google_", "azure_")  # the library panics at others
PIECES_KEPT = 4  # read last: a feed takes a thousand transactions of a piece at a time
READS_MAX = 4  # pieces that are read at a time: each is in memory
KEYS = "key-partitions-"  # name of an object without data, up to the number

Result = TypeVar("Result")


def folder_of(cluster: str, key: UUID) -> str:
    """Return the folder of a log below its archive's URL: a log that was made anew has another."""
    return f"{quote(cluster, safe='')}-{key.hex[:8]}"


class Archive:
    """The archive at ``url``; ``options`` are the store's, such as its keys. All raise ``ArchiveError``.

    The store is called in threads: the library's own tasks may abort a process that ends right behind a call. A
    process that ends does not wait for them.
    """

    def __init__(self, url: str, options: Mapping[str, str], *, make: bool = True) -> None:
        self.url = url.rstrip("/")
        try:
            parts = urlsplit(self.url)
        except ValueError as error:
            raise ArchiveError(f"{self.url}: {error}") from None
        self._local = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self._lately: OrderedDict[tuple[int, Piece], asyncio.Task[list[Record]]] = OrderedDict()
        self._reading = asyncio.Semaphore(READS_MAX)
        foreign = [name for name in options if not name.lower().startswith(OPTION_PREFIXES)]
        if foreign:
            raise ArchiveError(f"{self.url}: option {foreign[0]} does not begin with aws_, google_ or azure_")
        if parts.scheme not in (*STORES, "file"):
            raise ArchiveError(f"{self.url}: an archive's URL begins with s3://, gs://, az:// or file://")
        try:
            if self._local is not None:
                self._store: Any = LocalStore(self._local, mkdir=make)
            else:
                self._store = STORES[parts.scheme](
                    parts.netloc,
                    prefix=unquote(parts.path).strip("/"),
                    config=dict(options),
                    client_options={"allow_http": any(value.startswith("http://") for value in options.values())},
                    retry_config={"retry_timeout": TRIES_S, "max_retries": TRIES_MAX},
                )
        except (BaseError, OSError, ValueError) as error:
            raise ArchiveError(f"{self.url}: {_words(error)}") from None

    async def contents(self) -> tuple[list[str], list[int]]:
        """Return the names of the folders at the URL, and what ``note_keys`` was told.

        The folders of a log are its partitions' numbers.
        """
        async with self._asking("listing", ""):
            found = await _in_thread(self._store.list_with_delimiter)
            names = [each["path"].rpartition("/")[2] for each in found["objects"]]
            keys = [int(name.removeprefix(KEYS)) for name in names if name.startswith(KEYS) and name[-1].isdecimal()]
            return [path.rpartition("/")[2] for path in found["common_prefixes"]], keys

    async def note_keys(self, partitions: int) -> None:
        """Write over how many partitions the log spreads keys, which never changes."""
        await self._write(f"{KEYS}{partitions}", b"")

    async def pieces(self, partition: int) -> list[Piece]:
        """Return the pieces of a partition, in no order."""
        async with self._asking("listing", str(partition)):
            found = await _in_thread(lambda: [each for some in self._store.list(f"{partition}/") for each in some])
            named = [Piece.named(each["path"].rpartition("/")[2]) for each in found]
            return [piece for piece in named if piece is not None]

    async def put(self, partition: int, piece: Piece, data: bytes) -> None:
        """Write a piece, durably. One that is there already has these bytes."""
        await self._write(f"{partition}/{piece.name}", data)

    async def _write(self, name: str, data: bytes) -> None:
        async with self._asking("writing", name):
            await _in_thread(lambda: self._store.put(name, data))
            if self._local is not None:
                await asyncio.to_thread(_sync, self._local / name, self._local)

    async def read(self, partition: int, piece: Piece) -> list[Record]:
        """Return the records of a piece; one that is damaged raises as well. Who wants the same one shares it."""
        known = partition, piece
        if known not in self._lately:
            self._lately[known] = task = asyncio.create_task(self._fetch(partition, piece), name="waltz archive piece")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            while len(self._lately) > PIECES_KEPT:
                self._lately.popitem(last=False)
        self._lately.move_to_end(known)
        return await asyncio.shield(self._lately[known])

    async def _fetch(self, partition: int, piece: Piece) -> list[Record]:
        name = f"{partition}/{piece.name}"
        try:
            async with self._reading, self._asking("reading", name):
                data = await _in_thread(lambda: bytes(self._store.get(name).buffer()))
                return (await asyncio.to_thread(records_of, piece, data, partition))[1]
        except BaseException:
            self._lately.pop((partition, piece), None)
            raise

    @asynccontextmanager
    async def _asking(self, doing: str, name: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(CALL_S):
                yield
        except TimeoutError:
            raise ArchiveError(f"{doing} {self.url}/{name}: no answer within {CALL_S:.0f} s") from None
        except (BaseError, OSError, ValueError, Damaged) as error:
            raise ArchiveError(f"{doing} {self.url}/{name}: {_words(error)}") from None


def _in_thread(call: Callable[[], Result]) -> asyncio.Future[Result]:
    """Call in a thread of its own, which nobody joins."""
    done: Future[Result] = Future()

    def work() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

    Thread(target=work, name="waltz-archive", daemon=True).start()
    return asyncio.wrap_future(done)


def _words(error: Exception) -> str:
    """Return what the library says without its inner state, which follows in further lines."""
    return str(error).partition("\n")[0] or type(error).__name__


def _sync(path: Path, top: Path) -> None:
    """Make a file and the folders above it durable: the library only renames."""
    for one in (path, path.parent, top, top.parent):
        descriptor = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

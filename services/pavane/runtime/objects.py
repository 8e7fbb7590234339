"""Object storage, or a folder in its place: one library, called so that a store that is silent holds nobody up."""

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

CALL_S = 60.0  # for one call, with what the library tries again: a store that is silent so long is away
RATE_BYTES_S = 1 << 20  # an object that is written slower than that, CALL_S aside, is given up
TRIES_S, TRIES_MAX = timedelta(seconds=10), 3  # of what a store refuses for the moment; the owner comes again anyway
STORES: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
OPTION_PREFIXES = ("aws_", "google_", "azure_")  # the library panics at others

Result = TypeVar("Result")


class ObjectStore:
    """The objects below ``url``; ``options`` are the store's, such as its keys.

    What goes wrong is raised as ``error``, with the URL in its words. ``make``: whether a folder is made where none is.
    The store is called in threads: the library's own tasks may abort a process that ends right behind a call. A
    process that ends does not wait for them.
    """

    def __init__(self, url: str, options: Mapping[str, str], error: type[Exception], *, make: bool = True) -> None:
        self.url = url.rstrip("/")
        self._error = error
        try:
            parts = urlsplit(self.url)
        except ValueError as fault:
            raise error(f"{self.url}: {fault}") from None
        self._local = Path(unquote(parts.path)) if parts.scheme == "file" else None
        foreign = [name for name in options if not name.lower().startswith(OPTION_PREFIXES)]
        if foreign:
            raise error(f"{self.url}: option {foreign[0]} does not begin with aws_, google_ or azure_")
        place = parts.netloc if self._local is None else parts.path
        if parts.scheme not in (*STORES, "file") or not place or (self._local and parts.netloc):
            raise error(f"{self.url}: a store is at s3://…, gs://…, az://… or file:///…, with a place")
        if parts.query or parts.fragment or url.endswith(("?", "#")):
            raise error(f"{self.url}: write ? as %3F and # as %23 in the URL of a store")
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
        except (BaseError, OSError, ValueError) as fault:
            raise error(f"{self.url}: {_words(fault)}") from None

    async def ask(self, doing: str, name: str, call: Callable[[Any], Result], *, within_s: float = CALL_S) -> Result:
        """Return what ``call`` does with the library's store, in a thread of its own; ``doing`` to which object."""
        try:
            async with asyncio.timeout(within_s):
                return await _in_thread(lambda: call(self._store))
        except TimeoutError:
            raise self._error(f"{doing} {self.url}/{name}: no answer within {within_s:.0f} s") from None
        except (BaseError, OSError, ValueError) as fault:
            raise self._error(f"{doing} {self.url}/{name}: {_words(fault)}") from None

    async def sizes(self) -> dict[str, int]:
        """Return the bytes of each object by its name below the URL."""
        return await self.ask(
            "listing", "", lambda store: {each["path"]: each["size"] for some in store.list() for each in some}
        )

    def is_link(self, name: str) -> bool:
        """Whether a folder of a ``file://`` store is a symbolic link: what it holds stands under its own name, too."""
        return self._local is not None and (self._local / name).is_symlink()

    async def write(self, name: str, data: bytes | Path) -> None:
        """Write an object, durably and whole: bytes, or those of a file, which may be greater than memory."""
        size = len(data) if isinstance(data, bytes) else (await asyncio.to_thread(data.stat)).st_size

        def put(store: Any) -> None:
            store.put(name, data)
            if self._local is not None:
                _sync(self._local / name, self._local)

        await self.ask("writing", name, put, within_s=CALL_S + size / RATE_BYTES_S)


def _in_thread(call: Callable[[], Result]) -> asyncio.Future[Result]:
    """Call in a thread of its own, which nobody joins."""
    done: Future[Result] = Future()

    def work() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

    Thread(target=work, name="object-store", daemon=True).start()
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
